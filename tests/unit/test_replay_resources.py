"""Tapes over any resources, at the boundary to the solver; the rules are tested in Rust."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise import _core
from shardwise.replay.record import ALWAYS, Cell, Order
from shardwise.replay.tape import BEFORE, COMMUNICATION, COMPUTE, Tape

LIMIT = np.array([10.0, np.inf])


def two_classes(order: Order) -> Tape:
    """A task of both classes, and one that frees what the first class has had before."""
    tape = Tape()
    other = tape.resource(order)
    both = tape.task("both", (COMMUNICATION, other), 1.0)
    freeing = tape.task("freeing", other, 1.0)
    tape.task("after", COMPUTE, 2.0, (both,))
    before = tape.buffer("before", BEFORE, 6.0)
    tape.use(before, freeing)
    tape.buffer("here", both, 8.0)
    tape.buffer("there", both, 3.0, device_class=1)
    return tape


def values(tape: Tape, points: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every value of these tapes is constant."""
    return (
        np.tile(np.array(tape.durations, dtype=np.float64), (points, 1)),
        np.tile(np.array(tape.sizes, dtype=np.float64), (points, 1)),
        np.zeros((points, 0), dtype=bool),
    )


def test_busy_times_are_per_resource_and_peaks_per_class() -> None:
    tape = two_classes("rank")
    program = tape.program([0, 2])
    assert (program.tasks, program.resources, program.device_classes) == (3, 3, 2)
    replays = program.replay(*values(tape, 2), block_bytes=1)
    assert replays.busy_s.tolist() == [[2.0, 1.0, 2.0]] * 2
    assert replays.class_peak_bytes.tolist() == [[14.0, 3.0]] * 2
    assert replays.class_peak_task.tolist() == [[0, 0]] * 2
    assert replays.peak_bytes.tolist() == [14.0, 14.0]
    assert replays.peak_task.tolist() == [0, 0]
    assert replays.mark_end_s.tolist() == [[1.0, 3.0]] * 2
    assert tape.streams == [COMMUNICATION, 2, COMPUTE]


def test_a_limit_holds_where_resources_keep_within_memory() -> None:
    for order, starts, peak in (("rank", [0, 1, 1], 14), ("rank-within-memory", [1, 0, 2], 8)):
        tape = two_classes(order)
        rows = [row[0] for row in values(tape)]
        replays, timeline = tape.program().trace(*rows, block_bytes=1, limits_bytes=LIMIT)
        assert timeline.start_s.tolist() == starts
        assert replays.class_peak_bytes.tolist() == [[peak, 3]]
        assert [at.tolist() for at in timeline.class_at_peak][1] == [2]
        assert timeline.held_bytes.tolist() == timeline.class_held_bytes.sum(axis=1).tolist()


def conditional() -> tuple[Tape, int]:
    """A move before the last computation, where both of two flags are set."""
    tape = Tape()
    both = tape.both(tape.flag(Cell(0, 0, 0)), tape.flag(Cell(0, 0, 1)))
    first = tape.task("first", COMPUTE, 1.0)
    move = tape.task("move", COMMUNICATION, 4.0, (first,), condition=both)
    tape.task("last", COMPUTE, 2.0, (move,), condition=ALWAYS)
    tape.use(tape.buffer("moved", first, 8.0), move)
    tape.use(tape.buffer("other", BEFORE, 16.0), move, tape.flag(Cell(0, 0, 0)))
    return tape, move


def test_a_task_takes_part_only_under_its_condition() -> None:
    tape, move = conditional()
    durations, sizes, _ = values(tape, 3)
    flags = np.array([[True, True], [True, False], [False, True]])
    program = tape.program([move])
    replays = program.replay(durations, sizes, flags, block_bytes=1)
    assert replays.time_s.tolist() == [7.0, 3.0, 3.0]
    assert replays.busy_s.tolist() == [[3.0, 4.0], [3.0, 0.0], [3.0, 0.0]]
    assert replays.mark_end_s.tolist() == [[5.0], [0.0], [0.0]]
    assert replays.peak_bytes.tolist() == [24.0, 8.0, 8.0]
    _, timeline = program.trace(durations[0], sizes[0], flags[1], block_bytes=1)
    assert timeline.start_s.tolist() == [0.0, 0.0, 1.0]
    assert timeline.end_s.tolist() == [1.0, 0.0, 3.0]
    lengths, members = program.longest_paths(durations)
    assert lengths.tolist() == [3.0] * 3
    assert members.tolist() == [[True, False, True]] * 3


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ([[1, 0, 0]], r"conditions must be \(task, flag\) in the shape \(N, 2\)"),
        ([[-1, 0]], "numbers of at least 0"),
        ([[1, ALWAYS]], "numbers of at least 0"),
        ([[2, 0]], "unknown task 2 in conditions"),
        ([[1, 1]], "unknown flag 1 in conditions"),
        ([[1, 0], [1, 0]], "task 1 has two conditions"),
        ([[0, 0]], "conditional task 0 holds resource 0, which keeps the program's order"),
    ],
)
def test_conditions_that_do_not_fit_are_named(conditions: list[list[int]], message: str) -> None:
    none = np.zeros((0, 2), dtype=np.uint32)
    with pytest.raises(ValueError, match=message):
        _core.Program(
            tasks=2,
            resources=["program", "rank"],
            holds=np.array([[0, COMPUTE], [1, COMMUNICATION]], dtype=np.uint32),
            dependencies=none,
            makers=np.zeros(0, dtype=np.int32),
            lasting=np.zeros(0, dtype=bool),
            uses=np.zeros((0, 3), dtype=np.int32),
            given_flags=1,
            both=none,
            marks=np.zeros(0, dtype=np.uint32),
            conditions=np.array(conditions, dtype=np.int32),
        )


def test_a_task_that_makes_a_buffer_has_no_condition() -> None:
    tape, move = conditional()
    tape.buffer("made", move, 1.0)
    with pytest.raises(ValueError, match="conditional task 1 allocates a buffer"):
        tape.program()


def test_no_strategies_give_empty_arrays() -> None:
    tape = two_classes("rank")
    replays = tape.program([0]).replay(*values(tape, 0))
    shapes = [replays.busy_s.shape, replays.class_peak_bytes.shape, replays.mark_end_s.shape]
    assert shapes == [(0, 3), (0, 2), (0, 1)]


def test_what_does_not_fit_is_named() -> None:
    tape = two_classes("rank")
    with pytest.raises(ValueError, match="expected 2 memory limits, one per device class, got 1"):
        tape.program().replay(*values(tape), limits_bytes=np.array([1.0]))
    tape.resources[2] = "urgency"  # type: ignore[call-overload]
    with pytest.raises(ValueError, match='unknown order "urgency" in resources'):
        tape.program()
    tape = two_classes("rank")
    tape.task("on nothing", (), 1.0)
    with pytest.raises(ValueError, match="task 3 holds no resource"):
        tape.program()
    tape = two_classes("rank")
    tape.task("on what is not there", 9, 1.0)
    with pytest.raises(ValueError, match="unknown task 3 or resource 9 in holds"):
        tape.program()
