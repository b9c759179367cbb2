"""Operator tables: read, refused, looked up, interpolated within bounds."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadInput
from shardwise.hardware import Hardware, hardware_document, hardware_from_document, load_hardware
from shardwise.hardware.operator_tables import OperatorFamily
from shardwise.hardware.operator_times import OperatorTimes
from shardwise.hardware.sources import INTERPOLATED, MEASURED, MODELLED

SIZES = (8, 64, 512, 4096)


def table(**changes: Any) -> dict[str, Any]:
    """A square matrix product measured at four sizes, at half of the roofline's speed."""
    device = load_hardware("l4").devices[0]
    flops = np.array([2.0 * n**3 for n in SIZES])
    moved = np.array([12.0 * n**2 for n in SIZES])
    return {
        "kind": "aten.mm.default",
        "direction": "forward",
        "device": device.kind,
        "arguments": ["self", "mat2"],
        "dtypes": ["float32", "float32"],
        "shapes": [[[n, n], [n, n], [n, n]] for n in SIZES],
        "flops": flops.tolist(),
        "moved_bytes": moved.tolist(),
        "times_s": (2.0 * device.roofline_times(flops, moved, "float32")).tolist(),
    } | changes


def profile(*tables: dict[str, Any]) -> Hardware:
    document = hardware_document(load_hardware("l4"))
    return hardware_from_document({**document, "operators": list(tables)}, "mine.json")


def family(hardware: Hardware, **changes: Any) -> OperatorFamily:
    return replace(hardware.operators[0].family, **changes)


def ask(
    hardware: Hardware, of: OperatorFamily, rows: list[list[int]], flops: Any, moved: Any
) -> tuple[Any, Any, Any]:
    device = hardware.devices[0]
    flops, moved = np.array(flops, dtype=float), np.array(moved, dtype=float)
    roofline = device.roofline_times(flops, moved, "float32")
    times, codes = hardware.operator_times.times(of, lambda: np.array(rows), flops, moved, roofline)
    return times, codes, roofline


def test_a_profile_with_tables_is_read_and_written() -> None:
    hardware = profile(table(), table(direction="backward", gradients=[True, False]))
    again = hardware_from_document(hardware_document(hardware))
    assert again.operators == hardware.operators
    assert again.id == hardware.id
    assert again.operators[1].family.gradients == (True, False)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"times_s": [1.0]}, "operators[0].shapes"),
        ({"times_s": []}, "operators[0].times_s"),
        ({"times_s": [1.0, 0.0, 1.0, 1.0]}, "operators[0].times_s[1]"),
        ({"times_s": [1.0, nan, 1.0, 1.0]}, "operators[0].times_s[1]"),
        ({"flops": [1.0, inf, 1.0, 1.0]}, "operators[0].flops[1]"),
        ({"moved_bytes": [-1.0, 1.0, 1.0, 1.0]}, "operators[0].moved_bytes[0]"),
        ({"dtypes": ["float32"]}, "operators[0].dtypes"),
        ({"outputs": 2}, "operators[0].shapes[0]"),
        ({"direction": "sideways"}, "operators[0].direction"),
        ({"shapes": [[[8, 8], [8, 8], [8, 8]]] * 4}, "operators[0].shapes[1]"),
        ({"repetitions": [3, 3, 0, 3]}, "operators[0].repetitions[2]"),
        ({"ranks": 0}, "operators[0].ranks"),
    ],
)
def test_a_wrong_table_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as error:
        profile(table(**changes))
    assert "mine.json" in str(error.value)
    assert field in str(error.value)


def test_the_same_call_in_two_tables_is_refused() -> None:
    with pytest.raises(BadInput, match=r"the same call as operators\[0\]\.shapes\[0\]"):
        profile(table(), table())


def test_a_measured_call_takes_what_was_measured() -> None:
    hardware = profile(table())
    rows = [[n] * 6 for n in SIZES]
    flops, moved = [2.0 * n**3 for n in SIZES], [12.0 * n**2 for n in SIZES]
    times, codes, _ = ask(hardware, family(hardware), rows, flops, moved)
    assert times.tolist() == list(hardware.operators[0].times_s)
    assert (codes == MEASURED).all()


def test_between_measured_calls_utilisation_is_interpolated() -> None:
    """All were measured at half of the roofline's speed, so others are taken to be so too."""
    hardware = profile(table())
    times, codes, roofline = ask(hardware, family(hardware), [[100] * 6], [2e6], [12e4])
    assert codes.tolist() == [INTERPOLATED]
    assert times[0] == pytest.approx(2.0 * roofline[0])


def test_the_nearest_calls_weigh_most() -> None:
    device = load_hardware("l4").devices[0]
    flops, moved = np.array([1e9, 1e12]), np.array([1e6, 1e9])
    slow = device.roofline_times(flops, moved, "float32") * np.array([10.0, 2.0])
    hardware = profile(
        table(
            shapes=[[[1, 1]] * 3, [[2, 2]] * 3],
            flops=flops.tolist(),
            moved_bytes=moved.tolist(),
            times_s=slow.tolist(),
        )
    )
    asked = [2e9, 3e10, 5e11]
    times, _, roofline = ask(hardware, family(hardware), [[9] * 6] * 3, asked, [2e6, 3e7, 5e8])
    slowness = times / roofline
    assert 10.0 > slowness[0] > slowness[1] > slowness[2] > 2.0
    assert slowness[1] == pytest.approx(20**0.5, rel=0.2)


def test_what_no_table_reaches_is_modelled() -> None:
    hardware = profile(table())
    for of, flops, moved in (
        (family(hardware, kind="aten.bmm.default"), 2e6, 12e4),
        (family(hardware, attributes='{"transposed":true}'), 2e6, 12e4),
        (family(hardware, dtypes=("bfloat16", "bfloat16")), 2e6, 12e4),
        (family(hardware, direction="backward"), 2e6, 12e4),
        (family(hardware), 2.0 * 4096**3 * 1000, 12.0 * 4096**2 * 1000),
    ):
        times, codes, roofline = ask(hardware, of, [[100] * 6], [flops], [moved])
        assert codes.tolist() == [MODELLED]
        assert times.tolist() == roofline.tolist()


def test_relatives_lend_utilisation_but_no_times() -> None:
    """The call is of a measured shape, but its operand lies otherwise."""
    hardware = profile(table())
    other = family(hardware, strides=("1,0", ""))
    times, codes, _ = ask(hardware, other, [[64] * 6], [2.0 * 64**3], [12.0 * 64**2])
    assert codes.tolist() == [INTERPOLATED]
    assert times[0] == pytest.approx(hardware.operators[0].times_s[1], rel=1e-6)


def test_tables_of_another_device_are_not_used() -> None:
    hardware = profile(table(device="abacus"))
    assert not hardware.operator_times.known
    _, codes, _ = ask(hardware, family(hardware), [[64] * 6], [2.0 * 64**3], [12.0 * 64**2])
    assert codes.tolist() == [MODELLED]


numbers = st.floats(0.0, 1e18, allow_nan=False)


@given(
    measured=st.lists(st.tuples(numbers, numbers, st.floats(1e-9, 1e3)), min_size=1, max_size=12),
    asked=st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8),
)
def test_times_are_finite_and_within_the_measured_utilisation(
    measured: list[tuple[float, float, float]], asked: list[tuple[float, float]]
) -> None:
    device = load_hardware("l4").devices[0]
    flops, moved, times = (np.array(column) for column in zip(*measured, strict=True))
    hardware = profile(
        table(
            shapes=[[[n, 1], [1, 1], [1, 1]] for n in range(len(measured))],
            flops=flops.tolist(),
            moved_bytes=moved.tolist(),
            times_s=times.tolist(),
        )
    )
    utilisation = device.roofline_times(flops, moved, "float32") / times
    rows = [[10**6 + n, 1, 1, 1, 1, 1] for n in range(len(asked))]
    times_s, codes, roofline = ask(
        hardware, family(hardware), rows, [a for a, _ in asked], [b for _, b in asked]
    )
    assert np.isfinite(times_s).all()
    assert (times_s > 0).all()
    for time, code, modelled in zip(times_s, codes, roofline, strict=True):
        if code == MODELLED:
            assert time == modelled
        else:
            assert utilisation.min() * (1 - 1e-9) <= modelled / time
            assert modelled / time <= utilisation.max() * (1 + 1e-9)


@given(
    extents=st.lists(
        st.tuples(st.integers(0, 2**40), st.integers(1, 2**20)),
        min_size=1,
        max_size=30,
        unique=True,
    )
)
def test_every_measured_row_is_found_and_no_other(extents: list[tuple[int, int]]) -> None:
    hardware = profile(
        table(
            shapes=[[[a, b], [b, 1], [a, 1]] for a, b in extents],
            flops=[1.0] * len(extents),
            moved_bytes=[1.0] * len(extents),
            times_s=[1.0 + n for n in range(len(extents))],
        )
    )
    rows = [[a, b, b, 1, a, 1] for a, b in extents]
    strangers = [[a, b, b, 2, a, 1] for a, b in extents]
    count = [1.0] * len(rows)
    times, codes, _ = ask(hardware, family(hardware), rows, count, count)
    assert times.tolist() == [1.0 + n for n in range(len(extents))]
    assert (codes == MEASURED).all()
    _, codes, _ = ask(hardware, family(hardware), strangers, count, count)
    assert (codes == INTERPOLATED).all()


def test_no_tables_leave_the_roofline_alone() -> None:
    device = load_hardware("l4").devices[0]
    assert not OperatorTimes((), device).known
