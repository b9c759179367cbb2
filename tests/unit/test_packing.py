"""Copies that pack what moves cost time where the profile says so, and windows are memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.graph_builder import GraphBuilder
from shardwise.answers import Options
from shardwise.cost.configurations import group_work
from shardwise.cost.exchanges import communication
from shardwise.cost.group_work import GroupWork
from shardwise.cost.reschedule import Rescheduler, Reschedulers
from shardwise.cost.space import SearchMesh
from shardwise.graph import Graph
from shardwise.hardware import (
    Hardware,
    Mesh,
    hardware_document,
    hardware_from_document,
    load_hardware,
)
from shardwise.search.search import Subject, search
from shardwise.sharding.layout import PARTIAL, REPLICATE

SHAPE = (64, 96, 1024)
BYTES = 4 * 64 * 96 * 1024


@pytest.fixture(scope="module")
def hardware() -> Hardware:
    return replace(load_hardware("dgx-v100-16gb"), packing=True)


def seconds(hardware: Hardware, before: int, after: int, shape: tuple[int, ...] = SHAPE) -> float:
    """Of the way from one state on the only axis to the other, over two devices."""
    mesh = SearchMesh.build(Mesh.build(hardware, 2), 200)
    paths: Rescheduler = Reschedulers(hardware, mesh).of(shape, 4)
    ends = [np.array([[state]], dtype=np.int8) for state in (before, after)]
    return float(paths.between(*ends)[0])


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        (0, REPLICATE, 0.0),
        (1, REPLICATE, 2.0),
        (PARTIAL, 0, 0.0),
        (PARTIAL, 2, 2.0),
        (PARTIAL, REPLICATE, 2.0),
        (REPLICATE, 1, 1.0),
        (0, 1, 1.0),
        (1, 0, 1.0),
        (1, 2, 2.0),
    ],
)
def test_what_lies_apart_is_packed(
    hardware: Hardware, before: int, after: int, moved: float
) -> None:
    """`moved` whole tensors are read and written besides the collective."""
    plain = seconds(replace(hardware, packing=False), before, after)
    packed = seconds(hardware, before, after)
    copied = float(hardware.copy_times(np.array([moved * BYTES]))[0])
    assert packed - plain == pytest.approx(copied, rel=1e-6, abs=1e-12)
    assert (copied > 0) == (moved > 0)


def test_the_outermost_dimension_is_the_first_of_more_than_one_element(hardware: Hardware) -> None:
    plain = replace(hardware, packing=False)
    one = (1, *SHAPE)
    assert seconds(hardware, 1, REPLICATE, one) == seconds(plain, 1, REPLICATE, one)
    assert seconds(hardware, 2, REPLICATE, one) > seconds(plain, 2, REPLICATE, one)
    # Shapes of the same numbers in another order share paths only where the same one comes first.
    turned = (96, 64, 1024)
    assert seconds(hardware, 0, REPLICATE, turned) == seconds(plain, 0, REPLICATE, turned)
    assert seconds(hardware, 1, REPLICATE, turned) > seconds(plain, 1, REPLICATE, turned)


def test_files_say_it_and_old_ones_do_not(hardware: Hardware) -> None:
    document = hardware_document(hardware)
    assert document["packing"] is True
    assert hardware_from_document(document).packing
    plain = replace(hardware, packing=False)
    assert "packing" not in hardware_document(plain)
    assert not hardware_from_document(hardware_document(plain)).packing
    assert hardware.id != plain.id


def convolutions() -> Graph:
    """Two 3 × 3 convolutions: the data of the second has a gradient, and is kept for backward."""
    shape = (8, 4, 32, 32)
    builder = GraphBuilder("convolutions")
    builder.input("x", *shape)
    for name, data, weight, out in (("one", "x", "v", "h"), ("two", "h", "w", "y")):
        builder.parameter(weight, 4, 4, 3, 3)
        arguments = {"input": data, "weight": weight}
        builder.operator(name, "aten.conv2d.default", arguments, out, shape, padding=[1, 1])
    return builder.graph()


def test_a_window_with_neighbours_rows_is_copied_and_kept(hardware: Hardware) -> None:
    problems = {
        packing: search(
            Subject.of(convolutions()),
            replace(hardware, packing=packing),
            2,
            Options(overlap=False),
        ).problem
        for packing in (True, False)
    }
    (number,) = [
        g.index for g in problems[True].coarsened.groups if g.members[-1].operator.name == "two"
    ]
    pattern = problems[True].patterns[number]
    work = {packing: group_work(p.context, pattern) for packing, p in problems.items()}
    position = len(pattern.members) - 1
    member = pattern.members[position]
    rows = {v for v, a in member.semantics.inputs[0].items() if a.halo_before + a.halo_after > 0}
    cut = np.isin(work[True].assignment, [member.variables[v] for v in rows]).any(axis=1)
    sums = [v for v, variable in enumerate(member.semantics.variables) if variable.is_reduction]
    taps = {member.variables[v] for v in sums if v not in member.semantics.inputs[0]}
    tapped = np.isin(work[True].assignment, list(taps)).any(axis=1)
    assert cut.any()
    assert tapped.any()
    assert not (cut | tapped).all()
    local = work[True].local_bytes("h", work[True].inputs[position][0][0])
    window = work[True].window_bytes(position, 0)
    assert not window[~(cut | tapped)].any()
    # 16 of 32 rows, and one more on either side.
    assert window[cut] == pytest.approx(local[cut] * 18 / 16)
    # Each share of taps reads other rows of all the data, with zeros around them.
    assert (window[tapped] == local[tapped]).all()
    times = {packing: communication(w).forward_s[:, position] for packing, w in work.items()}
    more = times[True] - times[False]
    assert more[tapped] == pytest.approx(hardware.copy_times(2.0 * local[tapped]))
    assert (more[cut] >= hardware.copy_times(2.0 * local[cut]) * (1 - 1e-9)).all()
    costs = problems[True].costs[number]
    chosen = GroupWork(work[True].context, pattern, costs.assignment, costs.proportion)
    windows = sum(chosen.window_bytes(member, port) for member, port in chosen.kept_windows)
    assert windows.any()
    expected = chosen.kept_bytes(pattern.kept) + windows
    assert costs.activation_bytes == pytest.approx(expected)
