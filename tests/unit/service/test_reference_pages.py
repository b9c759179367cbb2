"""The pages of docs/reference: all are written, and nothing in them is without a text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

pytest.importorskip("celery")
pytest.importorskip("fastapi")

from shardwise.cli.main import EXIT_CODES
from shardwise.errors import ShardwiseError
from tools.reference import __main__ as pages
from tools.reference import command_line as cli_reference
from tools.reference import metrics


def test_every_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "FOLDER", tmp_path / "reference")
    pages.main()
    written = {path.name: path.read_text("utf-8") for path in (tmp_path / "reference").iterdir()}
    assert written.keys() == pages.PAGES.keys()
    assert "## hardware import" in written["cli.md"]
    assert "/v1/frontiers" in written["http.md"]
    assert "`shardwise_request_duration_seconds`" in written["metrics.md"]
    assert "`SHARDWISE_DATABASE_URL`" in written["settings.md"]


def test_every_command_argument_and_option_says_what_it_is() -> None:
    commands = dict(cli_reference.commands())
    assert {"serve", "worker", "agent", "keys create", "hardware import", "run"} <= set(commands)
    for name, command in commands.items():
        assert command.help, name
        flags = {flag for part in command.params for flag in part.opts}
        assert "--json" in flags or name in ("agent", "mcp", "worker"), name
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


def test_whatever_a_rule_or_panel_reads_of_ours_is_a_metric_or_a_rule() -> None:
    every = metrics.readers()
    rules = {reader.shown.strip("`") for reader in every if reader.shown.startswith("`")}
    names = {
        one.name.removesuffix("_total") + part
        for one in (
            *metrics.service_metrics(),
            *metrics.worker_metrics(),
            *metrics.watch_metrics(),
        )
        for part in ("", "_total", "_bucket", "_sum", "_count")
    }
    for reader in every:
        for query in reader.queries:
            for word in re.findall(r"shardwise[_:][\w:]+", query):
                assert word in names | rules, f"{reader.shown}: {word}"
