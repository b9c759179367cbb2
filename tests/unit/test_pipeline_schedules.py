"""Schedules of pipelines: their lists, and the sizes that they refuse."""

from __future__ import annotations

import pytest

from shardwise.errors import BadInput
from shardwise.pipeline.actions import Action, Kind, Schedule
from shardwise.pipeline.dependencies import check
from shardwise.pipeline.placement import Placement, Shape
from shardwise.pipeline.schedules import MAX_ACTIONS, schedule


def written(of: Schedule) -> list[str]:
    """The lists of all ranks in words; `+` before what runs beside the action before it."""
    return [" ".join("+" * a.with_previous + str(a) for a in rank) for rank in of.ranks]


def test_lists_of_two_ranks_as_the_papers_draw_them() -> None:
    assert written(schedule("gpipe", ranks=2, micro_batches=2)) == [
        "0F0 0F1 0B0 0B1",
        "1F0 1F1 1B0 1B1",
    ]
    assert written(schedule("1f1b", ranks=2, micro_batches=3)) == [
        "0F0 0F1 0B0 0F2 0B1 0B2",
        "1F0 1B0 1F1 1B1 1F2 1B2",
    ]
    assert written(schedule("interleaved", ranks=2, stages_per_rank=2, micro_batches=2)) == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    ]
    assert written(schedule("zb-h1", ranks=2, micro_batches=3)) == [
        "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2",
        "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2",
    ]
    assert written(schedule("zbv", ranks=2, micro_batches=3)) == [
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2",
        "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2",
    ]
    assert written(schedule("dualpipev", ranks=1, micro_batches=2)) == [
        "0F0 1F0 0F1 1B0 1F1 +0B0 1B1 0I1 0W1"
    ]


def test_an_eager_schedule_runs_ahead_by_two_forwards_for_each_rank_behind() -> None:
    eager = schedule("1f1b-eager", ranks=3, micro_batches=6)
    assert [[a.kind for a in rank].index(Kind.BACKWARD) for rank in eager.ranks] == [5, 3, 1]


def test_placements() -> None:
    loop, v = Placement(3, 2), Placement(3, 3, Shape.V)
    assert [loop.stages_of(rank) for rank in range(3)] == [(0, 3), (1, 4), (2, 5)]
    assert [v.stages_of(rank) for rank in range(3)] == [(0, 5, 6), (1, 4, 7), (2, 3, 8)]
    for placement in (loop, v):
        for rank in range(3):
            assert {placement.rank_of(s) for s in placement.stages_of(rank)} == {rank}


@pytest.mark.parametrize(
    ("name", "ranks", "chunks", "micro_batches", "field", "message"),
    [
        ("2f2b", 2, None, 4, "schedule", "unknown schedule '2f2b' (expected gpipe, 1f1b,"),
        ("gpipe", 0, None, 4, "ranks", "got 0 (expected at least 1)"),
        ("gpipe", 2, None, 0, "micro_batches", "got 0 (expected at least 1)"),
        ("interleaved", 2, 0, 4, "stages_per_rank", "got 0 (expected at least 1)"),
        ("1f1b", 2, 2, 4, "stages_per_rank", "1f1b has 1 stages per rank, got 2 (expected 1)"),
        ("zbv", 2, 1, 4, "stages_per_rank", "zbv has 2 stages per rank, got 1 (expected 2)"),
        ("interleaved", 2, 2, 5, "micro_batches", "into 2 rounds of at least 2 (expected for"),
        ("zb-h1", 3, 1, 11, "micro_batches", "for example 9 or 12"),
        ("dualpipev", 2, 2, 3, "micro_batches", "each of 4 stages, got 3 (expected at least 4)"),
        ("gpipe", 2, None, MAX_ACTIONS, "micro_batches", "are too many"),
    ],
)
def test_sizes_that_a_schedule_does_not_allow(
    name: str, ranks: int, chunks: int | None, micro_batches: int, field: str, message: str
) -> None:
    with pytest.raises(BadInput) as refused:
        schedule(name, ranks=ranks, stages_per_rank=chunks, micro_batches=micro_batches)
    assert refused.value.field == field
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ("0F0|1F0 1B0", "ranks[0]: stage 0 has 1 F of micro-batch 0 (expected one F, and one B"),
        ("0F0 0B0|1F0 1I0", "ranks[1]: stage 1 has 1 F, 1 I of micro-batch 0"),
        ("0F0 0F0 0B0|1F0 1B0", "ranks[0]: stage 0 has 2 F, 1 B of micro-batch 0"),
        ("0F0 0B0|", "ranks[1]: stage 1 has nothing of micro-batch 0"),
        ("0F0 0B0 1F0|1B0", "ranks[0][2]: 1F0 is on rank 0 (expected rank 1"),
        ("0F0 0B0|2F0", "ranks[1][0]: 2F0 is of no stage (expected a stage below 2)"),
        ("0F1 0B0|1F0 1B0", "ranks[0][0]: 0F1 is of no micro-batch"),
    ],
)
def test_lists_that_leave_something_out_or_do_it_twice(lists: str, message: str) -> None:
    ranks = tuple(
        tuple(Action(Kind(word[1]), int(word[0]), int(word[2])) for word in rank.split())
        for rank in lists.split("|")
    )
    with pytest.raises(BadInput) as refused:
        check(Schedule("of a test", Placement(2), 1, ranks))
    assert message in str(refused.value)
