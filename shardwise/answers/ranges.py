"""Counts of GPUs on which nothing fits, as ranges with the nearest miss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET

from shardwise.documents.curve import CurvePoint, DoesNotFit, fits


def ranges_that_do_not_fit(points: Iterable[CurvePoint], limit_bytes: float) -> list[DoesNotFit]:
    """Returns the runs of points on which nothing fits, in order.

    A run ends at a point that fits, and at the change between counts that need too much memory and
    counts that were not searched. `limit_bytes` is the memory limit of one GPU.
    """
    runs: list[list[CurvePoint]] = []
    before: CurvePoint | None = None
    for point in points:
        if not fits(point):
            if before is not None and not fits(before) and _searched(before) == _searched(point):
                runs[-1].append(point)
            else:
                runs.append([point])
        before = point
    return [_range(run, limit_bytes) for run in runs]


def _searched(point: CurvePoint) -> bool:
    return point.least_bytes is not UNSET


def _range(run: Sequence[CurvePoint], limit_bytes: float) -> DoesNotFit:
    needs = [(point.least_bytes, point) for point in run if point.least_bytes is not UNSET]
    least, nearest = min(needs, key=lambda need: need[0], default=(None, run[0]))
    return DoesNotFit(
        first=run[0].gpus,
        last=run[-1].gpus,
        nearest_gpus=None if least is None else nearest.gpus,
        least_bytes=least,
        limit_bytes=None if least is None else round(limit_bytes),
        reason=str(nearest.reason or ""),
    )


def range_text(of: DoesNotFit) -> str:
    """Returns a line such as `1 to 2 GPUs: do not fit; 2 need 89.7 of 72.7 GiB`."""
    counts = f"{of.last} GPU" if of.last == 1 else f"{range_counts(of)} GPUs"
    if of.bundle is not UNSET:
        counts = str(of.bundle)
    return f"{counts}: {range_reason(of)}"


def range_counts(of: DoesNotFit) -> str:
    """Returns `1 to 2`, or the one count."""
    return f"{of.first}" if of.first == of.last else f"{of.first} to {of.last}"


def range_reason(of: DoesNotFit) -> str:
    """Returns why these counts do not fit: the nearest one's memory and the limit."""
    if of.least_bytes is None or of.limit_bytes is None:
        return of.reason
    verb = "does not fit" if of.last == 1 else "do not fit"
    need = "needs" if of.nearest_gpus == 1 else "need"
    who = "" if of.first == of.last else f"{of.nearest_gpus} "
    least, limit = _apart(of.least_bytes / 2**30, of.limit_bytes / 2**30)
    return f"{verb}; {who}{need} {least} of {limit} GiB"


def _apart(a: float, b: float) -> tuple[str, str]:
    """Returns two numbers with enough decimals to distinguish them, between one and four."""
    for decimals in range(1, 4):
        texts = f"{a:.{decimals}f}", f"{b:.{decimals}f}"
        if texts[0] != texts[1]:
            return texts
    return f"{a:.4f}", f"{b:.4f}"
