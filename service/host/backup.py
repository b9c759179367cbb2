"""Backups: all stored rows as one file, the same for both databases.

gzip of JSON lines: a header with the schema's revision, one line for each row, a last line with
the counts, without which the file is not whole. It is written next to its target and renamed; it
is read back in one transaction. Bytes are base64 under `$bytes`.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, func, insert, select

from service.store.database import Database
from service.store.metadata import METADATA
from service.store.row_json import packed, unpacked
from service.store.schema import current_revision
from service.store.tables import SchemaFloor
from shardwise.errors import BadInput
from shardwise.files import private_file

SCHEMA = "shardwise.backup/1"
AT_ONCE = 200
"""Rows that are in memory at a time."""


def tables() -> list[Table]:
    """Returns the tables of a backup, parents first; the floor belongs to the schema."""
    return [t for t in METADATA.sorted_tables if t.name != SchemaFloor.__tablename__]


def write_backup(database: Database, path: Path) -> dict[str, int]:
    """Writes a snapshot of all rows. Returns the number of rows by table.

    Raises `BadInput` if the file cannot be written; then there is no file, or the old one.
    """
    with private_file(path) as raw, gzip.open(raw, "wt", encoding="utf-8") as out:
        return _write(database, out)


def _write(database: Database, out: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    header = {"schema": SCHEMA, "revision": current_revision(database)}
    out.write(json.dumps(header) + "\n")
    with database.errors(), database.engine.connect() as connection:
        if not database.sqlite:
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        for table in tables():
            counts[table.name] = 0
            rows = connection.execution_options(yield_per=AT_ONCE).execute(select(table))
            for row in rows.mappings():
                values = {name: packed(value) for name, value in row.items()}
                out.write(json.dumps({"table": table.name, "row": values}) + "\n")
                counts[table.name] += 1
    out.write(json.dumps({"end": counts}) + "\n")
    return counts


def read_backup(database: Database, path: Path) -> dict[str, int]:
    """Stores the rows of a backup in an empty database. Returns the number of rows by table.

    Raises `BadInput`, with the database as it was, for a file that is not whole, of another
    schema, or a database that is not empty.
    """
    lines = _lines(path)
    header = next(lines, {})
    if header.get("schema") != SCHEMA:
        raise BadInput("not a backup", file=str(path), field="schema", expected=SCHEMA)
    if header.get("revision") != (mine := current_revision(database)):
        raise BadInput(
            f"has schema {header.get('revision')!r}, the database has {mine!r}",
            file=str(path),
            field="revision",
            expected="restore it with the release that wrote it, then migrate",
        )
    counts = {table.name: 0 for table in tables()}
    with database.errors(), database.engine.begin() as connection:
        _require_empty(connection)
        for name, values in _batches(lines, path, counts):
            table = METADATA.tables[name]
            connection.execute(insert(table), values)
            counts[name] += len(values)
    return counts


def _require_empty(connection: Connection) -> None:
    for table in tables():
        if connection.scalar(select(func.count()).select_from(table)):
            raise BadInput(
                f"the database has rows in {table.name}",
                field="database",
                expected="an empty one: `shardwise migrate` on a new database",
            )


def _batches(
    lines: Iterator[dict[str, Any]], path: Path, counts: dict[str, int]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields runs of rows of one table. Raises BadInput unless the final counts match the rows."""
    name = ""
    rows: list[dict[str, Any]] = []
    for line in lines:
        if rows and (line.get("table") != name or len(rows) == AT_ONCE):
            yield name, rows
            rows = []
        if "end" in line:
            if line["end"] != counts:
                raise BadInput(
                    "rows are missing",
                    file=str(path),
                    field="end",
                    expected="a backup that was written to its end",
                )
            if next(lines, None) is not None:
                raise BadInput(
                    "goes on after its end",
                    file=str(path),
                    field="end",
                    expected="nothing behind the line of its end",
                )
            return
        name = line.get("table", "")
        if name not in counts:
            raise BadInput(
                f"unknown table {name!r}",
                file=str(path),
                field="table",
                expected="a table of this release's schema",
            )
        rows.append({column: unpacked(value) for column, value in line["row"].items()})
    raise BadInput("ends too early", file=str(path), field="end", expected="the last line's counts")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for text in file:
                line = json.loads(text)
                if not isinstance(line, dict):
                    raise ValueError
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError):
        raise BadInput("not a whole backup", file=str(path), expected=SCHEMA) from None
    except OSError as error:
        raise BadInput(
            (error.strerror or str(error)).lower(),
            file=str(path),
            expected="a file that can be read",
        ) from None
