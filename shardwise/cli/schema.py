"""schema: the JSON Schemas of the documents."""

from __future__ import annotations

import click

from shardwise.cli.arguments import json_option
from shardwise.cli.output import emit, say


@click.command()
@click.argument("kind", required=False)
@json_option
def schema(kind: str | None, as_json: bool) -> None:
    """Print the JSON Schema of a kind of document, or list the kinds."""
    from shardwise.documents import DOCUMENTS, json_schema
    from shardwise.documents.service import SERVICE_DOCUMENTS

    kinds = [*DOCUMENTS, *SERVICE_DOCUMENTS]
    if kind is not None:
        emit(json_schema(kind))
    elif as_json:
        emit({"kinds": kinds})
    else:
        for name in kinds:
            say(name)
