"""Cursor pages: newest first, stable while rows come and go."""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, tuple_

from service.base.base64url import from_base64url, to_base64url
from shardwise.errors import BadInput

PAGE_SCHEMA = "shardwise.page/1"
DEFAULT_LIMIT = 50
MAX_LIMIT = 200
CURSOR = "^[A-Za-z0-9_-]*$"
"""The characters of a cursor; the schema does not say which cursors are valid."""

Row = TypeVar("Row")
Place = tuple[float, str]


def after(query: Select[Any], at: Any, name: Any, place: Place | None, limit: int) -> Select[Any]:
    """Returns the query's next `limit` + 1 rows after `place`, by descending (at, name)."""
    if place is not None:
        behind: ColumnElement[bool] = tuple_(at, name) < tuple_(*place)
        query = query.where(behind)
    return query.order_by(at.desc(), name.desc()).limit(limit + 1)


def by_creation(row: Any) -> Place:
    """Returns the place of a row in a list ordered by creation."""
    return row.created_at, row.id


def page(
    rows: Sequence[Row],
    limit: int,
    place: Callable[[Row], Place],
    document: Callable[[Row], dict[str, Any]],
) -> dict[str, Any]:
    """Returns the page document of rows selected by `after`."""
    shown = rows[:limit]
    more = place(shown[-1]) if len(rows) > limit else None
    return page_of([document(row) for row in shown], more)


def page_of(items: list[dict[str, Any]], more: Place | None) -> dict[str, Any]:
    """Returns the page document of these items; `more` is where the next page begins after."""
    following = None if more is None else write_cursor(more)
    return {"schema": PAGE_SCHEMA, "items": items, "next": following}


def write_cursor(place: Place) -> str:
    """Returns a place in a list as opaque text."""
    return to_base64url(json.dumps(place).encode())


def read_cursor(text: str | None) -> Place | None:
    """Returns the place that a cursor names. Raises `BadInput` for anything else."""
    if not text:
        return None
    try:
        at, name = json.loads(from_base64url(text))
        if not (isinstance(at, float) and isinstance(name, str) and "\0" not in name):
            raise ValueError
        name.encode()
        return at, name
    except (ValueError, TypeError, binascii.Error, RecursionError):
        raise BadInput("unknown cursor", field="cursor", expected="`next` of a page") from None
