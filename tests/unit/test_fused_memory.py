"""Memory by kernels: what several operators that run as one pass keep, and what they never make."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.graph_builder import MUL, GraphBuilder
from harness.strategies import problem_of
from shardwise.answers import Options
from shardwise.cost.assemble import SearchProblem
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import load_hardware
from shardwise.replay.replay import Replayer

BATCH, WIDTH, CLASSES = 4096, 512, 4096
TENSOR = BATCH * WIDTH * 4.0
SCORES = BATCH * CLASSES * 4.0


def chain() -> Graph:
    """A product h, then a = tanh(h), b = a * h, c = b * b, then a product of c."""
    builder = GraphBuilder("chain")
    builder.input("x", BATCH, WIDTH)
    builder.parameter("w1", WIDTH, WIDTH)
    builder.linear("one", "x", "w1", "h")
    builder.operator("a", "aten.tanh.default", {"self": "h"}, "a", (BATCH, WIDTH), "m")
    builder.both("b", MUL, "a", "h", "b", "m")
    builder.both("c", MUL, "b", "b", "c", "m")
    builder.parameter("w2", WIDTH, WIDTH)
    builder.linear("two", "c", "w2", "y")
    return builder.graph()


def classifier() -> Graph:
    """A product, scaled, and the loss of its scores."""
    builder = GraphBuilder("classifier")
    builder.input("x", BATCH, WIDTH)
    builder.input("labels", BATCH)
    builder.parameter("w", CLASSES, WIDTH)
    builder.linear("head", "x", "w", "scores")
    builder.operator("scale", "aten.tanh.default", {"self": "scores"}, "s", (BATCH, CLASSES), "")
    builder.operator(
        "loss", "aten.cross_entropy_loss.default", {"self": "s", "target": "labels"}, "l", (), ""
    )
    return builder.graph()


def _problem(graph: Graph, kernels: str, loss: str | None = None) -> SearchProblem:
    options = Options(kernels=kernels, loss=loss, recompute="never", micro_batches=(1,))
    return problem_of(graph, load_hardware("l4"), 1, options)


def _kept_bytes(problem: SearchProblem) -> float:
    """What the one strategy of one device keeps for backward, in groups and on edges."""
    groups = sum(float(cost.activation_bytes[0]) for cost in problem.costs)
    return groups + sum(float(edge.table.memory_bytes[0, 0, 0]) for edge in problem.edges)


def _peak_bytes(problem: SearchProblem) -> float:
    choices = np.zeros((1, len(problem.costs)), dtype=np.uint32)
    edges = np.zeros((1, len(problem.edges)), dtype=np.uint32)
    replayer = Replayer(problem, problem.context.options.step)
    return float(replayer.replay(choices, edges).peak_bytes[0])


@pytest.mark.parametrize(
    ("kernels", "tensors"),
    [
        # x and c for the products' weights, h and a for the first factors, b for the square.
        ("eager", 5),
        # x, c, and h: a and b are computed again from it.
        ("compiled", 3),
        ("fused", 3),
    ],
)
def test_a_pass_keeps_what_it_reads(kernels: str, tensors: int) -> None:
    problem = _problem(chain(), kernels)
    assert _kept_bytes(problem) == tensors * TENSOR
    in_memory = problem.context.patterns.is_in_memory
    assert [name for name in "xhabcy" if in_memory(name)] == list(
        "xhabcy" if tensors == 5 else "xhcy"
    )


def test_what_a_pass_makes_for_itself_takes_no_memory() -> None:
    eager, compiled = (_peak_bytes(_problem(chain(), kernels)) for kernels in ("eager", "compiled"))
    # At the end of forward there are x, h, a, b, c, and y, or x, h, c, and y; then the gradients.
    assert eager - compiled == pytest.approx(2 * TENSOR)


def test_operators_of_two_modules_are_no_pass_of_a_library() -> None:
    graph = chain()
    builder = GraphBuilder("apart")
    builder.tensors = dict(graph.tensors)
    builder.operators = [
        replace(op, scope="other") if op.name == "c" else op for op in graph.operators
    ]
    # The square is apart and keeps b, which leaves the pass of the other two.
    assert _kept_bytes(_problem(builder.graph(), "fused")) == 4 * TENSOR


def test_an_activation_function_is_part_of_the_module_that_calls_it() -> None:
    graph = chain()
    builder = GraphBuilder("called")
    builder.tensors = dict(graph.tensors)
    builder.operators = [
        replace(op, scope="m.act_fn") if op.name == "a" else op for op in graph.operators
    ]
    # As a SwiGLU: x, c, and h; the activation is computed again.
    assert _kept_bytes(_problem(builder.graph(), "fused")) == 3 * TENSOR


def test_a_librarys_loss_works_in_place() -> None:
    eager, fused = (_peak_bytes(_problem(classifier(), kernels)) for kernels in ("eager", "fused"))
    # Eager makes a gradient of the logarithms that it keeps, and a copy of it.
    assert eager - fused == pytest.approx(2 * SCORES, rel=1e-4)


def test_a_compiled_loss_keeps_the_scores_alone() -> None:
    eager, compiled = (_problem(classifier(), kernels) for kernels in ("eager", "compiled"))
    # The scaling keeps what it has made; compiled it is made again from the scores.
    assert eager.context.patterns.is_in_memory("s")
    assert not compiled.context.patterns.is_in_memory("s")
    assert _kept_bytes(compiled) == pytest.approx(TENSOR + SCORES, rel=0.01)
    # At the loss's backward: the scores and their gradient alone.
    assert _peak_bytes(eager) - _peak_bytes(compiled) == pytest.approx(2 * SCORES, rel=1e-4)


@pytest.mark.parametrize(("loss", "scores"), [("in-place", 1.0), ("chunked", 0.0)])
def test_a_loss_is_as_it_is_said_to_be(loss: str, scores: float) -> None:
    said, as_kernels = _problem(classifier(), "eager", loss), _problem(classifier(), "eager")
    assert as_kernels.context.patterns.fusing.loss == "eager"
    # In chunks neither the product's scores nor the scaled ones are ever whole; what it reads is.
    in_memory = said.context.patterns.is_in_memory
    assert (in_memory("scores"), in_memory("s")) == (bool(scores), bool(scores))
    assert _kept_bytes(said) == pytest.approx(TENSOR + scores * SCORES, rel=0.01)
    if loss == "chunked":
        assert _peak_bytes(said) < SCORES


def test_kernels_decide_a_loss_that_is_not_said() -> None:
    losses = {
        kernels: Options(kernels=kernels).fusing.loss for kernels in ("eager", "compiled", "fused")
    }
    assert losses == {"eager": "eager", "compiled": "compiled", "fused": "in-place"}
    with pytest.raises(BadInput, match="unknown loss 'liger'"):
        Options(loss="liger")
