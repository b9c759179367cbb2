"""`-o FILE` of every command that answers: the document of `--json`, in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click import Command
from click.testing import CliRunner

from harness.graph_builder import mlp
from shardwise.cli.advice import curve, frontier, quote
from shardwise.cli.compare import compare
from shardwise.cli.plan import plan
from shardwise.documents import unfolded
from shardwise.graph import write_graph

FEW = ("--micro-batches", "1", "--zero", "0", "--recompute", "never")
HERE = ("--hardware", "l4")
ASKED = [
    (plan, (*HERE, "--gpus", "2")),
    (frontier, (*HERE, "--gpus", "2")),
    (curve, (*HERE, "--max-gpus", "2")),
    (quote, ("--max-instances", "1")),
    (compare, (*HERE, "--gpus", "2", "--proposals", "10")),
]


@pytest.mark.parametrize(("command", "arguments"), ASKED)
def test_an_answer_is_written_whole(
    command: Command, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    graph, file = tmp_path / "g.json", tmp_path / "answer.json"
    write_graph(mlp(), graph)
    asked = [str(graph), *arguments, *FEW, "-o", str(file)]
    done = CliRunner().invoke(command, [*asked, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    assert unfolded(json.loads(file.read_text())) == json.loads(done.stdout)
    assert json.loads(file.read_text())["schema"].startswith("shardwise.")
    assert f"wrote {file}" not in done.stderr


@pytest.mark.parametrize(("command", "arguments"), ASKED)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    command: Command, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    nowhere = tmp_path / "none" / "answer.json"
    # There is no such graph: only what is checked first can be the error.
    done = CliRunner().invoke(command, ["none.json", *arguments, *FEW, "-o", str(nowhere)])
    assert getattr(done.exception, "problem", "") == "no such folder"
