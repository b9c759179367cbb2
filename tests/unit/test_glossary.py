"""The glossary: sorted, short, and every option and every field that it names is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from harness.cases import every
from shardwise.cli.commands import OWN
from shardwise.cli.main import cli
from shardwise.cost.pins import parse_pin
from shardwise.documents import DOCUMENTS, json_schema
from shardwise.errors import BadInput
from shardwise.search.pipelines.searched import check_schedules

PAGE = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text("utf-8")
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][1:]
CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
NAMED = [(word, code) for word, _, _, *last in ROWS for code in CODE.findall(last[0])]
OPTIONS = [(word, code) for word, code in NAMED if code.startswith("--")]
FIELDS = [(word, code) for word, code in NAMED if not code.startswith("--")]
PAGE_OPTIONS = sorted(set(re.findall(r"`(--[a-z-]+)", PAGE)))
LONGEST = 150
"""Letters of a cell: two lines."""


def test_there_is_one_table_of_short_rows_in_order() -> None:
    words = [row[0] for row in ROWS]
    assert len(words) > 80 and words == sorted(words, key=str.casefold)
    for row in ROWS:
        assert len(row) == 4 and row[1:3] != ["–", "–"], row
        assert all(cell and len(LINK.sub(r"\1", cell)) <= LONGEST for cell in row[:3]), row


def test_every_option_is_one_of_a_command() -> None:
    every(PAGE_OPTIONS, lambda name: check_option("the page", name))
    every(OPTIONS, lambda named: check_option(*named))


def check_option(word: str, code: str) -> None:
    """Raises AssertionError for an option that no command has, or a value that it refuses."""
    name, _, value = code.partition(" ")
    found = options().get(name)
    assert found, f"{word}: no command has {name}"
    if not value:
        return
    if name == "--pin":
        parse_pin(value)
    elif name == "--schedules":
        check_schedules([value])
    else:
        choices = [option.type.choices for option in found if isinstance(option.type, click.Choice)]
        assert not choices or any(value in of_one for of_one in choices), f"{word}: {code}"


@cache
def options() -> dict[str, list[click.Option]]:
    """Returns the options of all of the library's commands by name."""
    found: dict[str, list[click.Option]] = {}
    for command in commands(cli):
        for option in command.params:
            for name in (*option.opts, *option.secondary_opts):
                if isinstance(option, click.Option):
                    found.setdefault(name, []).append(option)
    return found


def commands(command: click.Command) -> Iterator[click.Command]:
    """Yields a command and all below it; of the apps' commands none, which may lack their extra."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        names = sorted(OWN) if command is cli else command.list_commands(context)
        for name in names:
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below)


def test_every_field_is_one_of_its_document() -> None:
    every(FIELDS, lambda named: check_field(*named))


def check_field(word: str, path: str) -> None:
    """Raises AssertionError for a field that the document's schema does not have."""
    first, _, rest = path.partition(".")
    kind, path = (first, rest) if first in DOCUMENTS else ("plan", path)
    schema = json_schema(kind)
    shapes = resolved(schema, schema)
    for part in path.split("."):
        name = part.removesuffix("[]")
        found = [
            shape["properties"][name] for shape in shapes if name in shape.get("properties", ())
        ]
        assert found, f"{word}: {kind} has no {path}, at {name}"
        shapes = [one for of in found for one in resolved(of, schema)]
        if part.endswith("[]"):
            lists = [shape["items"] for shape in shapes if "items" in shape]
            assert lists, f"{word}: {path}: {name} is no list"
            shapes = [one for of in lists for one in resolved(of, schema)]


def resolved(shape: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the alternatives of a part of a schema, with references followed."""
    if "anyOf" in shape:
        return [one for of in shape["anyOf"] for one in resolved(of, schema)]
    if "$ref" in shape:
        return resolved(schema["$defs"][shape["$ref"].rpartition("/")[2]], schema)
    return [shape]


def test_a_plan_has_no_field_with_a_document_s_name() -> None:
    """So that the first word of a path says which document it is of."""
    schema = json_schema("plan")
    assert not DOCUMENTS.keys() & resolved(schema, schema)[0]["properties"].keys()


def test_the_checks_refuse_what_is_not_there() -> None:
    for wrong in ("--zeros", "--objective turning", "--pin zero=4", "--schedules zb-h9"):
        with pytest.raises((AssertionError, BadInput), match=wrong.split()[-1]):
            check_option("word", wrong)
    for path in ("predicted.labels", "groups.zero", "pipeline.stage", "gpus[]"):
        with pytest.raises(AssertionError, match="word: "):
            check_field("word", path)
