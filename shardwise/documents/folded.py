"""`shardwise.plan/2`: plans and pipelines as files have them, with rows that repeat written once.

It is version 1 with its long lists shared (`shardwise/folding.py`), and another way to write the
same document: ids stay, and reading gives back version 1. One with `stages` is a
`shardwise.pipeline/1`, one without a `shardwise.plan/1`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shardwise.documents.common import schema_of
from shardwise.documents.pipeline import Pipeline
from shardwise.documents.plan import Plan
from shardwise.documents.whole_plan import WholePlan
from shardwise.errors import BadInput
from shardwise.folding import MOST_BYTES, Room, share_rows, unshare_rows

FOLDED_SCHEMA = "shardwise.plan/2"
PLAN_SCHEMAS = (schema_of(WholePlan), schema_of(Pipeline), FOLDED_SCHEMA)
"""All that a plan may be written as."""
LISTS = (
    "groups",
    "edges",
    "order",
    "schedule.backward",
    "undescribed_operators",
    "replicated_operators",
)
"""What is folded: of each layer they say much the same."""
GROWING = ("segment",)
"""Members of their rows whose numbers differ from layer to layer."""
MOST_ROWS = 4_000_000
"""Rows of a list: a graph may have as many tensors."""


def is_folded(document: object) -> bool:
    """Returns whether decoded JSON is of version 2, which may be long once it is unfolded."""
    return isinstance(document, Mapping) and document.get("schema") == FOLDED_SCHEMA


def folded(document: Plan) -> dict[str, Any]:
    """Returns a document as JSON values of version 2."""

    def share(rows: Any, name: str) -> Any:
        shared = share_rows(rows, GROWING)
        return shared if len(shared["templates"]) < len(rows) else rows

    return {**_replaced(msgspec.to_builtins(document), share), "schema": FOLDED_SCHEMA}


def unfolded(document: Any, file: str | None = None, most_bytes: int = MOST_BYTES) -> Any:
    """Returns decoded JSON of version 2 as that of version 1, and anything else as it is.

    Raises `BadInput` with file and field for what is not of that form, and before it is made for
    what unfolds to more than `MOST_ROWS` rows of a list or `most_bytes` in all.
    """
    if not is_folded(document):
        return document
    room = Room(most_bytes)

    def unshare(shared: Any, name: str) -> Any:
        if not isinstance(shared, dict):
            return shared
        return unshare_rows(shared, MOST_ROWS, name, room)

    form: type[Plan] = Pipeline if "stages" in document else WholePlan
    try:
        return {**_replaced(document, unshare), "schema": schema_of(form)}
    except BadInput as error:
        raise error.in_file(file) if file else error from None
    except RecursionError:
        raise BadInput(
            "nested too deeply", file=file, expected="a file that `shardwise plan` wrote"
        ) from None


def _replaced(document: Mapping[str, Any], change: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Returns a document with each list of `LISTS` that it has replaced by what `change` returns of
    it and its name."""
    result = dict(document)
    for path in LISTS:
        name, _, member = path.partition(".")
        if not member and name in result:
            result[name] = change(result[name], path)
        elif member and isinstance(result.get(name), dict) and member in result[name]:
            result[name] = {**result[name], member: change(result[name][member], path)}
    return result
