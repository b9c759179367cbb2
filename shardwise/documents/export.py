"""`shardwise.export/1`: a plan as the text that a scheduler or a trainer reads."""

from __future__ import annotations

import msgspec


class Export(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.export/1"):
    """What starts a plan's hosts, or the configuration of the trainer that runs it.

    `format` is the scheduler or the trainer that reads `text`, `filename` the usual name of a
    trainer's file, null for schedulers. `unsaid` are sentences on what the plan says and the text
    cannot.
    """

    plan: str
    format: str
    media_type: str
    text: str
    filename: str | None = None
    unsaid: list[str] = []
