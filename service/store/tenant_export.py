"""All that a tenant has as files: documents by their ids, rows as JSON lines.

Rows are read by their primary key in batches, each in a session of its own: an archive that takes
an hour holds no transaction open for it, and shows each row as it was when it was read. Secrets and
the hashes of keys are left out. The last file, `end.json`, has the counts: an archive without it is
not whole.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Table, select, tuple_

from service.base.archive import File
from service.store.database import Database, clock
from service.store.ids import iso
from service.store.launch_tables import Agent, Assignment, Enrolment, Launch, LogLine, Run
from service.store.question_blobs import whole_question
from service.store.row_json import packed
from service.store.tables import (
    AcceptedBytes,
    Attained,
    Audit,
    CurvePoint,
    GraphBlob,
    HardwareProfile,
    Idempotency,
    Job,
    Key,
    LoginSession,
    OwnedGraph,
    Result,
    Tenant,
    Watch,
)
from service.store.webhook_tables import Webhook, WebhookDelivery

EXPORT_SCHEMA = "shardwise.tenant-export/1"
ROWS_AT_ONCE = 200
DOCUMENTS_AT_ONCE = 20
"""Rows whose contents may be large."""

FILE_BYTES = 4 * 2**20
"""A file of JSON lines is closed once it is this large."""

LEFT_OUT = {
    Key.__tablename__: {"secret_hash", "once_hash"},
    Agent.__tablename__: {"token_hash", "once_hash"},
    Assignment.__tablename__: {"token"},
    Job.__tablename__: {"lease_token"},
    CurvePoint.__tablename__: {"lease_token"},
    Tenant.__tablename__: {"deleting_for"},
    Webhook.__tablename__: {"salt", "once_hash", "key_fingerprint"},
}
"""Columns that are secrets or their hashes."""

NOT_EXPORTED = {
    table.__tablename__
    for table in (AcceptedBytes, Attained, Enrolment, Idempotency, LoginSession, WebhookDelivery)
}
"""The bytes of two days, the time in workers, hashes of tokens, answers that are kept for a day,
logins, deliveries of webhooks."""


@dataclass(frozen=True)
class Noun:
    """A folder of the archive: a table, and the column whose content is a file of its own."""

    folder: str
    table: Table
    document: str | None = None


def _table(row: Any) -> Table:
    table: Table = row.__table__
    return table


NOUNS = (
    Noun("graphs", _table(OwnedGraph)),
    Noun("hardware", _table(HardwareProfile)),
    Noun("jobs", _table(Job)),
    Noun("results", _table(Result), "content"),
    Noun("points", _table(CurvePoint), "content"),
    Noun("watches", _table(Watch)),
    Noun("agents", _table(Agent)),
    Noun("launches", _table(Launch), "plan"),
    Noun("assignments", _table(Assignment)),
    Noun("runs", _table(Run)),
    Noun("audit", _table(Audit)),
    Noun("keys", _table(Key)),
    Noun("webhooks", _table(Webhook)),
)


def tenant_files(database: Database, tenant: str) -> Iterator[File]:
    """Yields the files of an existing tenant."""
    counts: dict[str, int] = {}
    with database.read() as session:
        row = session.get_one(Tenant, tenant)
        head = {"schema": EXPORT_SCHEMA, "tenant": tenant, "at": iso(clock(session))}
    yield File("manifest.json", _encode({**head, "limits": row.limits}))
    for noun in NOUNS:
        counts[noun.folder] = 0
        lines = _Lines(noun.folder)
        for values in _rows(database, noun, tenant):
            counts[noun.folder] += 1
            yield from _documents(database, noun, values)
            yield from lines.add(_shown(noun.table.name, values))
        yield from lines.close()
    counts["logs"] = 0
    for file, count in _logs(database, tenant):
        counts["logs"] += count
        yield file
    yield File("end.json", _encode({"schema": EXPORT_SCHEMA, "tenant": tenant, "rows": counts}))


class _Lines:
    """Files of JSON lines, one after another."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lines: list[bytes] = []
        self._size = 0
        self._number = 0

    def add(self, value: Any) -> Iterator[File]:
        line = _encode(value) + b"\n"
        self._lines.append(line)
        self._size += len(line)
        if self._size >= FILE_BYTES:
            yield from self.close()

    def close(self) -> Iterator[File]:
        if self._lines:
            self._number += 1
            yield File(f"{self._folder}/{self._number:06}.jsonl", b"".join(self._lines))
            self._lines, self._size = [], 0


def _rows(database: Database, noun: Noun, tenant: str) -> Iterator[dict[str, Any]]:
    """Yields all rows of a tenant by their primary key.

    Contents that are files are read one by one.
    """
    table = noun.table
    columns = [column for column in table.c if column.name != noun.document]
    key = list(table.primary_key.columns)
    at_once = DOCUMENTS_AT_ONCE if table.name in ("hardware", "runs") else ROWS_AT_ONCE
    last: tuple[Any, ...] | None = None
    while True:
        query = select(*columns).where(table.c.tenant_id == tenant).order_by(*key).limit(at_once)
        if last is not None:
            query = query.where(tuple_(*key) > tuple_(*last))
        with database.read() as session:
            rows = [dict(row) for row in session.execute(query).mappings()]
        if table.name == Job.__tablename__:
            yield from (_with_whole_question(database, row) for row in rows)
        else:
            yield from rows
        if len(rows) < at_once:
            return
        last = tuple(rows[-1][column.name] for column in key)


def _with_whole_question(database: Database, row: dict[str, Any]) -> dict[str, Any]:
    """Returns a job's row with the large part that its question refers to."""
    if row["blob_id"] is None:
        return row
    with database.read() as session:
        job = session.get(Job, row["id"])
        return row if job is None else {**row, "question": whole_question(session, job)}


def _documents(database: Database, noun: Noun, values: dict[str, Any]) -> Iterator[File]:
    """Yields the large contents of a row, each a file."""
    if noun.table.name == OwnedGraph.__tablename__:
        graph_id = values["graph_id"]
        content = _scalar(database, select(GraphBlob.content).where(GraphBlob.id == graph_id))
        if content is not None:
            yield File(_path("graphs", graph_id), zlib.decompress(content))
    elif noun.document is not None:
        key = list(noun.table.primary_key.columns)
        mine = [column == values[column.name] for column in key]
        content = _scalar(database, select(noun.table.c[noun.document]).where(*mine))
        unpack: Callable[[bytes], bytes] = zlib.decompress if noun.document == "plan" else bytes
        if content is not None:
            yield File(_path(noun.folder, str(values[key[-1].name])), unpack(content))


def _logs(database: Database, tenant: str) -> Iterator[tuple[File, int]]:
    """Yields the output of each launch, line by line."""
    launches = Noun("logs", _table(Launch), "plan")
    for launch in _rows(database, launches, tenant):
        after = 0
        while True:
            query = select(LogLine).where(LogLine.launch_id == launch["id"], LogLine.number > after)
            with database.read() as session:
                rows = session.scalars(query.order_by(LogLine.number).limit(1000)).all()
            if not rows:
                break
            lines = b"".join(
                _encode({"number": row.number, "rank": row.rank, "stream": row.stream,
                         "line": row.line, "text": row.text}) + b"\n"
                for row in rows
            )  # fmt: skip
            yield File(f"logs/{launch['id']}/{rows[0].number:09}.jsonl", lines), len(rows)
            after = rows[-1].number


def _shown(table: str, values: dict[str, Any]) -> dict[str, Any]:
    hidden = LEFT_OUT.get(table, set())
    return {
        name: packed(value)
        for name, value in values.items()
        if name not in hidden and name != "tenant_id"
    }


def _scalar(database: Database, query: Any) -> bytes | None:
    with database.read() as session:
        row: bytes | None = session.scalar(query)
    return row


def _path(folder: str, name: str) -> str:
    return f"{folder}/documents/{name.replace(':', '-')}.json"


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value)
