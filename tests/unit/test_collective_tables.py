"""Measured tables between their sizes, shapes derived from others, and what answers say of it."""

from __future__ import annotations

import json
from dataclasses import replace
from gc import collect
from pathlib import Path
from weakref import ref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.answers import frontier
from shardwise.answers.communication_basis import communication_basis, communication_shares
from shardwise.capture import shipped_graph
from shardwise.cost.options import Options
from shardwise.errors import BadInput
from shardwise.graph import read_graph
from shardwise.hardware import (
    OPERATIONS,
    CollectiveTable,
    Hardware,
    Mesh,
    Overlap,
    Waiting,
    bus_bandwidth,
    bus_factor,
    collective_time,
    collective_times,
    hardware_document,
    hardware_from_document,
    load_hardware,
)
from shardwise.hardware.bandwidth import UnknownCollective
from shardwise.hardware.collectives import find_table
from shardwise.hardware.mesh import GroupShape
from shardwise.replay.overlap import contended_time
from shardwise.replay.replay import Replayed
from shardwise.search.search import Subject, search

SIZES = tuple(2.0**i for i in range(10, 21))
SUMS = Options(overlap=False)


def table(
    operation: str = "all_reduce",
    nodes: int = 1,
    ranks: int = 2,
    consecutive: bool = True,
    per_byte: float = 1e-9,
    **more: object,
) -> CollectiveTable:
    times = tuple(1e-5 + size * per_byte for size in SIZES)
    return CollectiveTable(operation, nodes, ranks, consecutive, SIZES, times, **more)  # type: ignore[arg-type]


def profile(*tables: CollectiveTable, nodes: int = 2) -> Hardware:
    return replace(load_hardware("dgx-h100"), collectives=tables, nodes=nodes)


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    """doc/PERFORMANCE.md; NVIDIA/nccl issue 1161: two ranks, all_reduce, 1 GiB in 9306.7 us."""
    assert bus_bandwidth("all_reduce", 2, 2**30, 9306.7e-6) / 1e9 == pytest.approx(115.37, abs=0.01)
    assert bus_factor("all_reduce", 8) == 14 / 8
    assert bus_factor("all_gather", 8) == bus_factor("reduce_scatter", 8) == 7 / 8
    assert bus_factor("all_to_all", 4) == 3 / 4
    assert bus_factor("broadcast", 8) == bus_factor("send_receive", 8) == 1
    with pytest.raises(UnknownCollective, match="gossip"):
        bus_factor("gossip", 2)


@given(
    st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=12),
    st.floats(1.0, 2.0**24),
    st.floats(1.0, 4.0),
)
def test_interpolation_keeps_to_its_neighbours(
    raw: list[float], size: float, factor: float
) -> None:
    times = tuple(sorted(raw))
    sizes = tuple(2.0 ** (10 + i) for i in range(len(times)))
    hardware = profile(CollectiveTable("all_reduce", 1, 2, True, sizes, times))
    shape = GroupShape(2, 1, 2, 1, True)
    predicted = collective_times(hardware, "all_reduce", np.array([size, size * factor]), shape)
    assert 0 < predicted[0] <= predicted[1] * (1 + 1e-9) < np.inf
    if size <= sizes[0]:
        assert predicted[0] == pytest.approx(times[0])
    elif size <= sizes[-1]:
        above = next(i for i, s in enumerate(sizes) if s >= size)
        low, high = times[max(above - 1, 0)], times[above]
        assert low * (1 - 1e-9) <= predicted[0] <= high * (1 + 1e-9)
    else:
        assert predicted[0] / size == pytest.approx(times[-1] / sizes[-1])


@given(st.integers(10, 20))
def test_measured_sizes_come_back_with_their_spread(power: int) -> None:
    spread = table(p10_s=tuple(s * 1e-10 for s in SIZES), p90_s=tuple(s * 1e-8 for s in SIZES))
    predicted = collective_time(
        profile(spread), "all_reduce", 2.0**power, GroupShape(2, 1, 2, 1, True)
    )
    assert predicted.provenance == "measured"
    assert predicted.time_s == pytest.approx(spread.times_s[power - 10])
    assert predicted.p10_s == pytest.approx(2.0**power * 1e-10)
    assert predicted.p90_s == pytest.approx(2.0**power * 1e-8)
    between = collective_time(
        profile(spread), "all_reduce", 1.4 * 2**power, GroupShape(2, 1, 2, 1, True)
    )
    assert between.provenance == "interpolated"
    assert between.p10_s is not None and between.p10_s < between.time_s


def test_inside_a_node_the_bus_bandwidth_of_another_group_holds() -> None:
    hardware = profile(table(ranks=8, per_byte=2e-9), table(ranks=2, per_byte=1e-9))
    predicted = collective_time(hardware, "all_reduce", 2.0**20, GroupShape(4, 1, 4, 1, True))
    assert predicted.provenance == "derived"
    # From eight ranks, the next larger group: (2 * 3/4) / (2 * 7/8) of its time.
    assert predicted.time_s == pytest.approx((1e-5 + 2**20 * 2e-9) * 1.5 / 1.75)
    strided = find_table(hardware, "all_reduce", GroupShape(2, 1, 2, 4, False))
    assert strided is not None
    assert strided.times_s == hardware.collectives[1].times_s
    assert strided.derived == "the bus bandwidth of 2 ranks, consecutive"
    assert find_table(hardware, "broadcast", GroupShape(2, 1, 2, 1, True)) is None


def test_a_derived_table_is_worked_out_once_and_goes_with_its_profile() -> None:
    hardware, shape = profile(table(ranks=8)), GroupShape(4, 1, 4, 1, True)
    derived = find_table(hardware, "all_reduce", shape)
    assert derived is not None and find_table(hardware, "all_reduce", shape) is derived
    assert find_table(replace(hardware), "all_reduce", shape) is not derived
    kept = ref(derived)
    del hardware, derived
    collect()
    assert kept() is None


def test_two_nodes_are_composed_of_groups_inside_and_across() -> None:
    inside = [table(op, 1, 4, True, 1e-10) for op in ("reduce_scatter", "all_gather")]
    across = table("all_reduce", 2, 1, False, 4e-9, siblings=4)
    hardware = profile(*inside, across)
    shape = GroupShape(8, 2, 4, 1, True)
    predicted = collective_time(hardware, "all_reduce", 2.0**20, shape)
    assert predicted.provenance == "derived"
    expected = 2 * (1e-5 + 2**20 * 1e-10) + (1e-5 + 2**18 * 4e-9)
    assert predicted.time_s == pytest.approx(expected)
    lonely = profile(*inside, replace(across, siblings=2))
    assert collective_time(lonely, "all_reduce", 2.0**20, shape).provenance == "modelled"
    uneven = GroupShape(6, 2, 4, 1, True)
    assert collective_time(hardware, "all_reduce", 2.0**20, uneven).provenance == "modelled"


@pytest.mark.parametrize("operation", OPERATIONS)
@given(st.floats(1024, 2.0**22), st.floats(1, 4))
def test_derived_times_grow_and_are_finite(operation: str, size: float, factor: float) -> None:
    tables = [table(op, 1, 2, True, 1e-9) for op in OPERATIONS]
    tables += [table(op, 2, 1, False, 1e-8, siblings=8) for op in OPERATIONS]
    shape = GroupShape(8, 2, 4, 1, True)
    hardware = profile(*tables)
    small = collective_time(hardware, operation, size, shape)
    large = collective_time(hardware, operation, size * factor, shape)
    assert small.provenance == "derived"
    assert 0 < small.time_s <= large.time_s * (1 + 1e-9) < np.inf


def test_answers_name_the_basis_of_communication_times() -> None:
    bare = profile()
    mesh = Mesh.build(bare, 4)
    assert communication_basis(bare, mesh) == "modelled from data sheets"
    every = [table(op, 1, r, c) for op in OPERATIONS for r, c in ((2, True), (2, False), (4, True))]
    assert communication_basis(profile(*every), mesh) == "measured tables"
    some = profile(*(t for t in every if t.operation != "broadcast" and t.consecutive))
    shares = communication_shares(some, mesh)
    assert sum(shares.values()) == pytest.approx(1)
    # Three shapes: broadcast has no table at all, of the others the strided pair is derived.
    assert shares == pytest.approx({"measured": 10 / 18, "derived": 5 / 18, "modelled": 3 / 18})
    basis = communication_basis(some, mesh)
    assert "56% of the group shapes" in basis
    assert "28% derived from them" in basis
    assert "17% modelled" in basis
    assert communication_basis(some, Mesh.build(some, 1)) == "measured tables"


def test_what_is_optional_round_trips_and_is_absent_where_unknown() -> None:
    plain = profile(table())
    document = json.loads(json.dumps(hardware_document(plain)))
    assert set(document["collectives"][0]) == {
        "operation", "nodes", "ranks_per_node", "consecutive", "sizes_bytes", "times_s"
    }  # fmt: skip
    assert not {"overlap", "waiting", "measurement"} & {*document}
    full = replace(
        profile(table(p10_s=SIZES, p90_s=SIZES, repeats=(5,) * 11, siblings=4, derived="a rule")),
        overlap=Overlap(0.5, 1.2, 1.4, "all_reduce", 1e6),
        waiting=Waiting((0.001, 0.004), (0.0003, 0.0)),
        measurement={"when": "today", "links": {"inside": "nvlink"}},
    )
    again = hardware_from_document(json.loads(json.dumps(hardware_document(full))))
    assert again == full
    assert again.id == full.id != plain.id


@pytest.mark.parametrize(
    ("where", "value", "field"),
    [
        (("collectives", 0, "p10_s"), [1.0], "collectives[0].p10_s"),
        (("collectives", 0, "repeats"), [0] * 11, "collectives[0].repeats"),
        (("overlap", "hidden_fraction"), 1.5, "overlap.hidden_fraction"),
        (("overlap", "operation"), None, "overlap.operation"),
        (("waiting", "compute_s"), [], "waiting.compute_s"),
        (("waiting", "compute_s"), [0.004, 0.001], "waiting.compute_s"),
        (("waiting", "compute_s", 0), -1e-3, "waiting.compute_s"),
        (("waiting", "wait_s"), [1e-3], "waiting.wait_s"),
        (("waiting", "wait_s", 1), -1e-3, "waiting.wait_s"),
        (("waiting", "wait_s", 1), "late", "waiting.wait_s[1]"),
    ],
)
def test_refused_fields_are_named(
    tmp_path: Path, where: tuple[str | int, ...], value: object, field: str
) -> None:
    hardware = replace(
        profile(table()),
        overlap=Overlap(0.5, 1.2, 1.4, "all_reduce", 1e6),
        waiting=Waiting((0.001, 0.004), (0.0003, 0.001)),
    )
    document = json.loads(json.dumps(hardware_document(hardware)))
    inner: object = document
    for key in where[:-1]:
        inner = inner[key]  # type: ignore[index]
    inner[where[-1]] = value  # type: ignore[index]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document))
    with pytest.raises(BadInput) as caught:
        load_hardware(str(path))
    assert field in str(caught.value)


@given(st.floats(0, 1), st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0, 1))
def test_contention_lies_between_overlap_and_taking_turns(
    hidden: float, compute: float, communication: float, overlapped: float
) -> None:
    fastest = max(compute, communication)
    time = fastest + overlapped * (compute + communication - fastest)
    overlap = Overlap(hidden, 1.0, 1.0, "all_reduce", 1.0)
    contended = contended_time(
        np.array([time]), np.array([compute]), np.array([communication]), overlap
    )[0]
    assert time * (1 - 1e-9) <= contended <= (compute + communication) * (1 + 1e-9)
    if hidden == 1:
        assert contended == pytest.approx(time)
    if hidden == 0:
        assert contended == pytest.approx(compute + communication)
    assert contended_time(np.array([time]), np.array([1.0]), np.array([1.0]), None)[0] == time


def test_a_measured_overlap_lengthens_replayed_steps() -> None:
    """Nothing hidden: the replayed time is the sum; all of it: as without a measurement.

    Sums are searched, so that the strategies are the same whatever is hidden.
    """
    graph = read_graph(shipped_graph("vgg16"))
    base = load_hardware("pcie-v100-8")

    def points(hidden: float | None) -> list[dict[str, float]]:
        overlap = None if hidden is None else Overlap(hidden, 1.0, 1.0, "all_reduce", 1e6)
        machine = replace(base, overlap=overlap)
        rows: list[dict[str, float]] = frontier(graph, machine, 2, SUMS)["points"]
        return rows

    plain, hidden, half, exposed = (points(h) for h in (None, 1.0, 0.5, 0.0))
    assert any(p["replayed_time_s"] < 0.99 * p["time_s"] for p in plain)
    for bare, all_of_it, some, none in zip(plain, hidden, half, exposed, strict=True):
        assert all_of_it["replayed_time_s"] == bare["replayed_time_s"]
        assert none["replayed_time_s"] == pytest.approx(bare["time_s"])
        middle = (bare["replayed_time_s"] + bare["time_s"]) / 2
        assert some["replayed_time_s"] == pytest.approx(middle)
        assert none["replayed_peak_bytes"] == bare["replayed_peak_bytes"]


def test_waiting_goes_by_collectives_and_what_is_computed_between_them() -> None:
    waiting = Waiting((0.001, 0.003), (0.0002, 0.0006))
    compute = np.array([0.1, 0.1, 0.1, 0.1, 0.0])
    collectives = np.array([0.0, 50.0, 10.0, 1000.0, 4.0])
    waited_s = waiting.per_step(compute, collectives)
    assert waited_s == pytest.approx([0.0, 50 * 0.0004, 10 * 0.0006, 1000 * 0.0002, 4 * 0.0002])


@pytest.mark.parametrize("micro_batches", [1, 2, 8])
def test_measured_waiting_lengthens_replayed_steps_by_the_collectives_in_them(
    micro_batches: int,
) -> None:
    """Waits that do not depend on what is computed: a step grows with the number of collectives."""
    subject = Subject.of(read_graph(shipped_graph("gpt2")))
    base, wait = replace(load_hardware("dgx-a100-80gb"), host=None), 1e-4

    def replayed(waiting: Waiting | None) -> Replayed:
        hardware = replace(base, waiting=waiting)
        return search(subject, hardware, 4, SUMS, micro_batches=micro_batches).replayed

    before, after = replayed(None), replayed(Waiting((0.001,), (wait,)))
    often = (after.time_s - before.time_s) / wait
    assert often == pytest.approx(np.round(often), abs=1e-6)
    assert after.exposed_s - before.exposed_s == pytest.approx(often * wait)
    for part in ("peak_bytes", "compute_s", "communication_s"):
        assert (getattr(after, part) == getattr(before, part)).all()
    # Forward and backward of every micro-batch communicate alike; inputs and gradients add few.
    assert often.max() > 20 * micro_batches
    assert often.min() < often.max()
