"""Certificates of answers, and the customary strategies that a search leaves out.

A proof is about the searched space. If that lacks strategies with which such models are trained,
the answer names them instead of claiming a proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

from msgspec import UNSET
from msgspec.structs import replace

from shardwise.documents.common import EXPERT_PARALLELISM, Certificate
from shardwise.search.chosen import Chosen, axes, fastest, gap_at, time_gap
from shardwise.search.gaps import Gaps
from shardwise.search.mixed.search import MixedSearch
from shardwise.search.search import Search, Subject
from shardwise.search.solution import STATUSES

NOTHING = Certificate(exact=False, epsilon=None, status="heuristic")
"""The certificate of an answer without a proof."""


def not_searched(subject: Subject, *, several_kinds: bool = False) -> list[str]:
    """Returns the customary strategies for such a model that the search leaves out, on one kind of
    devices or several."""
    left_out = subject.has_experts and (several_kinds or not subject.routes_rows)
    return [EXPERT_PARALLELISM] if left_out else []


def left_out(searches: Sequence[Search]) -> list[str]:
    """Returns the strategies that searches of a model leave out."""
    search = searches[0]
    return not_searched(search.subject, several_kinds=isinstance(search, MixedSearch))


def gap(searches: Sequence[Search], chosen: Chosen) -> float | None:
    """Returns an upper bound on the chosen point's distance from the optimum (`time_gap`), or
    None."""
    return None if left_out(searches) else time_gap(searches, chosen)


def gap_within(searches: Sequence[Search], chosen: Chosen) -> float | None:
    """Returns how much faster a strategy with no higher peak may be (`gap_at`), or None."""
    return None if left_out(searches) else gap_at(searches, chosen)


def certificate(searches: Sequence[Search], answer: Chosen | None = None) -> Certificate:
    """Returns a bound on the answer's distance from the true frontier of the searched space.

    The union of frontiers is as good as the worst of them. If replayed times were searched, epsilon
    is the gap of the `answer`, by default the fastest strategy that fits.
    """
    if left_out(searches):
        return NOTHING
    if all(search.proof is not None for search in searches):
        return _replayed_certificate(searches, answer or fastest(searches))
    epsilon = max(float(search.solution.epsilon) for search in searches)
    bounds = [
        float(bound) + search.problem.fixed_time_s
        for search in searches
        if (bound := search.solution.time_lower_bound_s) is not None
    ]
    return Certificate(
        exact=all(search.solution.exact for search in searches),
        epsilon=epsilon if isfinite(epsilon) else None,
        status=_worst_status(searches),
        time_lower_bound_s=min(bounds) if len(bounds) == len(searches) else UNSET,
    )


def frontier_certificate(searches: Sequence[Search], points: Sequence[Chosen]) -> Certificate:
    """Returns a bound on the points' distance from the true frontier of the searched space.

    For replayed times: for every memory from the first point's on, some point has at most 1 +
    epsilon times the memory and time of any strategy within it.
    """
    said = certificate(searches)
    if left_out(searches):
        return said
    proofs = [search.proof for search in searches if search.proof is not None]
    if len(proofs) < len(searches):
        return said
    if not points:
        return replace(said, epsilon=None)
    epsilon = float(Gaps.between(proofs, *axes(points)).epsilon.max())
    status = _status(searches, epsilon)
    return replace(said, epsilon=epsilon if isfinite(epsilon) else None, status=status)


def _replayed_certificate(searches: Sequence[Search], best: Chosen | None) -> Certificate:
    bound = min(s.proof.bound_s(s.limit_bytes) for s in searches if s.proof is not None)
    epsilon = None if best is None else time_gap(searches, best)
    return Certificate(
        exact=False,
        epsilon=epsilon,
        status=_status(searches, epsilon),
        time_lower_bound_s=bound if 0.0 < bound < inf else UNSET,
    )


def _status(searches: Sequence[Search], epsilon: float | None) -> str:
    """Returns the worst status of the searches; `budget` if the gap is above the target."""
    status = _worst_status(searches)
    if status == "within_epsilon" and (epsilon or 0.0) > searches[0].options.epsilon:
        return "budget"
    return status


def _worst_status(searches: Sequence[Search]) -> str:
    return max((search.solution.status for search in searches), key=STATUSES.index)
