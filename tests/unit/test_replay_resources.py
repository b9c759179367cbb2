"""Tapes over any resources, at the boundary to the solver; the rules are tested in Rust."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.replay.tape import BEFORE, COMMUNICATION, COMPUTE, Order, Tape

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
