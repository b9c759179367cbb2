"""All published runs: the files of runs/, read and checked (runs/README.md has their form).

A file has `[[source]]`, `[[run]]` and `[[grid]]` tables. A grid is a short form of runs that share
most fields: `columns` names the fields that differ, `rows` has a list of their values for each run,
and every other field of the grid holds for all of them.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from shardwise.errors import BadInput
from shardwise.files import read_bounded
from shardwise.validation import convert

from .checks import check
from .run import Run, Source

FOLDER = Path(__file__).with_name("runs")
TABLES = ("source", "run", "grid")

LEAST_ROWS = 3
"""Runs of a grid whose order says anything."""


class Published(msgspec.Struct, frozen=True):
    """Sources by key, and the runs in the order of the files' names."""

    sources: dict[str, Source]
    runs: tuple[Run, ...]

    def project(self, run: Run) -> str:
        """Whose figures a run's are."""
        source = self.sources[run.source]
        return source.project or source.key

    def grids(self) -> dict[str, tuple[Run, ...]]:
        """The runs of each grid."""
        names = dict.fromkeys(run.grid for run in self.runs if run.grid)
        return {name: tuple(run for run in self.runs if run.grid == name) for name in names}


class _Grid(msgspec.Struct, frozen=True):
    columns: list[str]
    rows: list[list[Any]]


def read_published(path: Path = FOLDER) -> Published:
    """The checked content of a file, or of all files in a folder.

    Raises `BadInput` that names the file, the run and the field.
    """
    paths = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    if not paths:
        raise BadInput("no file", file=str(path), expected="TOML files of published runs")
    documents = {str(p): _document(p) for p in paths}
    sources: dict[str, Source] = {}
    for file, document in documents.items():
        for i, item in enumerate(_tables(document, "source", file)):
            source = convert(item, Source, f"source {_name(item, 'key', i)}", file=file)
            if source.key in sources:
                raise BadInput(
                    f"the key {source.key!r} is given twice", file=file, field="source.key"
                )
            sources[source.key] = source
    runs: dict[str, Run] = {}
    for file, document in documents.items():
        for i, item in enumerate(_items(document, file)):
            run = convert(item, Run, f"run {_name(item, 'name', i)}", file=file)
            if run.name in runs:
                raise BadInput(f"the name {run.name!r} is given twice", file=file, field="run.name")
            check(run, sources, file)
            runs[run.name] = run
    published = Published(sources, tuple(runs.values()))
    _check_grids(published, str(path))
    return published


def _document(path: Path) -> dict[str, Any]:
    file = str(path)
    try:
        document = tomllib.loads(read_bounded(path, "a TOML file of published runs").decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(str(error), file=file, expected="TOML") from None
    unknown = sorted(document.keys() - set(TABLES))
    if unknown:
        raise BadInput(f"unknown table {unknown[0]!r}", file=file, expected=", ".join(TABLES))
    return document


def _tables(document: dict[str, Any], name: str, file: str) -> list[Any]:
    tables = document.get(name, [])
    if not isinstance(tables, list):
        raise BadInput(f"no [[{name}]]", file=file, field=name, expected=f"[[{name}]] tables")
    return tables


def _items(document: dict[str, Any], file: str) -> list[Any]:
    """The runs of a file, those of its grids written out."""
    items = [*_tables(document, "run", file)]
    for i, grid in enumerate(_tables(document, "grid", file)):
        items.extend(_written_out(grid, f"grid {_name(grid, 'grid', i)}", file))
    if not items:
        raise BadInput("no [[run]]", file=file, field="run", expected="[[run]] or [[grid]] tables")
    return items


def _written_out(table: Any, field: str, file: str) -> Iterator[dict[str, Any]]:
    grid = convert(table, _Grid, field, file=file)
    shared = {key: value for key, value in table.items() if key not in ("columns", "rows")}
    twice = next((name for name, times in Counter(grid.columns).items() if times > 1), None)
    twice = twice or next((name for name in grid.columns if name in shared), None)
    if twice is not None:
        raise BadInput(
            f"{twice!r} is given twice",
            file=file,
            field=f"{field}: columns",
            expected="each field once, in columns or for all rows",
        )
    if not grid.rows:
        raise BadInput("no row", file=file, field=f"{field}: rows", expected="at least one")
    for r, row in enumerate(grid.rows):
        if len(row) != len(grid.columns):
            raise BadInput(
                f"{len(row)} values",
                file=file,
                field=f"{field}: rows[{r}]",
                expected=f"{len(grid.columns)}, one for each of {', '.join(grid.columns)}",
            )
        yield {**shared, **dict(zip(grid.columns, row, strict=True))}


def _name(item: Any, field: str, position: int) -> str:
    named = item.get(field) if isinstance(item, dict) else None
    return named if isinstance(named, str) and named else f"number {position + 1}"


def _check_grids(published: Published, file: str) -> None:
    """A grid's runs do the same work on as many of the same devices, each in its own way."""
    for name, runs in published.grids().items():
        # Not `capture`: tensor parallelism pads the vocabulary, so that it may differ.
        for field in ("seq", "dtype", "batch", "gpus", "hardware", "optimizer"):
            values = sorted({str(getattr(run, field)) for run in runs})
            if len(values) > 1:
                raise BadInput(
                    f"runs with {field} {' and '.join(values)}",
                    file=file,
                    field=f"grid {name}",
                    expected=f"one {field}",
                )
        if len(runs) < LEAST_ROWS:
            raise BadInput(
                f"{len(runs)} runs",
                file=file,
                field=f"grid {name}",
                expected=f"at least {LEAST_ROWS}",
            )
