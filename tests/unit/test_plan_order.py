"""Plans in an order of execution other than the program's."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from harness.graph_builder import ADD, GraphBuilder
from harness.kinds import FAST, SLOW, profile
from shardwise import documents
from shardwise.answers import Options, explain, plan
from shardwise.answers import order as orders
from shardwise.documents import Plan
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.graph.order import OperatorOrder, require_order
from shardwise.hardware import load_hardware

ONE_EACH = [("a", "fast", 1, 1), ("b", "slow", 1, 1)]
ONE_BATCH = Options(micro_batches=(1,), recompute="never", zero=(0,), time_limit_s=5.0)


def towers(width: int = 1024, batch: int = 64) -> Graph:
    """A tower of one product and one of four, whose results are added; the short one is first."""
    builder = GraphBuilder("towers")
    builder.input("x", batch, width)
    ends = []
    for name, layers in (("short", 1), ("long", 4)):
        data = "x"
        for n in range(layers):
            weight = builder.parameter(f"{name}_w{n}", width, width)
            data = builder.linear(f"{name}{n}", data, weight, f"{name}_h{n}")
        ends.append(data)
    builder.both("sum", ADD, *ends, "y")
    return builder.graph()


@pytest.fixture(scope="module")
def graph() -> Graph:
    return towers()


def test_on_one_kind_the_order_is_the_programs_unless_asked(graph: Graph) -> None:
    hardware = load_hardware("dgx-v100-16gb")
    plain = plan(graph, hardware, 2, options=ONE_BATCH)
    assert plain.schedule is msgspec.UNSET
    assert plain.order == [op.name for op in graph.operators]
    asked = plan(graph, hardware, 2, order="program", options=ONE_BATCH)
    assert (asked.id, asked.order, asked.predicted) == (plain.id, plain.order, plain.predicted)
    with pytest.raises(BadInput, match="unknown order 'best'"):
        plan(graph, hardware, 2, order="best", options=ONE_BATCH)


def test_a_plan_by_rank_says_its_order_and_what_it_brings(graph: Graph) -> None:
    hardware = load_hardware("dgx-v100-16gb")
    program = plan(graph, hardware, 2, options=ONE_BATCH)
    ranked = plan(graph, hardware, 2, order="rank", options=ONE_BATCH)
    schedule = ranked.schedule
    assert schedule and schedule.kind == "rank"
    require_order(OperatorOrder(tuple(ranked.order), tuple(schedule.backward)), graph)
    assert ranked.order[0] == "long0"
    assert schedule.program_time_s == program.predicted.replayed_time_s
    assert schedule.program_peak_bytes == program.predicted.peak_bytes
    assert ranked.id != program.id
    # The bound is one of the program's order, and so is the gap.
    assert ranked.predicted.gap == program.predicted.gap
    assert ranked.predicted.time_s == program.predicted.time_s
    assert any("by upward rank" in line for line in explain(ranked).text)
    assert documents.read(msgspec.to_builtins(ranked), Plan) == ranked


def test_on_several_kinds_the_better_order_is_taken(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a slower one, and never one that does not fit."""
    hardware = profile(ONE_EACH, {"fast": FAST, "slow": SLOW})
    answers = {
        order: plan(graph, hardware, "a=1,b=1", order=order, options=ONE_BATCH)
        for order in ("program", "rank", None)
    }
    times = {order: answer.predicted.replayed_time_s for order, answer in answers.items()}
    assert times[None] <= times["program"]
    better = times["rank"] <= times["program"] * (1 - orders.LEAST_GAIN)
    assert times[None] == (times["rank"] if better else times["program"])
    assert bool(answers[None].schedule) == better
    assert answers["rank"].schedule
    monkeypatch.setattr(orders, "LEAST_GAIN", -10.0)
    always = plan(graph, hardware, "a=1,b=1", options=ONE_BATCH)
    assert always.schedule and always.order == answers["rank"].order
    for place in always.cluster.places:  # type: ignore[union-attr]
        assert place.peak_bytes <= place.memory_limit_bytes
    assert np.max([p.compute_s for p in always.cluster.places]) <= times["rank"]  # type: ignore[union-attr]
