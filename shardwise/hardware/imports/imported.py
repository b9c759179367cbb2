"""A profile from other programs' measurements: their tables on the devices of a base profile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwise.errors import BadInput
from shardwise.files import read_bounded
from shardwise.hardware.builtin import list_builtin
from shardwise.hardware.hardware import CollectiveTable, Hardware, table_key
from shardwise.hardware.imports.aiconfigurator import measured_device, with_kernels
from shardwise.hardware.imports.linear import parse_linear, with_levels
from shardwise.hardware.imports.nccl_json import parse_json
from shardwise.hardware.imports.nccl_text import parse_text
from shardwise.hardware.imports.run import OPERATION_OF, Group, Row, Run, group_of
from shardwise.hardware.profiles import load_hardware

FORMATS = ("nccl-tests", "heterog", "aiconfigurator")
PREFERRED_TYPE = "float"

FORM = re.compile(r"SXM\d?|PCIE|\d+GB")
"""What tells apart devices of one model: `NVIDIA H100 80GB HBM3` is not `H100-SXM5-96GB-HBM2e`."""


_Key = tuple[str, int, int, bool]
"""Operation, nodes spanned, ranks per node, whether ranks are consecutive."""


def import_measurements(
    files: Sequence[str],
    format_name: str,
    base: str | None = None,
    name: str | None = None,
    group: tuple[int, int] | None = None,
) -> Hardware:
    """Returns the base profile with the files' measurements in place of its tables of the same
    shapes.

    Without `base` the built-in profile whose device the files name. `group` is (nodes, ranks per
    node) for files that do not say where their ranks were. With the format `aiconfigurator`,
    `files` is the name of one system of that package. Raises `BadInput` naming the file and the
    line or field.
    """
    if format_name not in FORMATS:
        raise BadInput(
            f"unknown format {format_name!r}",
            field="format",
            expected=f"one of {', '.join(FORMATS)}",
        )
    if format_name == "aiconfigurator":
        if group is not None:
            raise BadInput(
                "the package says where its ranks ran", field="group", expected="no --group"
            )
        return _kernels(files, base, name)
    if format_name == "heterog":
        if base is None:
            raise BadInput(
                "linear models do not name the devices", field="base", expected="--base NAME"
            )
        hardware = _load_base(base)
        tables: list[CollectiveTable] = []
        for file in files:
            models = parse_linear(read_bounded(file, "a file of linear models"), file)
            hardware = with_levels(hardware, models)
            tables += models.tables
    else:
        runs = [run for file in files for run in _runs(file)]
        named = {place.device for run in runs for place in run.places if place.device}
        hardware = _load_base(base or _base(named))
        tables = _tables(runs, hardware, group)
    merged = {table_key(t): t for t in hardware.collectives} | {table_key(t): t for t in tables}
    listed = ", ".join(files)
    source = f"{format_name}: {listed}"
    if len(merged) > len(tables) and "collectives" in hardware.sources:
        source += f"; of other groups {hardware.sources['collectives']}"
    return replace(
        hardware,
        name=name or f"{hardware.name}-imported",
        provenance=f"communication imported from {format_name} ({listed}); "
        f"else as {hardware.name}: {hardware.provenance}",
        collectives=tuple(merged.values()),
        sources={**hardware.sources, "collectives": source},
        measurement={**hardware.measurement, "imported": list(files), "format": format_name},
    )


def _kernels(systems: Sequence[str], base: str | None, name: str | None) -> Hardware:
    """Returns the base profile with the measured kernels of a system of aiconfigurator."""
    if len(systems) != 1:
        raise BadInput(
            f"{len(systems)} systems", field="system", expected="one system of aiconfigurator"
        )
    system = systems[0]
    device = measured_device(system)
    hardware = _load_base(base or _base({device}))
    return replace(
        with_kernels(hardware, system, _describes),
        name=name or f"{hardware.name}-imported",
        provenance=f"kernels imported from aiconfigurator ({system}); "
        f"else as {hardware.name}: {hardware.provenance}",
        measurement={**hardware.measurement, "imported": [system], "format": "aiconfigurator"},
    )


def _runs(file: str) -> list[Run]:
    data = read_bounded(file, "output of nccl-tests")
    if data.lstrip().startswith(b"{"):
        runs = parse_json(data, file)
    else:
        runs = parse_text(data.decode("utf-8", errors="replace"), file)
    if not runs:
        raise BadInput(
            "the file has no results",
            file=file,
            expected="output of nccl-tests: rows of size, count, type and times, or its JSON",
        )
    for run in runs:
        run.operation = run.operation or _from_name(file)
    return runs


def _from_name(file: str) -> str:
    """Returns the operation of `…/all_reduce-8.txt`, for outputs without their first lines."""
    word = file.replace("\\", "/").rpartition("/")[2].lower().replace("-", "_")
    for program, operation in OPERATION_OF.items():
        if word.startswith((program, operation)):
            return operation
    raise BadInput(
        "the operation is not known",
        file=file,
        expected="a line that names the program (all_reduce_perf), or a file named after it",
    )


def _describes(kind: str, device: str) -> bool:
    """Returns whether a profile's kind of device is the one that a program names."""
    words = set(device.upper().replace("-", " ").split())
    parts = kind.upper().split("-")
    return parts[0] in words and {word for word in words if FORM.fullmatch(word)} <= set(parts)


def _load_base(name: str) -> Hardware:
    """Returns the base profile. Raises `BadInput` for one with groups: tables of one kind of device
    do not say of which group's."""
    hardware = load_hardware(name)
    if hardware.groups:
        raise BadInput(
            f"{name} has groups of devices", field="base", expected="a profile without groups"
        )
    return hardware


def _base(named: set[str]) -> str:
    """Returns the built-in profile of the device that measurements name.

    What they say of places is nodes and ranks: of several profiles those of fewest levels are
    meant, and none with groups. Rented machines have the devices of another.
    """
    candidates = {
        profile
        for profile in list_builtin(rented=False)
        if not load_hardware(profile).groups
        and any(_describes(load_hardware(profile).devices[0].kind, device) for device in named)
    }
    levels = {name: len(load_hardware(name).levels) for name in candidates}
    candidates = {name for name in candidates if levels[name] == min(levels.values())}
    if len(candidates) == 1:
        return candidates.pop()
    devices = ", ".join(sorted(named)) or "no device"
    which = f"; it could be {' or '.join(sorted(candidates))}" if candidates else ""
    raise BadInput(
        f"the files name {devices}{which}",
        field="base",
        expected=f"--base with one of {', '.join(list_builtin())} or a profile file",
    )


def _tables(
    runs: Sequence[Run], hardware: Hardware, given: tuple[int, int] | None
) -> list[CollectiveTable]:
    """Returns one table per operation and shape; repeated runs give its spread."""
    rows: dict[_Key, list[Row]] = {}
    siblings: dict[_Key, int] = {}
    for run in runs:
        shape = _shape(run, hardware, given)
        key = (run.operation, shape.nodes, shape.ranks_per_node, shape.consecutive)
        rows.setdefault(key, []).extend(_one_type(run.rows))
        siblings[key] = min(siblings.get(key, shape.siblings), shape.siblings)
    return [_table(key, measured, siblings[key], runs[0].file) for key, measured in rows.items()]


def _shape(run: Run, hardware: Hardware, given: tuple[int, int] | None) -> Group:
    if run.places:
        shape = group_of(run.places, run.file)
    elif given is not None:
        shape = Group(given[0], given[1], True, 1)
    else:
        raise BadInput(
            "does not say where its ranks were",
            file=run.file,
            expected="lines `# Rank 0 … on HOST device 0`, or --group NODESxRANKS",
        )
    # As a mesh sees it: a group over several nodes is consecutive only where it fills them.
    if shape.nodes > 1:
        filled = shape.ranks_per_node == hardware.per_node and shape.consecutive
        shape = replace(shape, consecutive=filled)
    if shape.nodes * shape.ranks_per_node < 2:
        raise BadInput("one rank", file=run.file, expected="results of two ranks or more")
    return shape


def _one_type(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows of one element type: float32 if there is one, else the first."""
    types = [row.dtype for row in rows]
    wanted = PREFERRED_TYPE if PREFERRED_TYPE in types else types[0]
    return [row for row in rows if row.dtype == wanted]


def _table(key: _Key, rows: Sequence[Row], siblings: int, file: str) -> CollectiveTable:
    times: dict[int, list[float]] = {}
    for row in rows:
        times.setdefault(row.size_bytes, []).extend(row.times_s)
    if len(times) < 2:
        raise BadInput(f"{len(times)} size", file=file, expected="two sizes or more (-b, -e, -f)")
    sizes = sorted(times)
    repeated = min(len(times[size]) for size in sizes) > 1

    def at(percent: float) -> tuple[float, ...]:
        return tuple(float(np.percentile(times[size], percent)) for size in sizes)

    return CollectiveTable(
        *key,
        tuple(float(size) for size in sizes),
        at(50),
        at(10) if repeated else (),
        at(90) if repeated else (),
        tuple(len(times[size]) for size in sizes) if repeated else (),
        siblings,
    )
