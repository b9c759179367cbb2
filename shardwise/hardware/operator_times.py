"""Times of operators from measured tables: the call itself, else its relatives' utilisation.

With R the roofline time of a call (`Device.roofline_times`: its operations F and bytes B on this
device) and T a measured time, the utilisation of a measured call is

    u = R / T

It changes slowly where time does not, so utilisation is interpolated, not time (docs/costs.md). For
a call that was not measured, over the k nearest measured calls i of its family (`NEAREST`) in

    d_i = sqrt(ln²(F / F_i) + ln²(B / B_i)),    w_i = 1 / d_i²
    ln u = Σ w_i ln u_i / Σ w_i,                T = R / u

so that u lies between the neighbours' utilisations: nothing is extrapolated but through R. A
family without a measured call asks its relatives: same kind, direction, attributes and dtypes,
operands that lie otherwise in memory. A call without relatives, or whose operations or bytes are
beyond those of all measured calls by more than the factor `REACH`, is modelled: T = R.

A call in a table that is derived (`linear_fit.py`) takes the table's time, as an interpolated one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from shardwise.hardware.device import Device
from shardwise.hardware.grid import Floats
from shardwise.hardware.operator_tables import OperatorFamily, OperatorTable
from shardwise.hardware.sources import INTERPOLATED, MEASURED, MODELLED, Codes

NEAREST = 4
REACH = 16.0
"""How many times less or more than all measured calls a call may do to be interpolated."""

COINCIDENT = 1e-12
"""A squared distance below this counts as this."""

Rows = NDArray[np.int64]
"""Shapes of calls, extents of all inputs and outputs one after another, one call a row."""


@dataclass(frozen=True)
class _Calls:
    """Measured calls of one family: rows of shapes, sorted by their hash; what each time is."""

    hashes: NDArray[np.uint64]
    rows: Rows
    times_s: Floats
    codes: Codes


@dataclass(frozen=True)
class _Points:
    """Measured calls as points (ln F, ln B) with their ln u."""

    places: Floats
    utilisations: Floats


class OperatorTimes:
    """The operator tables of one kind of device, prepared for many calls at once."""

    def __init__(self, tables: Iterable[OperatorTable], device: Device) -> None:
        self._calls: dict[OperatorFamily, _Calls] = {}
        by_family: dict[OperatorFamily, list[OperatorTable]] = defaultdict(list)
        by_relatives: dict[tuple[object, ...], list[OperatorTable]] = defaultdict(list)
        for table in tables:
            if table.device == device.kind:
                by_family[table.family].append(table)
                by_relatives[table.family.relatives].append(table)
        for family, measured in by_family.items():
            self._calls[family] = _calls(measured)
        self._points: Mapping[OperatorFamily, _Points] = {
            family: _points(measured, device) for family, measured in by_family.items()
        }
        self._relatives: Mapping[tuple[object, ...], _Points] = {
            key: _points(measured, device) for key, measured in by_relatives.items()
        }

    @property
    def known(self) -> bool:
        """Whether there is any table for this kind of device."""
        return bool(self._calls)

    def times(
        self,
        family: OperatorFamily,
        rows: Callable[[], Rows],
        flops: Floats,
        moved_bytes: Floats,
        roofline_s: Floats,
    ) -> tuple[Floats, Codes]:
        """Returns seconds of n calls of a family and the source of each (arrays of length n).

        `rows` gives their shapes (n, extents) and is only asked where the family was measured.
        """
        points = self._points.get(family) or self._relatives.get(family.relatives)
        if points is None:
            return roofline_s, np.full(len(roofline_s), MODELLED, dtype=np.int8)
        calls = self._calls.get(family)
        if calls is None:
            return _interpolate(points, flops, moved_bytes, roofline_s)
        measured, times, codes = _look_up(calls, rows())
        if not measured.all():
            others = ~measured
            times[others], codes[others] = _interpolate(
                points, flops[others], moved_bytes[others], roofline_s[others]
            )
        return times, codes


def times_from_others(tables: Sequence[OperatorTable], device: Device) -> Floats:
    """Returns for each call of one family, two or more, its time if only the others were measured.

    Calls are in the order of the tables. Seconds by interpolation, beyond `REACH` by the roofline.
    """
    points = _points(tables, device)
    times = np.empty(len(points.utilisations))
    calls = ((table, row) for table in tables for row in range(len(table.times_s)))
    for i, (table, row) in enumerate(calls):
        flops, moved = (
            np.array(table.flops[row : row + 1]),
            np.array(table.moved_bytes[row : row + 1]),
        )
        others = _Points(np.delete(points.places, i, axis=0), np.delete(points.utilisations, i))
        roofline = device.roofline_times(flops, moved, compute_dtype(table.dtypes))
        times[i] = _interpolate(others, flops, moved, roofline)[0][0]
    return times


def _calls(tables: list[OperatorTable]) -> _Calls:
    rows = np.array(
        [[extent for shape in shapes for extent in shape] for t in tables for shapes in t.shapes],
        dtype=np.int64,
    )
    hashes = _hashes(rows)
    order = np.argsort(hashes, kind="stable")
    times = np.array([time for t in tables for time in t.times_s])
    sources = [INTERPOLATED if t.derived else MEASURED for t in tables for _ in t.times_s]
    codes = np.array(sources, dtype=np.int8)
    return _Calls(hashes[order], rows[order], times[order], codes[order])


def _points(tables: Sequence[OperatorTable], device: Device) -> _Points:
    places, utilisations = [], []
    for table in tables:
        flops, moved = np.array(table.flops), np.array(table.moved_bytes)
        roofline = device.roofline_times(flops, moved, compute_dtype(table.dtypes))
        places.append(_places(flops, moved))
        utilisations.append(np.log(_positive(roofline)) - np.log(np.array(table.times_s)))
    return _Points(np.concatenate(places), np.concatenate(utilisations))


def compute_dtype(dtypes: tuple[str, ...]) -> str:
    """Returns the dtype whose peak an operator reaches: its first floating-point operand's."""
    return next((d for d in dtypes if d.startswith(("float", "bfloat"))), dtypes[0])


def _places(flops: Floats, moved_bytes: Floats) -> Floats:
    return np.log(np.maximum(np.stack([flops, moved_bytes], axis=-1), 1.0))


def _positive(roofline_s: Floats) -> Floats:
    """Returns times above 0: a device without latency takes no time for no work."""
    return np.maximum(roofline_s, 1e-12)


def _interpolate(
    points: _Points, flops: Floats, moved_bytes: Floats, roofline_s: Floats
) -> tuple[Floats, Codes]:
    here = _places(flops, moved_bytes)
    squared = ((here[:, None, :] - points.places[None, :, :]) ** 2).sum(axis=-1)
    utilisation = np.broadcast_to(points.utilisations, squared.shape)
    if squared.shape[1] > NEAREST:
        nearest = np.argpartition(squared, NEAREST - 1, axis=1)[:, :NEAREST]
        squared = np.take_along_axis(squared, nearest, axis=1)
        utilisation = np.take_along_axis(utilisation, nearest, axis=1)
    weights = 1.0 / np.maximum(squared, COINCIDENT)
    mean = (weights * utilisation).sum(axis=1) / weights.sum(axis=1)
    lowest, highest = points.places.min(axis=0), points.places.max(axis=0)
    far = (np.maximum(lowest - here, here - highest) > log(REACH)).any(axis=1)
    times = np.where(far, roofline_s, _positive(roofline_s) / np.exp(mean))
    return times, np.where(far, MODELLED, INTERPOLATED).astype(np.int8)


def _look_up(calls: _Calls, rows: Rows) -> tuple[NDArray[np.bool_], Floats, Codes]:
    """Returns which rows are in tables, their times, and what these are."""
    if rows.shape[1] != calls.rows.shape[1]:
        none = np.zeros(len(rows), dtype=bool)
        return none, np.zeros(len(rows)), np.full(len(rows), MEASURED, dtype=np.int8)
    hashes = _hashes(rows)
    place = np.minimum(np.searchsorted(calls.hashes, hashes), len(calls.hashes) - 1)
    return (calls.rows[place] == rows).all(axis=1), calls.times_s[place], calls.codes[place]


def _hashes(rows: Rows) -> NDArray[np.uint64]:
    """Returns a number per row; equal rows have equal numbers."""
    mixed = np.full(len(rows), 1469598103934665603, dtype=np.uint64)
    for column in rows.T.astype(np.uint64):
        mixed = (mixed ^ column) * np.uint64(1099511628211)
        mixed ^= mixed >> np.uint64(29)
    return mixed
