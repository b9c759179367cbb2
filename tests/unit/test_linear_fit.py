"""Linear fits in place of interpolation: exact lines, two regimes, outliers, errors left out."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from shardwise.cli.main import cli
from shardwise.errors import BadInput
from shardwise.hardware import (
    CollectiveTable,
    Device,
    GroupShape,
    Hardware,
    Level,
    collective_time,
    collective_times,
    hardware_document,
    hardware_from_document,
    held_out_errors,
    linear_fit,
    load_hardware,
)
from shardwise.hardware.grid import Floats
from shardwise.hardware.lines import (
    LARGE,
    SMALL,
    Line,
    collective_lines,
    huber,
    least_squares,
)
from shardwise.hardware.operator_tables import OperatorTable, Shapes
from shardwise.hardware.sources import INTERPOLATED, MEASURED

SIZES = tuple(2.0**i for i in range(10, 25))
BATCHES = (1, 2, 3, 4, 6, 8, 12)
LAYERS = ((64, 256), (256, 64))
DEVICE = Device("gpu", 2, 1e10, {"float32": 1e13}, 1e12, 0.5, 0.5, 1e-6)
LEVELS = (Level("inside a node", 2, 1e10, 1e-6, 0.8), Level("between nodes", 2, 1e9, 1e-5, 0.8))
OLD_ID = "sha256:2433c1e26d51e3be44f395a5b97a3ef1030d5acf103100b9b95ff710e39a1ecf"


def shapes(batch: int, k: int, n: int) -> Shapes:
    """A linear layer's input, weight, bias and output."""
    return ((batch, k), (n, k), (n,), (batch, n))


def linear_table(
    calls: list[tuple[int, int, int]], times_s: list[float], **changes: Any
) -> OperatorTable:
    """Linear layers of (batch, k, n)."""
    table = OperatorTable(
        "aten.linear.default",
        "forward",
        "gpu",
        {},
        ("input", "weight", "bias"),
        ("float32",) * 3,
        ("",) * 3,
        (True,) * 3,
        1,
        0,
        1,
        True,
        tuple(shapes(*call) for call in calls),
        tuple(2.0 * m * k * n for m, k, n in calls),
        tuple(4.0 * (m * k + k * n + n + m * n) for m, k, n in calls),
        tuple(times_s),
        (0.01,) * len(calls),
        (5,) * len(calls),
    )
    return replace(table, **changes)


def collective(
    operation: str, times_s: Floats, sizes: tuple[float, ...] = SIZES
) -> CollectiveTable:
    known = tuple(times_s.tolist())
    return CollectiveTable(operation, 1, 2, True, sizes, known, known, known, (5,) * len(sizes))


def profile(*tables: OperatorTable | CollectiveTable) -> Hardware:
    return Hardware(
        "mine",
        "measured",
        (DEVICE,),
        LEVELS,
        tuple(t for t in tables if isinstance(t, CollectiveTable)),
        tuple(t for t in tables if isinstance(t, OperatorTable)),
        {"operators": "measured today"},
    )


def layer_times(noise: float = 0.0) -> tuple[list[tuple[int, int, int]], list[float]]:
    """Two layers at seven batches, each on a line of its own but for noise."""
    draw = np.random.default_rng(7)
    calls = [(batch, k, n) for k, n in LAYERS for batch in BATCHES]
    times = [3e-5 + (2e-6 if k < n else 5e-6) * m for m, k, n in calls]
    return calls, [t * float(np.exp(noise * draw.standard_normal())) for t in times]


def test_an_exact_line_is_recovered() -> None:
    times = 1.7e-10 * np.array(SIZES) + 4.5e-5
    line = least_squares(np.array(SIZES), times)
    assert line.slope == pytest.approx(1.7e-10, rel=1e-9)
    assert line.fixed == pytest.approx(4.5e-5, rel=1e-9)
    calls, seconds = layer_times()
    before = profile(collective("broadcast", times), linear_table(calls, seconds))
    after = linear_fit(before)
    assert after.collectives[0].times_s == pytest.approx(times.tolist(), rel=1e-9)
    assert after.operators[0].times_s == pytest.approx(seconds, rel=1e-9)
    errors = held_out_errors(before)
    for of in (errors.all_operators, errors.all_collectives):
        assert of is not None
        assert of.linear.p90 < 1e-9 < of.interpolation.median


@given(
    st.lists(st.tuples(st.floats(1, 1e3), st.floats(1e-6, 1.0)), min_size=3, max_size=9),
)
def test_no_other_line_is_nearer(points: list[tuple[float, float]]) -> None:
    """Least squares among lines that neither fall nor begin below 0: convex, so nearby ones do."""
    sizes, times = (np.array(column) for column in zip(*points, strict=True))
    if np.ptp(sizes) < 1e-3:
        return
    line = least_squares(sizes, times)
    assert line.slope >= 0
    assert line.fixed >= 0

    def loss(slope: float, fixed: float) -> float:
        return float(((slope * sizes + fixed - times) ** 2).sum())

    least = loss(line.slope, line.fixed)
    for step in (1e-1, 1e-3):
        for a in (-step, 0.0, step):
            for b in (-step, 0.0, step):
                slope = max(line.slope + a * times.max() / sizes.max(), 0.0)
                fixed = max(line.fixed + b * times.max(), 0.0)
                assert loss(slope, fixed) >= least * (1 - 1e-9) - 1e-18


def test_a_time_is_neither_negative_nor_does_it_fall() -> None:
    sizes = np.array([1.0, 2.0, 4.0, 8.0])
    assert least_squares(sizes, sizes**2) == Line(pytest.approx(585 / 85), 0.0)
    assert least_squares(sizes, 9.0 - sizes) == Line(0.0, pytest.approx(5.25))


def test_an_all_reduce_has_two_lines() -> None:
    """The sizes between the two ranges have no say, whatever they took."""
    sizes = np.array(SIZES)
    times = np.maximum(1e-10 * sizes + 1e-4, 4e-10 * sizes - 3e-4)
    between = (sizes >= SMALL) & (sizes <= LARGE)
    assert between.sum() == 3
    times[between] *= [1.5, 0.5, 3.0]
    latency, bandwidth = collective_lines("all_reduce", sizes, times).lines
    assert (latency.slope, latency.fixed) == pytest.approx((1e-10, 1e-4), rel=1e-9)
    assert (bandwidth.slope, bandwidth.fixed) == pytest.approx((4e-10, -3e-4), rel=1e-9)
    (table,) = linear_fit(profile(collective("all_reduce", times))).collectives
    expected = np.maximum(1e-10 * sizes + 1e-4, 4e-10 * sizes - 3e-4)
    assert table.times_s == pytest.approx(expected.tolist(), rel=1e-9)


def test_an_all_reduce_without_both_ranges_has_one_line() -> None:
    sizes = np.array(SIZES[:9])  # to 256 KiB
    (line,) = collective_lines("all_reduce", sizes, 1e-10 * sizes + 1e-4).lines
    assert (line.slope, line.fixed) == pytest.approx((1e-10, 1e-4), rel=1e-9)


def test_hubers_regression_ignores_an_outlier() -> None:
    sizes = np.array(SIZES[:8])
    times = 1e-10 * sizes + 1e-4
    times[5] *= 40
    line = huber(sizes, times)
    assert (line.slope, line.fixed) == pytest.approx((1e-10, 1e-4), rel=1e-6)
    assert least_squares(sizes, times).fixed > 2e-4


def test_hubers_line_has_the_least_of_his_losses() -> None:
    """At the scale that it ends with, quadratic up to K scales and linear beyond."""
    draw = np.random.default_rng(3)
    sizes = np.linspace(1.0, 50.0, 25)
    times = 2.0 * sizes + 10.0 + draw.standard_normal(25)
    times[[3, 17]] += [60.0, -40.0]
    line = huber(sizes, times, least=-inf)
    away = np.abs(line.slope * sizes + line.fixed - times)
    most = 1.35 * np.median(away) / 0.6745

    def loss(slope: float, fixed: float) -> float:
        away = np.abs(slope * sizes + fixed - times)
        return float(np.where(away <= most, away**2 / 2, most * (away - most / 2)).sum())

    least = loss(line.slope, line.fixed)
    for a, b in ((1e-3, 0), (-1e-3, 0), (0, 1e-2), (0, -1e-2), (1e-3, -1e-2), (-1e-3, 1e-2)):
        assert loss(line.slope + a, line.fixed + b) > least
    assert line.slope == pytest.approx(2.0, abs=0.05)


def test_left_out_errors_of_collectives_are_those_by_brute_force() -> None:
    draw = np.random.default_rng(5)
    tables = [
        collective(name, (3e-10 * np.array(SIZES) + 1e-4) * np.exp(0.3 * draw.standard_normal(15)))
        for name in ("all_reduce", "all_gather")
    ]
    hardware = profile(*tables)
    errors = held_out_errors(hardware)
    assert [row.operation for row in errors.collectives] == ["all_reduce", "all_gather"]
    everything: dict[str, list[float]] = {"interpolation": [], "linear": []}
    for row, table in zip(errors.collectives, tables, strict=True):
        away: dict[str, list[float]] = {"interpolation": [], "linear": []}
        for i, (size, time) in enumerate(zip(table.sizes_bytes, table.times_s, strict=True)):
            rest = replace(
                table,
                sizes_bytes=table.sizes_bytes[:i] + table.sizes_bytes[i + 1 :],
                times_s=table.times_s[:i] + table.times_s[i + 1 :],
                p10_s=(), p90_s=(), repeats=(),
            )  # fmt: skip
            alone = replace(hardware, collectives=(rest,))
            asked, group = np.array([size]), GroupShape(2, 1, 2, 1, True)
            predicted = collective_times(alone, table.operation, asked, group)[0]
            away["interpolation"].append(abs(predicted / time - 1))
            lines = collective_lines(
                table.operation, np.array(rest.sizes_bytes), np.array(rest.times_s)
            )
            slowest = max(line.slope * size + line.fixed for line in lines.lines)
            away["linear"].append(abs(slowest / time - 1))
        for way, those in away.items():
            found = getattr(row.errors, way)
            assert found.median == pytest.approx(np.median(those), rel=1e-12)
            assert found.p90 == pytest.approx(np.quantile(those, 0.9), rel=1e-12)
            everything[way] += those
        assert row.errors.held_out == 15
    assert errors.all_collectives is not None
    assert errors.all_collectives.held_out == 30
    assert errors.all_collectives.linear.p90 == pytest.approx(
        np.quantile(everything["linear"], 0.9)
    )


def test_left_out_errors_of_operators_are_those_by_brute_force() -> None:
    """Interpolation from all other calls of the family, lines from this layer's other batches."""
    calls, times = layer_times(noise=0.3)
    calls, times = [*calls, (5, 32, 32)], [*times, 4e-5]  # a layer at one batch only
    hardware = profile(linear_table(calls[:6], times[:6]), linear_table(calls[6:], times[6:]))
    errors = held_out_errors(hardware)
    assert errors.calls_without_line == 1
    away: dict[str, list[float]] = {"interpolation": [], "linear": []}
    family = hardware.operators[0].family
    for i, ((batch, k, n), time) in enumerate(zip(calls[:-1], times, strict=False)):
        table = linear_table(calls[:i] + calls[i + 1 :], times[:i] + times[i + 1 :])
        alone = replace(hardware, operators=(table,))
        asked = linear_table([calls[i]], [time])
        flops, moved = np.array(asked.flops), np.array(asked.moved_bytes)
        row = np.array([[extent for shape in asked.shapes[0] for extent in shape]])
        roofline = DEVICE.roofline_times(flops, moved, "float32")
        predicted, codes = alone.operator_times.times(
            family, lambda r=row: r, flops, moved, roofline
        )
        assert codes.tolist() == [INTERPOLATED]
        away["interpolation"].append(abs(predicted[0] / time - 1))
        others = [j for j, c in enumerate(calls) if c[1:] == (k, n) and j != i]
        slope, fixed = np.polyfit([calls[j][0] for j in others], [times[j] for j in others], 1)
        assert min(slope, fixed) > 0
        away["linear"].append(abs((slope * batch + fixed) / time - 1))
    (row_,) = errors.operators
    assert (row_.device, row_.kind, row_.direction) == ("gpu", "aten.linear.default", "forward")
    assert row_.errors == errors.all_operators
    assert row_.errors.held_out == len(away["linear"]) == 14
    for way, those in away.items():
        found = getattr(row_.errors, way)
        assert found.median == pytest.approx(np.median(those), rel=1e-9)
        assert found.p90 == pytest.approx(np.quantile(those, 0.9), rel=1e-9)


def test_a_fitted_profile_says_what_it_is() -> None:
    calls, times = layer_times(noise=0.3)
    calls, times = [*calls, (5, 32, 32)], [*times, 4e-5]
    before = profile(
        linear_table(calls, times),
        collective("broadcast", 3e-10 * np.array(SIZES) + 1e-4),
        collective("all_gather", np.array([1e-4, 2e-4]), (1024.0, 4096.0)),
    )
    after = linear_fit(before)
    assert after.name == "mine-linear"
    assert after.provenance == f"linear fit of {before.id}: measured"
    assert after.sources == {
        "operators": "linear fit: 14 of 15 calls on lines over the batch; measured today",
        "collectives": "linear fit: 1 of 2 tables on lines over bytes",
    }
    kept, fitted = after.operators
    assert kept == linear_table(calls[-1:], times[-1:])
    assert fitted.derived.startswith("linear fit")
    assert fitted.shapes == before.operators[0].shapes[:-1]
    broadcast, gather = after.collectives
    assert gather == before.collectives[1]
    assert broadcast.derived == "linear fit: t = 3e-10 x + 0.0001, x in bytes"
    assert not broadcast.p10_s + broadcast.p90_s + broadcast.repeats
    # Answers say so too: what is fitted counts as interpolated, or derived.
    row = np.array([[extent for shape in shapes(*c) for extent in shape] for c in calls])
    flops, moved = np.array(before.operators[0].flops), np.array(before.operators[0].moved_bytes)
    roofline = DEVICE.roofline_times(flops, moved, "float32")
    for hardware, codes in ((before, [MEASURED] * 15), (after, [INTERPOLATED] * 14 + [MEASURED])):
        found = hardware.operator_times.times(fitted.family, lambda: row, flops, moved, roofline)
        assert found[1].tolist() == codes
    assert found[0].tolist() == [*fitted.times_s, times[-1]]
    group = GroupShape(2, 1, 2, 1, True)
    assert collective_time(before, "broadcast", 4096.0, group).provenance == "measured"
    assert collective_time(after, "broadcast", 4096.0, group).provenance == "derived"
    again = hardware_from_document(hardware_document(after))
    assert (again, again.id) == (after, after.id)
    # What is on lines is no measurement: it is not fitted once more, nor its error told.
    with pytest.raises(BadInput, match="no table of mine-linear was measured at 3 sizes"):
        linear_fit(after)
    assert held_out_errors(after).all_operators is None


def test_profiles_that_are_not_fitted_keep_their_id() -> None:
    """By the id that this profile had before there were fits."""
    calls, times = layer_times()
    hardware = profile(
        linear_table(calls, times), collective("broadcast", 3e-10 * np.array(SIZES) + 1e-4)
    )
    assert hardware.id == OLD_ID
    linear_fit(hardware)
    held_out_errors(hardware)
    assert hardware.id == hardware_from_document(hardware_document(hardware)).id == OLD_ID


def test_what_differs_in_more_than_the_batch_is_another_operator() -> None:
    """Layers of other weights; a loss without an output to split; a broadcast operand."""
    weights = [(8, k, 16) for k in (16, 32, 64)]
    loss = linear_table(
        [(1, 1, 1)] * 3, [1e-5, 2e-5, 4e-5],
        kind="aten.cross_entropy_loss.default", arguments=("self", "target"),
        dtypes=("float32", "int64"), strides=("", ""), gradients=(True, False),
        shapes=tuple(((batch, 10), (batch,), ()) for batch in (2, 4, 8)),
    )  # fmt: skip
    add = linear_table(
        [(1, 1, 1)] * 6, [1e-5, 2e-5, 4e-5, 1.5e-5, 3e-5, 6e-5],
        kind="aten.add.Tensor", arguments=("self", "other"),
        dtypes=("float32",) * 2, strides=("", ""), gradients=(True, True),
        shapes=tuple(((b, 4), (b if i else 1, 4), (b, 4)) for i in (0, 1) for b in (2, 4, 8)),
    )  # fmt: skip
    hardware = profile(linear_table(weights, [1e-5, 2e-5, 3e-5]), loss, add)
    errors = held_out_errors(hardware)
    held_out = {row.kind: row.errors.held_out for row in errors.operators}
    assert held_out == {"aten.cross_entropy_loss.default": 3, "aten.add.Tensor": 6}
    assert errors.calls_without_line == 3
    _, lines_of_loss, lines_of_add = linear_fit(hardware).operators
    assert lines_of_loss.times_s == pytest.approx(loss.times_s)
    assert lines_of_add.times_s == pytest.approx(add.times_s)


def test_the_command_shows_both_errors_and_writes_the_profile(tmp_path: Path) -> None:
    calls, times = layer_times(noise=0.3)
    before = profile(
        linear_table([*calls, (5, 32, 32)], [*times, 4e-5]),
        collective("broadcast", 3e-10 * np.array(SIZES) + 1e-4),
    )
    source, target = tmp_path / "mine.json", tmp_path / "linear.json"
    source.write_text(json.dumps(hardware_document(before)))
    run = CliRunner()
    done = run.invoke(cli, ["hardware", "fit", str(source), "-o", str(target)])
    assert done.exit_code == 0, done.output
    errors = held_out_errors(before)
    assert errors.all_operators is not None
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("all operators")]
    ways = (errors.all_operators.interpolation, errors.all_operators.linear)
    assert line.split()[2:] == ["14", *(f"{v:.1%}" for way in ways for v in (way.median, way.p90))]
    assert "1 call without a line: measured at fewer than 3 batches" in done.stderr
    assert load_hardware(str(target)) == linear_fit(before)
    target.unlink()
    done = run.invoke(cli, ["hardware", "fit", str(source), "--json"])
    document = json.loads(done.stdout)
    assert document["schema"] == "shardwise.hardware-fit/1"
    assert document["of"] == before.id
    assert hardware_from_document(document["hardware"]) == linear_fit(before)
    (row,) = document["collectives"]
    assert row["operation"] == "broadcast"
    assert row["errors"]["held_out"] == 15
    assert row["errors"]["linear"]["p90"] < 1e-9 < row["errors"]["interpolation"]["p90"]
    assert document["all_operators"] == document["operators"][0]["errors"]
    assert not target.exists()


def test_a_profile_of_data_sheets_has_nothing_to_fit() -> None:
    with pytest.raises(BadInput, match=r"no table of l4 .* \(expected a profile"):
        linear_fit(load_hardware("l4"))
