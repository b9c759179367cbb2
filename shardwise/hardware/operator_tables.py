"""Measured times of operators: the tables in `operators` of a profile.

A table belongs to one **family**: calls of one operator in one direction that differ in nothing
but shapes. Its columns have one entry per measured call. In a file:

    {"kind": "aten.linear.default", "direction": "backward", "device": "cpu",
     "attributes": {}, "arguments": ["input", "weight"], "dtypes": ["float32", "float32"],
     "strides": ["", ""], "gradients": [true, true], "outputs": 1, "threads": 1, "ranks": 2,
     "flushed": true,
     "shapes": [[[8, 768], [3072, 768], [8, 3072]]],
     "flops": [7.5e7], "moved_bytes": [2.8e7],
     "times_s": [0.0011], "spreads": [0.02], "repetitions": [12]}

`shapes` has of each call the local shapes of the inputs and then of the `outputs`; `flops` and
`moved_bytes` are what the cost model counts for that call (its roofline); `times_s` is the median,
`spreads` half the distance of the quartiles relative to it. `strides` says how each input lies in
memory (`sharding/strides.py`; "" is contiguous), `gradients` which inputs backward gives a
gradient. `ranks` measured at the same time on one host, each with `threads` threads (0: not
a CPU), with the caches `flushed` between repetitions or not. `derived`, only in tables whose times
were not measured, is the rule that they come from (`linear_fit.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import Any, Literal

import msgspec

from shardwise.errors import BadInput

Direction = Literal["forward", "backward", "update"]
DIRECTIONS = ("forward", "backward", "update")

Shapes = tuple[tuple[int, ...], ...]
"""Of the inputs of a call, then of its outputs."""


@dataclass(frozen=True)
class OperatorFamily:
    """Calls that differ only in shapes; `attributes` is the canonical JSON of those that matter.

    `direction` is `update` for one parameter's step of an optimizer (`optimizer.adam`).
    """

    kind: str
    direction: Direction
    attributes: str
    arguments: tuple[str, ...]
    dtypes: tuple[str, ...]
    strides: tuple[str, ...]
    gradients: tuple[bool, ...]
    ranks: tuple[int, ...]
    outputs: int

    @cached_property
    def relatives(self) -> tuple[object, ...]:
        """What families that lend each other utilisation share: all but how operands lie."""
        return (self.kind, self.direction, self.attributes, self.dtypes)

    @cached_property
    def _hash(self) -> int:
        return hash((self.relatives, self.arguments, self.strides, self.gradients, self.ranks))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class OperatorTable:
    """The measured calls of one family on one kind of device; columns of equal length."""

    kind: str
    direction: Direction
    device: str
    attributes: Mapping[str, Any]
    arguments: tuple[str, ...]
    dtypes: tuple[str, ...]
    strides: tuple[str, ...]
    gradients: tuple[bool, ...]
    outputs: int
    threads: int
    ranks: int
    flushed: bool
    shapes: tuple[Shapes, ...]
    flops: tuple[float, ...]
    moved_bytes: tuple[float, ...]
    times_s: tuple[float, ...]
    spreads: tuple[float, ...]
    repetitions: tuple[int, ...]
    derived: str = ""

    @cached_property
    def family(self) -> OperatorFamily:
        return OperatorFamily(
            self.kind,
            self.direction,
            canonical(self.attributes),
            self.arguments,
            self.dtypes,
            self.strides,
            self.gradients,
            tuple(len(shape) for shape in self.shapes[0]),
            self.outputs,
        )

    def only(self, rows: Sequence[int]) -> OperatorTable:
        """Returns the table with only these calls."""
        return replace(
            self,
            shapes=tuple(self.shapes[i] for i in rows),
            flops=tuple(self.flops[i] for i in rows),
            moved_bytes=tuple(self.moved_bytes[i] for i in rows),
            times_s=tuple(self.times_s[i] for i in rows),
            spreads=tuple(self.spreads[i] for i in rows),
            repetitions=tuple(self.repetitions[i] for i in rows),
        )


def canonical(attributes: Mapping[str, Any]) -> str:
    """Returns equal text for equal attributes."""
    return msgspec.json.encode(attributes, order="deterministic").decode()


class OperatorTableFile(msgspec.Struct):
    """One table as a file has it."""

    kind: str
    direction: Direction
    device: str
    arguments: list[str]
    dtypes: list[str]
    shapes: list[list[list[int]]]
    flops: list[float]
    moved_bytes: list[float]
    times_s: list[float]
    attributes: dict[str, Any] = {}
    strides: list[str] | None = None
    gradients: list[bool] | None = None
    outputs: int = 1
    threads: int = 0
    ranks: int = 1
    flushed: bool = True
    spreads: list[float] | None = None
    repetitions: list[int] | None = None
    derived: str = ""


def operator_tables(
    parsed: Sequence[OperatorTableFile], file: str | None
) -> tuple[OperatorTable, ...]:
    """Returns checked tables. Raises `BadInput`, which names the file and the field."""
    seen: dict[tuple[object, ...], str] = {}
    tables = []
    for i, table in enumerate(parsed):
        at = f"operators[{i}]"
        _check(table, at, file)
        checked = _table(table)
        for p, shapes in enumerate(checked.shapes):
            key = (checked.device, checked.family, shapes)
            where = f"{at}.shapes[{p}]"
            if key in seen:
                raise BadInput(
                    f"the same call as {seen[key]}",
                    file=file,
                    field=where,
                    expected="each call once",
                )
            seen[key] = where
        tables.append(checked)
    return tuple(tables)


def _table(table: OperatorTableFile) -> OperatorTable:
    count, inputs = len(table.times_s), len(table.arguments)
    return OperatorTable(
        table.kind,
        table.direction,
        table.device,
        table.attributes,
        tuple(table.arguments),
        tuple(table.dtypes),
        tuple(table.strides or [""] * inputs),
        tuple(table.gradients or [False] * inputs),
        table.outputs,
        table.threads,
        table.ranks,
        table.flushed,
        tuple(tuple(tuple(shape) for shape in shapes) for shapes in table.shapes),
        tuple(table.flops),
        tuple(table.moved_bytes),
        tuple(table.times_s),
        tuple(table.spreads or [0.0] * count),
        tuple(table.repetitions or [1] * count),
        table.derived,
    )


def _check(table: OperatorTableFile, at: str, file: str | None) -> None:
    def demand(holds: bool, name: str, problem: str, expected: str) -> None:
        if not holds:
            raise BadInput(problem, file=file, field=f"{at}.{name}", expected=expected)

    count, inputs = len(table.times_s), len(table.arguments)
    demand(count >= 1, "times_s", "no times", "at least one measured call")
    columns: tuple[tuple[str, Sequence[object] | None], ...] = (
        ("shapes", table.shapes),
        ("flops", table.flops),
        ("moved_bytes", table.moved_bytes),
        ("spreads", table.spreads),
        ("repetitions", table.repetitions),
    )
    for name, column in columns:
        if column is not None:
            demand(
                len(column) == count,
                name,
                f"{len(column)} entries for {count} times",
                "one entry for each of times_s",
            )
    per_input: tuple[tuple[str, Sequence[object] | None], ...] = (
        ("dtypes", table.dtypes),
        ("strides", table.strides),
        ("gradients", table.gradients),
    )
    for name, column in per_input:
        if column is not None:
            demand(
                len(column) == inputs,
                name,
                f"{len(column)} entries for {inputs} arguments",
                "one entry for each of arguments",
            )
    for name, lowest in (("outputs", 0), ("threads", 0), ("ranks", 1)):
        value = getattr(table, name)
        demand(value >= lowest, name, f"{value}", f"at least {lowest}")
    for name, values, above in (
        ("times_s", table.times_s, True),
        ("flops", table.flops, False),
        ("moved_bytes", table.moved_bytes, False),
        ("spreads", table.spreads or [], False),
    ):
        for p, number in enumerate(values):
            demand(
                isfinite(number) and (number > 0 if above else number >= 0),
                f"{name}[{p}]",
                f"got {number}",
                "a finite number " + ("above 0" if above else "of at least 0"),
            )
    for p, repetitions in enumerate(table.repetitions or []):
        demand(repetitions >= 1, f"repetitions[{p}]", f"got {repetitions}", "at least 1")
    ranks = [len(shape) for shape in table.shapes[0]]
    for p, shapes in enumerate(table.shapes):
        demand(
            len(shapes) == inputs + table.outputs and [len(shape) for shape in shapes] == ranks,
            f"shapes[{p}]",
            f"shapes of {[len(shape) for shape in shapes]} dimensions",
            f"{inputs} of inputs and {table.outputs} of outputs with as many dimensions as the "
            f"first call's, {ranks}",
        )
        demand(
            all(extent >= 0 for shape in shapes for extent in shape),
            f"shapes[{p}]",
            "a negative extent",
            "extents of at least 0",
        )
