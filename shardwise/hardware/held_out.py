"""How far interpolation and lines are off: every measured time predicted from the others.

A call of an operator, or a size of a collective's table, is left out, and its time T predicted as
T' from what else was measured, by interpolation (`operator_times.py`, `derived.py`) and by the
lines of `linear_fit.py`. The error is |T' / T - 1|. Both predict the same times, all to which a
line applies. Of an operator, interpolation has all other calls of the family, the line the other
batches of this operator. The smallest and the largest sizes count too: they are extrapolated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from shardwise.hardware.batches import Call, batches_of
from shardwise.hardware.derived import interpolate
from shardwise.hardware.device import Device
from shardwise.hardware.hardware import CollectiveTable, Hardware
from shardwise.hardware.lines import LEAST, collective_lines, least_squares
from shardwise.hardware.operator_tables import OperatorFamily, OperatorTable
from shardwise.hardware.operator_times import times_from_others


@dataclass(frozen=True)
class Errors:
    """Relative errors: their median and their 90th percentile."""

    median: float
    p90: float


@dataclass(frozen=True)
class Comparison:
    """Errors of both ways, over as many times that were left out one by one."""

    held_out: int
    interpolation: Errors
    linear: Errors


@dataclass(frozen=True)
class OperatorErrors:
    """Of an operator in one direction on one kind of device, all its families together."""

    device: str
    kind: str
    direction: str
    errors: Comparison


@dataclass(frozen=True)
class CollectiveErrors:
    """Of a collective, all groups together."""

    operation: str
    errors: Comparison


@dataclass(frozen=True)
class HeldOut:
    """Errors by operator and by collective, and over all of each; None where there are none.

    `calls_without_line` and `tables_without_line` have fewer than `LEAST` sizes.
    """

    operators: tuple[OperatorErrors, ...]
    collectives: tuple[CollectiveErrors, ...]
    all_operators: Comparison | None
    all_collectives: Comparison | None
    calls_without_line: int
    tables_without_line: int


@dataclass
class _Ratios:
    """Predicted over measured times."""

    interpolated: list[float]
    linear: list[float]


def held_out_errors(hardware: Hardware) -> HeldOut:
    """Returns the errors of both ways, over what was measured and not derived."""
    devices = {device.kind: device for device in hardware.devices}
    tables = [
        table for table in hardware.operators if table.device in devices and not table.derived
    ]
    operators = _operators(tables, devices)
    collectives: dict[str, _Ratios] = defaultdict(lambda: _Ratios([], []))
    measured = [table for table in hardware.collectives if not table.derived]
    for table in measured:
        if len(table.sizes_bytes) >= LEAST:
            _add_collective(collectives[table.operation], table)
    compared = sum(len(ratios.linear) for ratios in operators.values())
    return HeldOut(
        tuple(OperatorErrors(*key, _comparison([ratios])) for key, ratios in operators.items()),
        tuple(CollectiveErrors(name, _comparison([r])) for name, r in collectives.items()),
        _comparison(operators.values()) if operators else None,
        _comparison(collectives.values()) if collectives else None,
        sum(len(table.times_s) for table in tables) - compared,
        sum(len(table.sizes_bytes) < LEAST for table in measured),
    )


def _operators(
    tables: Sequence[OperatorTable], devices: Mapping[str, Device]
) -> dict[tuple[str, str, str], _Ratios]:
    interpolated = _interpolated(tables, devices)
    found: dict[tuple[str, str, str], _Ratios] = defaultdict(lambda: _Ratios([], []))
    for operator in batches_of(tables):
        table = tables[operator.calls[0].table]
        ratios = found[table.device, table.kind, table.direction]
        for i, (call, batch, time) in enumerate(
            zip(operator.calls, operator.batches, operator.times_s, strict=True)
        ):
            line = least_squares(np.delete(operator.batches, i), np.delete(operator.times_s, i))
            ratios.linear.append(float((line.slope * batch + line.fixed) / time))
            ratios.interpolated.append(float(interpolated[call] / time))
    return found


def _interpolated(
    tables: Sequence[OperatorTable], devices: Mapping[str, Device]
) -> dict[Call, float]:
    """Returns the times of calls, each from its family's others; not of one that has none."""
    families: dict[tuple[str, OperatorFamily], list[int]] = defaultdict(list)
    for number, table in enumerate(tables):
        families[table.device, table.family].append(number)
    found: dict[Call, float] = {}
    for (device, _), numbers in families.items():
        calls = [Call(n, row) for n in numbers for row in range(len(tables[n].times_s))]
        if len(calls) > 1:
            times = times_from_others([tables[n] for n in numbers], devices[device])
            found.update(zip(calls, times.tolist(), strict=True))
    return found


def _add_collective(ratios: _Ratios, table: CollectiveTable) -> None:
    sizes, times = np.array(table.sizes_bytes), np.array(table.times_s)
    for i, time in enumerate(table.times_s):
        size, other_sizes, other_times = sizes[i : i + 1], np.delete(sizes, i), np.delete(times, i)
        others = replace(table, sizes_bytes=tuple(other_sizes.tolist()))
        ratios.interpolated.append(float(interpolate(others, size, other_times)[0] / time))
        lines = collective_lines(table.operation, other_sizes, other_times)
        ratios.linear.append(float(lines.times(size)[0] / time))


def _comparison(parts: Iterable[_Ratios]) -> Comparison:
    parts = list(parts)
    interpolated = [*chain.from_iterable(part.interpolated for part in parts)]
    linear = [*chain.from_iterable(part.linear for part in parts)]
    return Comparison(len(linear), _errors(interpolated), _errors(linear))


def _errors(ratios: list[float]) -> Errors:
    away = np.abs(np.array(ratios) - 1.0)
    return Errors(float(np.median(away)), float(np.quantile(away, 0.9)))
