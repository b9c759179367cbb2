"""Where ranks that saved different tensors recompute them: the same places, in the same order."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardwise.execute.agreement import Agreement, agreed  # noqa: E402

pytestmark = pytest.mark.torch


def test_a_thing_is_due_before_the_backward_of_the_last_that_wants_it_on_any_rank() -> None:
    here, there = ({(0, 3), (1, 5)}, set()), ({(0, 7), (1, 5)}, set())
    assert agreed([here, there]) == {7: [0], 5: [1]} == agreed([there, here])


def test_what_a_thing_is_made_from_is_due_with_it_and_comes_first() -> None:
    # 2 is made from 5, and 5 from 4 on one rank only: then 4 must be there by instruction 9.
    assert agreed([({(2, 9), (4, 1)}, {(5, 2)}), (set(), {(5, 2), (4, 5)})]) == {9: [4, 5, 2]}


def test_what_no_rank_wants_is_not_made() -> None:
    assert agreed([(set(), {(0, 1)}), ({(2, 0)}, set())]) == {0: [2]}


class _Thing:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def prepare(self) -> None:
        self.log.append(self.name)


def _step(agreement: Agreement, log: list[str]) -> Any:
    """Two instructions, each of which wants a thing; this rank saves that of the first."""
    run = agreement.begin()
    first, second = run.add(_Thing("first", log)), run.add(_Thing("second", log))
    assert (first, second) == (0, 1)
    x = torch.ones(2, requires_grad=True)
    run.now = 0
    (y,) = run.watch([x], [x * 2])
    run.wanted.add((first, 0))
    y.register_hook(lambda _: log.append("before the backward of 0"))
    run.now = 1
    (z,) = run.watch([y], [y])  # handed on
    agreement.end(run)
    return z.sum()


def test_hooks_of_the_first_pass_and_of_later_ones_make_what_was_agreed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = ({(0, 1), (1, 0)}, set())
    monkeypatch.setattr(
        "shardwise.execute.agreement._gather_pairs", lambda mine, mesh: [mine, other]
    )
    agreement, log = Agreement(), []
    for _ in range(2):
        log.clear()
        _step(agreement, log).backward()
        # The first is due with instruction 1, which hands on the result of 0.
        assert log == ["first", "second", "before the backward of 0"]


def test_where_all_ranks_saved_the_same_nothing_is_made_before_it_is_wanted() -> None:
    agreement, log = Agreement(), []
    run = agreement.begin()
    run.add(_Thing("first", log))
    run.wanted.add((0, 0))
    run.now = 0
    (y,) = run.watch([], [torch.ones(2, requires_grad=True) * 2])
    agreement.end(run)
    y.sum().backward()
    assert log == [] and run.things == {}
    assert agreement.begin().watch([], (y,)) == (y,)
