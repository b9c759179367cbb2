"""Points of curves on which nothing fits."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from shardwise.documents.curve import CurvePoint
from shardwise.search.chosen import lowest_peak
from shardwise.search.search import Search


def least_bytes(searches: Sequence[Search]) -> int | UnsetType:
    """Returns the least peak that was found, unset where no strategy was."""
    if not any(len(search.time_s) for search in searches):
        return UNSET
    return round(lowest_peak(searches).peak_bytes)


def infeasible_point(gpus: int, nodes: int | None, basis: str, reason: str) -> CurvePoint:
    """Returns the point of devices on which nothing fits; `basis` is what times are based on."""
    return CurvePoint(
        gpus=gpus,
        nodes=nodes,
        feasible=False,
        time_s=None,
        replayed_time_s=None,
        samples_per_s=None,
        peak_bytes=None,
        memory_bytes=None,
        plan_id=None,
        compute_shares=None,
        confidence=basis,
        reason=reason,
    )
