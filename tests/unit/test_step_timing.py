"""What a step's communication takes, by the collectives of all ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from shardwise.execute.timing import Parts, communication_s

pytestmark = pytest.mark.torch


def parts(copies_s: float, *collectives_s: float) -> Parts:
    return Parts(1.0, copies_s, collectives_s, {})


def test_a_collective_of_one_program_takes_as_long_as_on_its_slowest_rank() -> None:
    """Tables of a profile say so too. Copies are each rank's own."""
    ranks = [[parts(0.5, 1.0, 4.0)], [parts(1.5, 3.0, 2.0)]]
    assert communication_s(ranks, one_program=True) == 1.0 + 3.0 + 4.0


def test_ranks_of_several_programs_have_their_own_collectives() -> None:
    ranks = [[parts(0.5, 1.0, 4.0)], [parts(0.0, 3.0)]]
    assert communication_s(ranks, one_program=False) == (5.5 + 3.0) / 2


def test_one_slow_step_of_three_does_not_count() -> None:
    ranks = [[parts(0.0, 1.0), parts(0.0, 90.0), parts(0.0, 1.0)]] * 2
    assert communication_s(ranks, one_program=True) == 1.0
