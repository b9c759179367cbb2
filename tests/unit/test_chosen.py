"""What is proven of a choice among searches: the least of their bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardwise.search.chosen import Chosen, time_gap
from shardwise.search.search import Search


def search(bound_s: float, time_s: float) -> Search:
    """A search of one number of micro-batches, of one strategy, with what is proven of it."""
    proof = SimpleNamespace(bound_s=lambda limit_bytes: bound_s)
    replayed = SimpleNamespace(time_s=[time_s])
    return cast(Search, SimpleNamespace(proof=proof, limit_bytes=1.0, replayed=replayed))


def test_a_gap_is_to_the_least_bound_of_all_searches() -> None:
    """Another number of micro-batches may hold a faster strategy than the one that was found."""
    searches: list[Any] = [search(1.0, 2.0), search(1.8, 1.9), search(1.5, 3.0)]
    gaps = [time_gap(searches, Chosen(one, 0)) for one in searches]
    assert gaps == pytest.approx([1.0, 0.9, 2.0])
    assert time_gap(searches[1:], Chosen(searches[1], 0)) == pytest.approx(1.9 / 1.5 - 1.0)


def test_where_one_search_proves_nothing_nothing_is_proven() -> None:
    searches: list[Any] = [search(1.0, 2.0), search(0.0, 2.0)]
    unproven = SimpleNamespace(
        proof=None,
        limit_bytes=1.0,
        solution=SimpleNamespace(time_lower_bound_s=None, exact=False, epsilon=float("inf")),
        fastest_within=lambda limit_bytes: None,
    )
    assert time_gap(searches, Chosen(searches[0], 0)) is None
    assert time_gap([searches[0], cast(Search, unproven)], Chosen(searches[0], 0)) is None
