"""A launch's output, line by line, numbered in the order in which it came.

Bounded by lines and by bytes. The newest lines are kept, since errors come at the end; lines
dropped here or by the agent are counted in the launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Select, delete, func, insert, select, update
from sqlalchemy.orm import Session

from service.store.launch_tables import Launch, LogLine

MAX_LINE_BYTES = 4096
MAX_PAGE_BYTES = 2**20
LINES_AT_ONCE = 100
LOG_SCHEMA = "shardwise.log/1"


def add_lines(
    session: Session,
    launch_id: str,
    *,
    rank: int,
    stream: str,
    first_line: int,
    lines: Sequence[str],
    dropped: int,
    max_lines: int,
    max_bytes: int,
) -> None:
    """Appends lines to the output of a locked launch; cuts long lines."""
    kept = [_cut(line) for line in lines]
    sizes = [len(line.encode()) + 1 for line in kept]
    line_count, byte_count = session.execute(
        update(Launch)
        .where(Launch.id == launch_id)
        .values(
            log_lines=Launch.log_lines + len(kept),
            log_bytes=Launch.log_bytes + sum(sizes),
            log_dropped=Launch.log_dropped + dropped,
        )
        .returning(Launch.log_lines, Launch.log_bytes)
        .execution_options(synchronize_session=False)
    ).one()
    through = byte_count - sum(sizes)
    rows = []
    for i, (line, size) in enumerate(zip(kept, sizes, strict=True)):
        through += size
        rows.append(
            {
                "launch_id": launch_id,
                "number": line_count - len(kept) + i + 1,
                "rank": rank,
                "stream": stream,
                "line": first_line + i,
                "text": line,
                "through_bytes": through,
            }
        )
    if rows:
        session.execute(insert(LogLine), rows)
        _forget(session, launch_id, line_count - max_lines, byte_count - max_bytes)


def _forget(session: Session, launch_id: str, through_line: int, through_bytes: int) -> None:
    """Deletes the oldest lines: up to a number, and up to the one that reaches a byte."""
    mine = LogLine.launch_id == launch_id
    if through_bytes > 0:
        reaches = select(func.min(LogLine.number)).where(
            mine, LogLine.through_bytes >= through_bytes
        )
        through_line = max(through_line, session.scalar(reaches) or 0)
    if through_line < 1:
        return
    gone = session.scalars(
        delete(LogLine)
        .where(mine, LogLine.number <= through_line)
        .returning(LogLine.number)
        .execution_options(synchronize_session=False)
    ).all()
    if gone:
        session.execute(
            update(Launch)
            .where(Launch.id == launch_id)
            .values(log_dropped=Launch.log_dropped + len(gone))
            .execution_options(synchronize_session=False)
        )


def read_lines(
    session: Session, launch: Launch, after: int, rank: int | None, limit: int
) -> dict[str, Any]:
    """Returns a page of lines after number `after`; `next` is the `after` of the next page.

    It has at most `limit` lines and, except for the first line, `MAX_PAGE_BYTES` of text.
    """
    query = select(LogLine).where(LogLine.launch_id == launch.id)
    if rank is not None:
        query = query.where(LogLine.rank == rank)
    rows: list[LogLine] = []
    size = 0
    more = False
    for row in _lines(session, query, after, limit):
        size += len(row.text.encode())
        if rows and size > MAX_PAGE_BYTES:
            more = True
            break
        rows.append(row)
    return {
        "schema": LOG_SCHEMA,
        "launch": launch.id,
        "lines": [
            {
                "number": row.number,
                "rank": row.rank,
                "stream": row.stream,
                "line": row.line,
                "text": row.text,
            }
            for row in rows
        ],
        "next": rows[-1].number if rows else after,
        "more": more or len(rows) == limit,
        "dropped": launch.log_dropped,
    }


def _lines(session: Session, query: Select[Any], after: int, limit: int) -> Iterator[LogLine]:
    """Yields at most `limit` lines after number `after`, read in batches."""
    while limit > 0:
        some = query.where(LogLine.number > after).order_by(LogLine.number)
        rows = session.scalars(some.limit(min(limit, LINES_AT_ONCE))).all()
        yield from rows
        if len(rows) < LINES_AT_ONCE:
            return
        limit, after = limit - len(rows), rows[-1].number


def _cut(line: str) -> str:
    data = line.encode()
    return line if len(data) <= MAX_LINE_BYTES else data[:MAX_LINE_BYTES].decode(errors="ignore")
