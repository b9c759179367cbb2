"""Operators measured on this CPU: legal operands, limits, siblings; plans that use the times."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from harness.answers import explain, plan
from harness.strategies import problem_of
from harness.tiers import some
from shardwise.answers import Options
from shardwise.capture import capture
from shardwise.cost.group_work import GroupWork
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import (
    Devices,
    Hardware,
    hardware_document,
    hardware_from_document,
    load_hardware,
)
from shardwise.hardware.operator_tables import OperatorFamily, OperatorTable
from shardwise.hardware.sources import MEASURED
from shardwise.measure.operators import (
    Effort,
    OperatorItem,
    add_operators,
    measure_operators,
    needed_operators,
)
from shardwise.measure.operators.bench import Bench, NoPeers
from shardwise.measure.operators.clock import Timing, cache_bytes, standard_error, timing
from shardwise.measure.operators.local_call import local_attributes
from shardwise.measure.operators.measuring import measure_with
from shardwise.measure.operators.siblings import SiblingLost, Siblings
from shardwise.measure.operators.tables import merged, tables_of
from shardwise.search.chosen import merge_frontiers
from shardwise.search.fitting import search_frontier
from shardwise.search.search import Subject

pytestmark = pytest.mark.torch

MLP = "zoo:mlp:layers=2,inputs=32,hidden=32"
GPT = "hf:GPT2Config:n_layer=2,n_embd=32,n_head=4,vocab_size=64"
LSTM = "zoo:lstm:layers=1,hidden=16,inputs=8,vocab=32,steps=3"
DLRM = "zoo:dlrm:rows=64,columns=8,tables=2,hidden=16"
ONE_BATCH = Options(micro_batches=(1,))
QUICK = Effort(time_limit_s=60.0, threads=1, flushed=False, own_time=True)


@cache
def graph(source: str) -> Graph:
    return capture(source, batch=8, seq=8 if source == GPT else None, dtype="float32")


def profile() -> Hardware:
    return replace(load_hardware("dgx-a100-80gb"), host=None)


def invented(items: tuple[OperatorItem, ...], hardware: Hardware) -> Hardware:
    """The profile with a time for every call: twice the roofline's."""
    device = hardware.devices[0]
    results = []
    for item in items:
        roofline = device.roofline_times(
            np.array([item.flops]), np.array([item.moved_bytes]), item.family.dtypes[0]
        )
        results.append((item, Timing(2.0 * float(roofline[0]), 0.01, 9)))
    tables = tables_of(results, Effort(kind=device.kind), 1)
    return replace(hardware, operators=tables)


# What is needed.


@pytest.mark.parametrize("source", some([MLP, GPT, LSTM], lambda source: source != GPT))
def test_every_call_that_plans_make_is_needed(source: str) -> None:
    """With all of them measured, nothing of a group's forward and backward is left to a model."""
    hardware = profile()
    items = needed_operators(graph(source), hardware, 4, of="all")
    assert len(set(items)) == len(items)
    assert [i.expected_s for i in items] == sorted((i.expected_s for i in items), reverse=True)
    document = plan(graph(source), invented(items, hardware), 4)
    stands_on = {
        op["compute_from"].get(direction)
        for group in document["groups"]
        for op in group["operators"]
        for direction in ("forward", "backward")
    }
    assert stands_on <= {"measured", None}
    assert document["predicted"]["compute_shares"]["measured"] > 0.5


@pytest.mark.parametrize("options", [Options(), Options(overlap=False)])
@pytest.mark.parametrize("source", some([MLP, GPT, LSTM], lambda source: source == MLP))
def test_the_frontier_needs_some_of_all_calls(source: str, options: Options) -> None:
    """Every point of the frontier is priced from the calls of its plans alone."""
    hardware, subject = profile(), Subject.of(graph(source))
    few = needed_operators(graph(source), hardware, 4, options)
    everything = needed_operators(graph(source), hardware, 4, options, of="all")
    assert set(few) < set(everything)
    priced = invented(few, hardware)
    points = merge_frontiers(search_frontier(subject, hardware, Devices.alike(4), options))
    problems = {
        count: problem_of(graph(source), priced, 4, options, count)
        for count in {chosen.search.micro_batches for chosen in points}
    }
    for chosen in points:
        problem = problems[chosen.search.micro_batches]
        for pattern, mine, theirs, choice in zip(
            problem.patterns,
            problem.costs,
            chosen.search.problem.costs,
            chosen.search.solution.choices[chosen.point],
            strict=True,
        ):
            row = (mine.assignment == theirs.assignment[choice]).all(axis=1)
            work = GroupWork(
                problem.context, pattern, mine.assignment[row][:1], mine.proportion[row][:1]
            )
            passes = work.compute()
            taken = passes.forward_s > 0
            assert (passes.forward_codes[taken] == MEASURED).all()
            assert (passes.backward_codes[passes.backward_s > 0] == MEASURED).all()


def test_calls_of_repeated_layers_are_needed_once() -> None:
    """Two layers need what one layer needs, but for how their first operands lie."""
    one = capture(GPT.replace("n_layer=2", "n_layer=1"), batch=8, seq=8, dtype="float32")
    few = needed_operators(one, profile(), 4, of="all")
    many = needed_operators(graph(GPT), profile(), 4, of="all")
    assert len(many) <= len(few) * 1.1


def test_views_need_no_calls_and_strides_are_part_of_a_call() -> None:
    items = needed_operators(graph(GPT), profile(), 2, ONE_BATCH, of="all")
    kinds = {item.family.kind for item in items}
    assert not any(".view" in kind or ".transpose" in kind for kind in kinds)
    (attention,) = {item.family.strides for item in items if "attention" in item.family.kind}
    assert attention == ("0,2x3,1,3",) * 3


def test_a_wrong_wish_is_refused() -> None:
    with pytest.raises(BadInput, match="operators-of"):
        needed_operators(graph(MLP), profile(), 2, of="some")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="gpus"):
        needed_operators(graph(MLP), profile(), 0, of="all")


def test_attributes_of_a_call_are_those_of_its_shapes() -> None:
    from shardwise.graph import Operator

    norm = Operator(
        "n", "aten.layer_norm.default", ("x",), ("y",),
        {"normalized_shape": [8], "tensor_arguments": ["input"]},
    )  # fmt: skip
    whole, local = ((4, 8), (4, 8)), ((2, 4), (2, 4))
    assert local_attributes(norm, whole, local) == {"normalized_shape": [4]}
    conv = Operator(
        "c", "aten.conv2d.default", ("x", "w"), ("y",),
        {"groups": 8, "stride": [1, 1], "tensor_arguments": ["input", "weight"]},
    )  # fmt: skip
    whole = ((1, 8, 5, 5), (8, 1, 3, 3), (1, 8, 5, 5))
    local = ((1, 4, 5, 5), (4, 1, 3, 3), (1, 4, 5, 5))
    assert local_attributes(conv, whole, local) == {"groups": 4, "stride": [1, 1]}
    fill = Operator("f", "aten.full.default", (), ("y",), {"size": [4, 8], "fill_value": 1.0})
    assert local_attributes(fill, ((4, 8),), ((4, 2),))["size"] == [4, 2]
    tile = Operator(
        "t", "aten.repeat.default", ("x",), ("y",),
        {"repeats": [2, 1], "tensor_arguments": ["self"]},
    )  # fmt: skip
    assert local_attributes(tile, ((8,), (2, 8)), ((4,), (1, 4)))["repeats"] == [1, 1]


# Measuring.


@pytest.mark.parametrize("source", some([MLP, GPT, LSTM, DLRM], lambda source: source == DLRM))
def test_all_calls_of_split_models_can_be_made(source: str) -> None:
    """Lookups, targets, masks, transposed operands: whatever splits make of shapes, they are legal.

    Repetitions are few: that the calls are made is what counts.
    """
    items = needed_operators(graph(source), profile(), 2, ONE_BATCH, of="all")
    measured = measure_operators(items, replace(QUICK, time_limit_s=300.0))
    assert measured.refused == ()
    assert sum(len(table.times_s) for table in measured.tables) == len(items)
    for table in measured.tables:
        assert min(table.times_s) > 0
        assert min(table.repetitions) >= 1
        assert table.threads == 1


def test_a_measured_profile_gives_measured_plans() -> None:
    hardware = profile()
    document, outcome = add_operators(hardware_document(hardware), graph(MLP), 1, effort=QUICK)
    assert not outcome.left
    measured = hardware_from_document(document, "measured.json")
    assert "operators" in measured.sources
    answer = plan(graph(MLP), measured, 1)
    shares = answer["predicted"]["compute_shares"]
    assert shares["modelled"] == 0.0
    # An update between two measured sizes is interpolated.
    assert shares["measured"] > 0.3
    assert sum(shares.values()) == pytest.approx(1.0)
    before = plan(graph(MLP), hardware, 1)["predicted"]
    assert before["compute_shares"] == {"measured": 0.0, "interpolated": 0.0, "modelled": 1.0}
    assert answer["predicted"]["compute_s"] != before["compute_s"]
    text = " ".join(explain(answer)["text"])
    assert "Compute time: " in text
    # Replay runs the same times: on one device nothing overlaps and nothing else takes time.
    assert answer["predicted"]["replayed_time_s"] == pytest.approx(
        answer["predicted"]["time_s"], rel=1e-6
    )
    again, _ = add_operators(document, graph(MLP), 1, effort=QUICK)
    assert _calls(again) == _calls(document)


def _calls(document: dict[str, Any]) -> set[tuple[OperatorFamily, Any]]:
    tables = hardware_from_document(document).operators
    return {(table.family, shapes) for table in tables for shapes in table.shapes}


def test_time_and_memory_are_limited() -> None:
    items = needed_operators(graph(MLP), profile(), 2, of="all")
    none = measure_operators(items, replace(QUICK, time_limit_s=1e-9))
    assert none.left == items
    assert none.tables == ()
    assert "left to interpolation" in " ".join(none.notes())
    small = measure_operators(items, replace(QUICK, memory_limit_bytes=2000.0))
    assert small.refused
    assert "memory" in " ".join(small.notes())
    stopped = measure_operators(items, QUICK, lambda stage, done: False)
    assert stopped.left == items


def test_what_cannot_be_made_is_said() -> None:
    items = needed_operators(graph(MLP), profile(), 1)
    unknown = replace(items[0], family=replace(items[0].family, kind="aten.no_such.default"))
    wrong = replace(items[0], shapes=((3, 3),) * len(items[0].shapes))
    measured = measure_operators([unknown, wrong], QUICK)
    assert measured.tables == ()
    assert len(measured.refused) == 2
    assert "no_such" in " ".join(measured.notes())


@pytest.mark.full
def test_two_ranks_measure_at_once() -> None:
    items = needed_operators(graph(MLP), profile(), 2)[:4]
    measured = measure_operators(items, replace(QUICK, ranks=2, own_time=False))
    assert measured.refused == ()
    for table in measured.tables:
        assert (table.ranks, table.threads) == (2, 1)
        # Each of two ranks repeats at least five times.
        assert min(table.repetitions) >= 10


def test_a_lost_sibling_is_an_error_and_leaves_no_process() -> None:
    items = needed_operators(graph(MLP), profile(), 2)
    with pytest.raises(SiblingLost), Siblings(replace(QUICK, ranks=2)) as siblings:
        assert isinstance(siblings.measure(items[0], 0.05), Timing)
        first = siblings.processes[0]
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        first.join()
        siblings.measure(items[0], 0.05)
    assert not any(process.is_alive() for process in siblings.processes)


def test_ranks_are_for_cpus() -> None:
    with pytest.raises(BadInput, match="ranks"):
        Effort(device="cuda", ranks=2)
    with pytest.raises(BadInput, match="own-time"):
        Effort(device="cuda", own_time=True)
    with pytest.raises(BadInput, match="time-limit"):
        Effort(time_limit_s=0)


# Statistics and tables.


class _Disturbed:
    """A bench whose first round is disturbed and whose second is lucky."""

    def __init__(self, items: int) -> None:
        self.asked = 0
        self.items = items

    def measure(self, item: OperatorItem, budget_s: float) -> Timing:
        each_round = (9.0, 0.5, 1.0)[self.asked // self.items]
        self.asked += 1
        return Timing(each_round + self.asked / 100, 0.5, 5)


def test_the_middle_of_three_rounds_counts() -> None:
    items = needed_operators(graph(MLP), profile(), 2)[:4]
    measured = measure_with(_Disturbed(len(items)), items, QUICK)
    times = [time for table in measured.tables for time in table.times_s]
    assert sorted(times) == [1.09, 1.10, 1.11, 1.12]
    assert {n for table in measured.tables for n in table.repetitions} == {15}


def test_of_two_rounds_the_faster_counts() -> None:
    items = needed_operators(graph(MLP), profile(), 2)[:4]
    bench = _Disturbed(len(items))
    measured = measure_with(bench, items, QUICK, lambda *_: bench.asked < 2 * len(items))
    times = [time for table in measured.tables for time in table.times_s]
    assert sorted(times) == [0.55, 0.56, 0.57, 0.58]


def test_ranks_that_share_a_core_take_their_turns_into_account() -> None:
    import torch

    item = needed_operators(graph(MLP), profile(), 1)[0]
    alone, crowded = (
        Bench(torch, replace(QUICK, own_time=own), crowd).times(item, 0.5, NoPeers())
        for own, crowd in ((True, 1), (False, 8))
    )
    assert not isinstance(alone, str) and not isinstance(crowded, str)
    assert timing(crowded).time_s > 3 * timing(alone).time_s


def test_the_median_counts_and_overhead_is_taken_off() -> None:
    assert timing([1.0, 2.0, 3.0, 4.0, 100.0]) == Timing(3.0, 1.0 / 3.0, 5)
    assert timing([3.0] * 5, overhead_s=1.0).time_s == 2.0
    assert timing([3.0] * 5, overhead_s=2.9).time_s == 1.5
    assert standard_error([1.0] * 5) == 0.0
    assert standard_error([1.0, 2.0] * 50) < standard_error([1.0, 2.0] * 5)


def test_the_cache_of_this_machine_is_known() -> None:
    import torch

    assert 2**15 < cache_bytes(torch, torch.device("cpu")) < 2**32


def test_new_times_replace_old_ones_of_the_same_calls() -> None:
    table = OperatorTable(
        "aten.relu.default", "forward", "cpu", {}, ("self",), ("float32",), ("",), (False,), 1,
        1, 1, True,
        (((4,), (4,)), ((8,), (8,))), (4.0, 8.0), (32.0, 64.0), (1.0, 2.0), (0.0, 0.0), (5, 5),
    )  # fmt: skip
    new = replace(
        table, shapes=(((8,), (8,)),), flops=(8.0,), moved_bytes=(64.0,), times_s=(3.0,),
        spreads=(0.0,), repetitions=(7,),
    )  # fmt: skip
    old, added = merged((table,), (new,))
    assert (old.shapes, old.times_s) == ((((4,), (4,)),), (1.0,))
    assert added == new
    assert merged((new,), (new,)) == (new,)
