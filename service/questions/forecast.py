"""When a running job will end: by its estimate at first, then more and more by its own progress.

    whole = estimate^(1-w) · (elapsed / progress)^w,    w = progress / (progress + HALF)

`elapsed` is the time at which it had made that progress, so that the end stays where it is between
two reports. Of kinds that report progress of parts of their work, it only says how much longer than
its estimate a job takes that has outrun it, and then of at most `AGAIN` times what it has taken.
"""

from __future__ import annotations

HALF = 0.02
"""The progress at which it says as much as the estimate."""

OVERDUE = 0.1
"""Share of its time that a job which exceeds what was expected of it takes further, at least; of
that the share that its progress leaves."""

AGAIN = 1.0

WHOLE = ("curve", "quote")
"""Kinds whose progress is a share of all of their work."""


def left_s(
    kind: str, cost_s: float, since_s: float, progress: float, progressed_s: float | None = None
) -> float:
    """Returns the seconds that a job is still expected to take after `since_s`.

    `cost_s` is its estimate; it had made its `progress` after `progressed_s` (None: just now).
    """
    least_s = OVERDUE * since_s
    by_progress_s = (since_s if progressed_s is None else progressed_s) / max(progress, 1e-9)
    if kind in WHOLE:
        weight = progress / (progress + HALF) if by_progress_s > 0.0 else 0.0
        whole_s = float(cost_s ** (1.0 - weight) * by_progress_s**weight)
        return max(whole_s - since_s, least_s * (1.0 - progress))
    if since_s < cost_s:
        return max(cost_s - since_s, least_s)
    return max(min(by_progress_s - since_s, AGAIN * since_s), least_s)
