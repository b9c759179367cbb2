"""Orders of execution: what list scheduling gives, and that a step is replayed in them."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from harness.graph_builder import ADD, GraphBuilder
from harness.kinds import FAST, SLOW, mixed_search, profile
from harness.models.shortened import shortened
from harness.strategies import problem_of, random_strategies
from shardwise.answers import Options
from shardwise.cost.assemble import SearchProblem
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.graph.order import OperatorOrder, require_order
from shardwise.hardware import load_hardware
from shardwise.replay.replay import Replayer
from shardwise.replay.scheduling import KINDS, Kind, program_order, replayer_in, scheduled
from shardwise.search.mixed.search import MixedSearch

KIND_FIGURES = {"fast": FAST, "slow": SLOW}
TWO_KINDS = [("a", "fast", 1, 2), ("b", "slow", 2, 2)]
UNLIMITED = np.array([inf])
FEW = Options(zero=(0, 3), max_configurations=100)


def branches(short_first: bool = True) -> Graph:
    """A short and a long branch from one product to one sum."""
    builder = GraphBuilder("branches")
    builder.input("x", 64, 256)
    for name in ("w0", "s", "l0", "l1", "l2"):
        builder.parameter(name, 256, 256)
    builder.linear("stem", "x", "w0", "h")

    def short() -> None:
        builder.linear("short", "h", "s", "hs")

    if short_first:
        short()
    data = "h"
    for n in range(3):
        data = builder.linear(f"long{n}", data, f"l{n}", f"h{n}")
    if not short_first:
        short()
    builder.both("sum", ADD, data, "hs", "y")
    return builder.graph()


@pytest.fixture(scope="module")
def of_two_kinds() -> MixedSearch:
    graph = shortened("gpt2", 2)
    return mixed_search(graph, profile(TWO_KINDS, KIND_FIGURES), FEW)


def on_one(graph: Graph) -> SearchProblem:
    return problem_of(graph, load_hardware("dgx-a100-80gb"), 1, Options(recompute="never"))


def first_strategy(problem: SearchProblem) -> tuple[np.ndarray, np.ndarray]:
    choices, edges = random_strategies(problem, 1, np.random.default_rng(0))
    return choices[0], edges[0]


@pytest.mark.parametrize("short_first", [True, False])
def test_the_longer_branch_goes_first_and_backward_of_the_longer_rest_too(
    short_first: bool,
) -> None:
    problem = on_one(branches(short_first))
    strategy = first_strategy(problem)
    found = scheduled(problem, FEW.step, *strategy, "rank", UNLIMITED)
    forward, backward = found.order.forward, found.order.backward
    assert forward[:2] == ("stem", "long0") and forward[-1] == "sum"
    assert forward.index("short") > forward.index("long1")
    # Backward of the long branch has more to come, so it is not forward reversed.
    assert backward[:3] == ("sum", "long2", "long1") and backward[-1] == "stem"
    assert backward != forward[::-1]
    shallow = scheduled(problem, FEW.step, *strategy, "depth", UNLIMITED).order.forward
    assert shallow.index("short") < shallow.index("long1")
    fifo = scheduled(problem, FEW.step, *strategy, "fifo", UNLIMITED).order
    first = ["short", "long0"] if short_first else ["long0", "short"]
    assert list(fifo.forward[1:3]) == first


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_the_programs_order_is_what_is_replayed_without_one(micro_batches: int) -> None:
    """To the last bit, on one kind and on several."""
    graph = shortened("gpt2", 2)
    hardware = load_hardware("dgx-a100-80gb")
    problem = problem_of(graph, hardware, 4, FEW, micro_batches)
    choices, edges = random_strategies(problem, 3, np.random.default_rng(3))
    plain = Replayer(problem, FEW.step).replay(choices, edges)
    order = program_order(problem)
    ordered = replayer_in(problem, FEW.step, order, UNLIMITED).replay(choices, edges)
    for name in ("time_s", "peak_bytes", "exposed_s", "peak_task"):
        assert (getattr(plain, name) == getattr(ordered, name)).all(), name
    search = mixed_search(graph, profile(TWO_KINDS, KIND_FIGURES), FEW, micro_batches)
    choices, edges = random_strategies(search.problem, 1, np.random.default_rng(4))
    plain = search.replayer.replay(choices, edges)
    limits = search.mixed_replayer.limits_bytes
    found = scheduled(search.problem, FEW.step, choices[0], edges[0], "program", limits)
    for name in ("time_s", "peak_bytes", "exposed_s", "peak_task"):
        assert (getattr(plain, name) == getattr(found.replayed, name)).all(), name


@pytest.mark.parametrize("kind", KINDS[1:])
def test_orders_can_be_run_and_do_the_same_work(of_two_kinds: MixedSearch, kind: Kind) -> None:
    """An order changes when tasks run, not how long they take; and the same again is the same."""
    problem, limits = of_two_kinds.problem, of_two_kinds.mixed_replayer.limits_bytes
    choices, edges = random_strategies(problem, 2, np.random.default_rng(7))
    plain = of_two_kinds.replayer.replay(choices, edges)
    graph = problem.context.graph
    known = program_order(problem)
    for n in range(len(choices)):
        found = scheduled(problem, FEW.step, choices[n], edges[n], kind, limits)
        require_order(found.order, graph)
        assert sorted(found.order.backward) == sorted(known.backward)
        assert found.replayed.compute_s[0] == pytest.approx(plain.compute_s[n])
        assert found.replayed.communication_s[0] == pytest.approx(plain.communication_s[n])
        assert found.time_s >= max(found.replayed.compute_s[0], found.replayed.communication_s[0])
        assert found.peak_bytes > 0.5 * plain.peak_bytes[n]
    again = scheduled(problem, FEW.step, choices[n], edges[n], kind, limits)
    assert (again.order, again.time_s, again.peak_bytes) == (
        found.order,
        found.time_s,
        found.peak_bytes,
    )


def wide(branch_count: int = 6) -> Graph:
    """Branches that make much of little and little of it again, and keep nothing."""
    builder = GraphBuilder("wide")
    builder.input("x", 64, 8)
    builder.parameter("w", 8, 8)
    builder.linear("stem", "x", "w", "h")
    parts = []
    for n in range(branch_count):
        large = builder.operator(
            f"repeat{n}",
            "aten.repeat.default",
            {"self": "h"},
            f"r{n}",
            (64, 8192),
            repeats=[1, 1024],
        )
        parts.append(
            builder.operator(
                f"small{n}",
                "aten.sum.dim_IntList",
                {"self": large},
                f"s{n}",
                (64, 1),
                dim=[1],
                keepdim=True,
            )
        )
    total = parts[0]
    for n, part in enumerate(parts[1:]):
        total = builder.both(f"sum{n}", ADD, total, part, f"t{n}")
    return builder.graph()


def test_within_memory_operators_are_passed_over() -> None:
    problem = on_one(wide())
    strategy = first_strategy(problem)
    step = FEW.step
    free = scheduled(problem, step, *strategy, "rank", UNLIMITED)
    narrow = scheduled(problem, step, *strategy, "program", UNLIMITED)
    limit = np.array([narrow.peak_bytes])
    bounded = scheduled(problem, step, *strategy, "rank-within-memory", limit)
    assert free.peak_bytes > narrow.peak_bytes
    assert bounded.peak_bytes < free.peak_bytes


def test_what_cannot_be_run_is_refused() -> None:
    graph = branches()
    order = program_order(on_one(graph))
    require_order(order, graph)
    swapped = tuple({"stem": "sum", "sum": "stem"}.get(n, n) for n in order.forward)
    for bad, field, said in (
        (replace(order, forward=swapped), "order", "which it needs"),
        (replace(order, forward=order.forward[:-1]), "order", "lacks operator 'sum'"),
        (replace(order, forward=("stem", *order.forward)), "order", "'stem' twice"),
        (replace(order, backward=("none",)), "schedule.backward", "names 'none'"),
        (OperatorOrder(order.forward, order.forward), "schedule.backward", "makes its gradient"),
    ):
        with pytest.raises(BadInput) as caught:
            require_order(bad, graph)
        assert caught.value.field == field and said in str(caught.value)
    problem = on_one(graph)
    with pytest.raises(BadInput, match="unknown order 'best'"):
        scheduled(problem, FEW.step, *first_strategy(problem), "best", UNLIMITED)  # type: ignore[arg-type]
