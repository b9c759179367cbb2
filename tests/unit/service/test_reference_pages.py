"""The pages of docs/reference are what the code says; nothing in it is without a text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

pytest.importorskip("celery")
pytest.importorskip("fastapi")

from shardwise.cli import reference as cli_reference
from shardwise.cli.main import EXIT_CODES
from shardwise.errors import ShardwiseError

DOCS = Path(__file__).parents[3] / "docs"


def test_the_command_line_page_is_made_of_the_commands() -> None:
    page = (DOCS / "reference" / "cli.md").read_text("utf-8")
    assert page == cli_reference.page(), "run make reference"


def test_every_command_argument_and_option_says_what_it_is() -> None:
    found = dict(cli_reference.commands())
    assert {"serve", "worker", "agent", "keys create", "hardware import", "run"} <= set(found)
    for name, command in found.items():
        assert command.help, name
        for part in command.params:
            if isinstance(part, click.Option):
                assert part.help, f"{name} {part.opts}"
            else:
                assert part.name in cli_reference.ARGUMENTS, f"{name} {part.name}"


def test_every_error_of_ours_has_an_exit_code_that_is_documented() -> None:
    def kinds(base: type[ShardwiseError]) -> Iterator[type[ShardwiseError]]:
        yield base
        for kind in base.__subclasses__():
            yield from kinds(kind)

    assert dict(cli_reference.commands())  # the apps' own errors are known when they are loaded
    for kind in kinds(ShardwiseError):
        assert kind.exit_code in EXIT_CODES, kind
