"""A tool: what it is for, what it takes, which document it returns, and what answers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Generic, TypeVar

import msgspec

from shardwise.documents import json_schema
from shardwise.mcp.arguments import input_schema, object_schema

A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True)
class Tool(Generic[A_co]):
    """A tool: its name, a title, a description for the model that chooses among tools, the type of
    its arguments, its document, by the word of `shardwise.documents`, as a type or as several, and
    `answer`, which returns the document.

    `searches` says that it may take long: it reports progress and can be cancelled. `about`
    describes arguments whose types do not.
    """

    name: str
    title: str
    description: str
    arguments: type[msgspec.Struct]
    document: str | type[msgspec.Struct] | UnionType
    answer: A_co
    searches: bool = True
    about: Mapping[str, str] = field(default_factory=dict)

    def input_schema(self) -> dict[str, Any]:
        """Returns the JSON Schema of the arguments."""
        return input_schema(self.arguments, self.about)

    def output_schema(self) -> dict[str, Any]:
        """Returns the JSON Schema of the document, as `shardwise schema` prints it, with the object
        at the root."""
        if isinstance(self.document, str):
            return object_schema(json_schema(self.document))
        return object_schema(msgspec.json.schema(self.document))
