"""The library's answers as the documents that users read: JSON's objects, lists and values."""

from __future__ import annotations

from typing import Any

import msgspec

from shardwise import advise, documents
from shardwise.peers import comparison


def document(answer: msgspec.Struct) -> dict[str, Any]:
    """Returns an answer as its document."""
    members: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(answer))
    return members


def frontier(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Returns what `shardwise.advise.frontier` answers."""
    return document(advise.frontier(*arguments, **options))


def curve(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Returns what `shardwise.advise.curve` answers."""
    return document(advise.curve(*arguments, **options))


def plan(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Returns what `shardwise.advise.plan` answers."""
    return document(advise.plan(*arguments, **options))


def quote(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Returns what `shardwise.advise.quote` answers."""
    return document(advise.quote(*arguments, **options))


def explain(plan: Any) -> dict[str, Any]:
    """Returns what `shardwise.advise.explain` answers for the document of a plan."""
    return document(advise.explain(documents.read(plan, documents.Plan)))


def compare(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Returns what `shardwise.peers.comparison.compare` answers."""
    return document(comparison.compare(*arguments, **options))
