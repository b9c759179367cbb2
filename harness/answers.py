"""The library's answers as the documents that users read: JSON's objects, lists and values."""

from __future__ import annotations

from typing import Any

import msgspec

from shardwise import answers as advice
from shardwise import documents
from shardwise.peers import comparison


def document(answer: msgspec.Struct) -> dict[str, Any]:
    """Returns an answer as its document."""
    members: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(answer))
    return members


def frontier(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Returns what `shardwise.answers.frontier` answers."""
    return document(advice.frontier(*arguments, **options))


def curve(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Returns what `shardwise.answers.curve` answers."""
    return document(advice.curve(*arguments, **options))


def plan(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Returns what `shardwise.answers.plan` answers."""
    return document(advice.plan(*arguments, **options))


def quote(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Returns what `shardwise.answers.quote` answers."""
    return document(advice.quote(*arguments, **options))


def explain(plan: Any) -> dict[str, Any]:
    """Returns what `shardwise.answers.explain` answers for the document of a plan."""
    return document(advice.explain(documents.read(plan, documents.Plan)))


def compare(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Returns what `shardwise.peers.comparison.compare` answers."""
    return document(comparison.compare(*arguments, **options))
