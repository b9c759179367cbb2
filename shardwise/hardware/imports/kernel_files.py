"""The measured kernels of the package `aiconfigurator-core`: where they are, and their columns.

The package (NVIDIA, Apache-2.0) has a parquet file for each kind of kernel, GPU and library, in
`systems/data/SYSTEM/KIND/LIBRARY/VERSION`, and what it knows of a GPU in `systems/SYSTEM.yaml`.
Its code is never run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import BadInput
from shardwise.files import max_file_bytes, read_bounded
from shardwise.yaml_reader import read_yaml

PACKAGE = "aiconfigurator-core"
EXTRA = "pip install 'shardwise[silicon]'"
MAX_ROWS = 2_000_000
"""The most measured kernels that a file may have; the largest of 0.12.0 has 150,000."""
MAX_SIZE = 2**40
"""The largest integer of a column, and the most milliseconds of a kernel."""

Column = NDArray[Any]


@dataclass(frozen=True)
class Table:
    """A kind of table: the folder of its kind, its name, the types of its columns.

    Types are int, float or str. A file may lack what is `optional`.
    """

    kind: str
    name: str
    columns: Mapping[str, type]
    optional: Mapping[str, type] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernels:
    """One file of the package: its path, the library and its version, what it measured.

    `columns` are arrays of equal length by name.
    """

    file: str
    library: str
    version: str
    columns: Mapping[str, Column]

    def where(self, chosen: NDArray[Any]) -> Kernels:
        """Returns the rows that are chosen: an array (P,) of bool, or of their numbers."""
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return Kernels(self.file, self.library, self.version, columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def device(self) -> str:
        """The device that was measured, empty where the file does not say it."""
        named = self.columns.get("device")
        return "" if named is None or not len(named) else str(named[0])


@dataclass(frozen=True)
class Package:
    """The installed package: its version and the folder of its systems."""

    version: str
    folder: Path

    def systems(self) -> list[str]:
        """Returns the names of the systems of which products were measured."""
        return sorted(path.parent.name for path in (self.folder / "data").glob("*/gemm"))

    def check(self, system: str) -> None:
        """Raises `BadInput` for a system of which no products were measured."""
        known = self.systems()
        if system not in known:
            raise BadInput(
                f"no system {system!r} in {PACKAGE} {self.version}",
                field="system",
                expected=f"one of {', '.join(known)}",
            )

    def read(self, system: str, table: Table, library: str) -> Kernels | None:
        """Returns a table of the library's newest version that has it; None if none has it.

        Raises `BadInput`.
        """
        folder = self.folder / "data" / system / table.kind / library
        versions = folder.glob(f"*/{table.name}.parquet")
        newest = max(versions, key=lambda path: _number(path.parent.name), default=None)
        if newest is None:
            return None
        return Kernels(str(newest), library, newest.parent.name, _columns(newest, table))

    def figures(self, system: str) -> tuple[float, float]:
        """Returns the peak in bfloat16, flops per second, and the memory bandwidth, bytes per
        second, of a system's GPU. Raises `BadInput`."""
        path = str(self.folder / f"{system}.yaml")
        try:
            text = read_bounded(path, "what the package knows of a GPU").decode()
        except UnicodeDecodeError as error:
            raise BadInput(
                f"not text in UTF-8: {error.reason}", file=path, expected="text in UTF-8"
            ) from None
        document = read_yaml(text, file=path)
        gpu = document.get("gpu") if isinstance(document, dict) else None
        found = []
        for name in ("bfloat16_tc_flops", "mem_bw"):
            value = gpu.get(name) if isinstance(gpu, dict) else None
            if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
                raise BadInput(
                    f"got {value!r}", file=path, field=f"gpu.{name}", expected="a number above 0"
                )
            found.append(float(value))
        return found[0], found[1]


def installed() -> Package:
    """Returns the package; `BadInput` says what to install if it or what reads it is missing."""
    for module in ("aiconfigurator_core", "pyarrow", "yaml"):
        if util.find_spec(module) is None:
            raise BadInput(
                f"needs {module}, which is not installed", field="format", expected=EXTRA
            )
    spec = util.find_spec("aiconfigurator_core")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    folder = next((Path(p) / "systems" for p in places if (Path(p) / "systems").is_dir()), None)
    if folder is None:
        raise BadInput(f"{PACKAGE} has no systems", field="format", expected=EXTRA)
    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        version = "of unknown version"
    return Package(version, folder)


def _number(version: str) -> tuple[int, ...]:
    """Returns 0.24.0 as numbers; what is no number counts as a dot."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version))


def _columns(path: Path, table: Table) -> dict[str, Column]:
    """Returns the columns of a parquet file, and `device` if it has one; `BadInput` otherwise."""
    import pyarrow
    from pyarrow import parquet

    file, kind = str(path), "a parquet file of measured kernels"
    data = read_bounded(path, kind)
    try:
        stored = parquet.ParquetFile(pyarrow.BufferReader(data))
        _check_size(stored, file)
        present = set(stored.schema_arrow.names)
        missing = sorted(set(table.columns) - present)
        if missing:
            raise BadInput(
                f"no column {missing[0]}", file=file, expected=f"columns {', '.join(table.columns)}"
            )
        optional = {"device": str, **table.optional}
        types = {**table.columns, **{n: t for n, t in optional.items() if n in present}}
        read = stored.read(columns=list(types))
        return {name: _column(read[name], types[name], file, name) for name in types}
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"cannot be read: {reason}", file=file, expected=kind) from None


def _check_size(stored: Any, file: str) -> None:
    about = stored.metadata
    unpacked = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    if about.num_rows > MAX_ROWS or unpacked > max_file_bytes():
        raise BadInput(
            f"{about.num_rows} rows, {unpacked} bytes unpacked",
            file=file,
            expected=f"at most {MAX_ROWS} rows and {max_file_bytes()} bytes",
        )
    if not about.num_rows:
        raise BadInput("the file has no measured kernels", file=file, expected="measured kernels")


def _column(stored: Any, wanted: type, file: str, name: str) -> Column:
    values = stored.to_pylist()
    if wanted is str:
        right = all(isinstance(value, str) for value in values)
        if right:
            return np.array(values, dtype=np.str_)
        raise BadInput("not all are words", file=file, field=name, expected="text")
    kinds = (int,) if wanted is int else (int, float)
    least = 0 if wanted is int else 1e-9
    for value in values:
        if not isinstance(value, kinds) or isinstance(value, bool) or not least <= value < MAX_SIZE:
            raise BadInput(
                f"got {value!r}", file=file, field=name, expected=f"numbers from {least:g} to 2^40"
            )
    return np.array(values, dtype=np.int64 if wanted is int else np.float64)
