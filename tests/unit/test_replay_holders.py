"""Names of several buffers: steps are the same, and their programs stay short."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from harness.models.shortened import shortened
from harness.strategies import problem_of, random_strategies
from shardwise import _core
from shardwise.capture import shipped_graph
from shardwise.cost.options import Options
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware
from shardwise.replay import holders
from shardwise.replay.moments import Moments
from shardwise.replay.record import Cell
from shardwise.replay.replay import Replayer
from shardwise.replay.tape import BEFORE, COMPUTE, Tape

MANY = 30
ANY_NUMBER = 10**9


@pytest.mark.parametrize(
    ("model", "gpus", "micro_batches", "split"),
    [("gpt2", 8, 4, False), ("gpt2", 4, 1, True), ("llama-8b", 8, 1, False)],
)
def test_names_change_no_step(
    model: str, gpus: int, micro_batches: int, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, hardware = shortened(model, 4), load_hardware("dgx-h100")
    options = Options(max_configurations=40)
    problem = problem_of(graph, hardware, gpus, options, micro_batches)
    strategies = random_strategies(problem, MANY, np.random.default_rng(7))
    named = Replayer(problem, options.step, split=split)
    monkeypatch.setattr(holders, "FEW", ANY_NUMBER)
    listed = Replayer(problem, options.step, split=split)
    assert len(listed.tape.keeps) == 0 < len(named.tape.keeps)
    assert len(named.tape.uses) < len(listed.tape.uses)
    one, other = (replayer.replay(*strategies) for replayer in (named, listed))
    assert one.time_s.tolist() == other.time_s.tolist()
    assert one.peak_bytes.tolist() == other.peak_bytes.tolist()
    surely, without = (_held(replayer) for replayer in (named, listed))
    assert [a.tolist() for a in surely] == [b.tolist() for b in without]


def _held(replayer: Replayer) -> list[np.ndarray]:
    held = Moments(replayer).held(replayer.last_backward)
    return [np.array(held.constant), *held.groups, *held.edges]


def test_a_name_holds_the_buffers_whose_flags_are_set() -> None:
    tape = Tape()
    first = tape.task("first", COMPUTE, 1.0)
    flags = [tape.flag(Cell(0, 0, column)) for column in range(2)]
    large, small = tape.buffer("large", first, 32.0), tape.buffer("small", first, 8.0)
    inner = tape.either([(large, flags[0])])
    outer = tape.either([(inner, flags[1]), (small, flags[0])])
    second = tape.task("second", COMPUTE, 1.0, (first,))
    tape.buffer("made", second, 1.0)
    last = tape.task("last", COMPUTE, 1.0, (second,))
    tape.use(outer, last)
    assert tape.used() == {large, small, inner, outer}
    of_flags = np.array([[False, False], [True, False], [False, True], [True, True]])
    durations = np.ones((4, 3))
    sizes = np.tile(np.array(tape.sizes), (4, 1))
    held = []
    for row, flag in enumerate(of_flags):
        _, timeline = tape.program().trace(durations[row], sizes[row], flag, block_bytes=1)
        held.append(timeline.held_bytes.ravel().tolist())
    assert held == [[40, 1, 0], [40, 9, 8], [40, 1, 0], [40, 41, 40]]


def test_what_cannot_be_kept_is_named() -> None:
    none = np.zeros((0, 2), dtype=np.uint32)
    for keeps, message in (
        ([[0, 1, -1]], "buffer 0 cannot keep buffer 1"),
        ([[1, 0, 0]], "unknown flag 0 in keeps"),
        ([[1, 0]], r"keeps must be \(buffer, kept buffer, flag\) in the shape \(N, 3\)"),
    ):
        with pytest.raises(ValueError, match=message):
            _core.Program(
                tasks=0,
                resources=["program"],
                holds=none,
                dependencies=none,
                makers=np.full(2, BEFORE, dtype=np.int32),
                lasting=np.zeros(2, dtype=bool),
                uses=np.zeros((0, 3), dtype=np.int32),
                given_flags=0,
                both=none,
                marks=np.zeros(0, dtype=np.uint32),
                keeps=np.array(keeps, dtype=np.int32),
            )


def test_no_gradient_is_used_once_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual stream's gradient may lie in a buffer of each layer behind."""
    graph, hardware = read_graph(shipped_graph("gpt2")), load_hardware("dgx-h100")
    options = Options(max_configurations=20)
    problem = problem_of(graph, hardware, 4, options, 1)
    most = []
    for few in (holders.FEW, ANY_NUMBER):
        monkeypatch.setattr(holders, "FEW", few)
        tape = Replayer(problem, options.step).tape
        uses = Counter(buffer for buffer, _, _ in tape.uses)
        of_gradients = [n for b, n in uses.items() if "gradient" in tape.buffer_labels[b]]
        most.append(max(of_gradients))
    assert 4 * most[0] < most[1]
