"""A plan on several kinds of devices, by place, and its gradient sums."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from msgspec import UNSET

from shardwise.documents import Plan
from shardwise.documents.plan import COLLECTIVE_SUM, PlannedCluster


def cluster_context(plan: Plan, cluster: PlannedCluster) -> dict[str, Any]:
    """Returns the places with their devices, the shares that operators have by computing time, and
    the ways in which gradients are summed by bytes of parameters."""
    shares: dict[int, float] = defaultdict(float)
    sums: dict[str, float] = defaultdict(float)
    for group in plan.groups:
        if group.proportion is not UNSET:
            shares[group.proportion] += group.compute_s
        name = COLLECTIVE_SUM if group.gradient_sum is UNSET else group.gradient_sum
        sums[name] += group.parameter_bytes
    return {
        "bundle": cluster.bundle,
        "blocks": [block.group for block in cluster.blocks],
        "block_size": cluster.block_size,
        "places": [
            {
                "name": place.name,
                "kind": place.kind,
                "devices": len(place.blocks) * cluster.block_size,
                "peak_bytes": place.peak_bytes,
                "limit_bytes": place.memory_limit_bytes,
                "compute_s": place.compute_s,
                "communication_s": place.communication_s,
            }
            for place in cluster.places
        ],
        "shares": [
            {
                "weights": ":".join(map(str, cluster.proportions[number].weights)),
                "origin": cluster.proportions[number].origin,
                "share": share,
            }
            for number, share in _shares(shares)
        ],
        "sums": [{"name": name, "share": share} for name, share in _shares(sums)],
    }


def _shares(of: dict[Any, float]) -> list[tuple[Any, float]]:
    """Returns the positive shares of the whole, the largest first."""
    whole = sum(of.values()) or 1.0
    ordered = sorted(of.items(), key=lambda one: -one[1])
    return [(name, value / whole) for name, value in ordered if value > 0]
