"""Refit: the profile's predictions become what the runs measured, and nothing else changes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadInput
from shardwise.hardware import (
    CollectiveTable,
    GroupShape,
    Hardware,
    collective_time,
    hardware_document,
    hardware_from_document,
    load_hardware,
)
from shardwise.measure.refit import refit

BEFORE = load_hardware("dgx-v100-16gb")
TABLES = tuple(
    CollectiveTable("all_reduce", nodes, 2, True, (1e3, 1e6), (1e-5, 1e-3)) for nodes in (1, 2)
)


def run(compute: float | None, network: float | None, nodes: int = 1, **more: object) -> dict:
    """A run whose plan predicted 1 s of both."""
    return {
        "schema": "shardwise.measurement/1",
        "nodes": nodes,
        "gpus": 8 * nodes,
        "compute_s": compute,
        "communication_s": network,
        "predicted": {"compute_s": 1.0, "communication_s": 1.0},
        **more,
    }


def fitted(*runs: dict, hardware: Hardware = BEFORE) -> Hardware:
    return hardware_from_document(refit(hardware_document(hardware), runs))


def kernel(hardware: Hardware, dtype: str = "float32") -> float:
    flops, moved = np.array([1e12, 1e6]), np.array([1e6, 1e9])
    return float(hardware.devices[0].roofline_times(flops, moved, dtype).sum())


def collective(hardware: Hardware, nodes: int) -> float:
    shape = GroupShape(8 * nodes, nodes, ranks_per_node=8, siblings_per_node=1, consecutive=True)
    return collective_time(hardware, "all_gather", 1e8, shape).time_s


@given(st.floats(0.02, 50.0))
def test_kernels_take_as_much_longer_as_runs_did(factor: float) -> None:
    after = fitted(run(factor, None))
    for dtype in BEFORE.devices[0].peak_flops_per_s:
        assert kernel(after, dtype) == pytest.approx(factor * kernel(BEFORE, dtype))
    assert after.levels == BEFORE.levels and after.collectives == BEFORE.collectives
    assert after.host == BEFORE.host is not None


@given(st.floats(0.02, 50.0), st.floats(0.02, 50.0))
def test_links_by_level(inside: float, between: float) -> None:
    after = fitted(run(None, inside), run(None, between, nodes=2))
    assert collective(after, 1) == pytest.approx(inside * collective(BEFORE, 1))
    assert after.devices == BEFORE.devices
    link, before = after.levels[-1], BEFORE.levels[-1]
    assert link.efficiency * link.bandwidth_bytes_per_s * between == pytest.approx(
        before.efficiency * before.bandwidth_bytes_per_s
    )
    assert link.latency_s == pytest.approx(before.latency_s * between)


OPERATORS = {
    "kind": "aten.mm.default", "direction": "forward", "device": "cpu", "attributes": {},
    "arguments": ["a", "b"], "dtypes": ["float32", "float32"], "shapes": [[[8, 8], [8, 8], [8, 8]]],
    "flops": [1024.0], "moved_bytes": [768.0], "times_s": [2.0],
}  # fmt: skip


def test_measured_tables_are_scaled_by_their_level() -> None:
    document = hardware_document(dataclasses.replace(BEFORE, collectives=TABLES))
    document["operators"] = [OPERATORS]
    after = refit(document, [run(3.0, 2.0), run(None, 5.0, nodes=2)])
    inside, between = after["collectives"]
    assert inside["times_s"] == pytest.approx([2e-5, 2e-3])
    assert between["times_s"] == pytest.approx([5e-5, 5e-3])
    assert tuple(inside["sizes_bytes"]) == TABLES[0].sizes_bytes
    assert after["operators"][0]["times_s"] == pytest.approx([6.0])
    assert list(after["operators"][0]["flops"]) == OPERATORS["flops"]


def test_a_wild_run_counts_as_one() -> None:
    after = fitted(run(2.0, None), run(2.0, None), run(900.0, None), run(1e9, None))
    assert kernel(after) == pytest.approx(2.0 * kernel(BEFORE))


def test_an_efficiency_stays_a_fraction() -> None:
    device = fitted(run(0.01, None)).devices[0]
    assert device.efficiency("float32") == 1.0 and device.memory_efficiency == 1.0
    assert device.peak("float32") > BEFORE.devices[0].peak("float32")


def test_it_says_where_it_is_from() -> None:
    document = refit(hardware_document(BEFORE), [run(2.0, None), run(8.0, 3.0)])
    assert document["provenance"] == (
        "refitted from 2 runs (compute times x 4 (median of 2); "
        f"links inside nodes times x 3 (median of 1)); before it {BEFORE.id}"
    )
    assert document["name"] == BEFORE.name
    assert hardware_document(BEFORE)["sources"].items() <= document["sources"].items()
    assert refit(hardware_document(BEFORE), [run(2.0, None), run(8.0, 3.0)]) == document


def test_nodes_are_counted_where_a_run_does_not_say() -> None:
    several = run(None, 2.0, nodes=2)
    del several["nodes"]
    after = fitted(several)
    assert after.levels[0] == BEFORE.levels[0] and after.levels[1] != BEFORE.levels[1]


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [run(None, None)],
        [run(0.0, float("nan"))],
        [run(True, "fast")],  # type: ignore[arg-type]
        [run(1.0, 1.0, predicted=None)],
        [run(1e7, None)],
    ],
)
def test_nothing_to_fit_is_refused(runs: list[dict]) -> None:
    with pytest.raises(BadInput, match="measurements: "):
        refit(hardware_document(BEFORE), runs)


def test_malformed_profiles_are_refused() -> None:
    with pytest.raises(BadInput, match="schema"):
        refit({"schema": "shardwise.hardware/9"}, [run(2.0, None)])
