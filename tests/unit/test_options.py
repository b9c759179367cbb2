"""The options of a search: what is searched unless named, and how the command line asks for it."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from harness.graph_builder import mlp
from shardwise.cli.arguments import (
    option_keywords,
    options_from,
    other_search_options,
    search_options,
)
from shardwise.cli.main import cli
from shardwise.cost.named_options import CHOICES, NAMES, options_schema
from shardwise.cost.options import ALWAYS, AUTO, NEVER, Options
from shardwise.cost.step_settings import StepSettings
from shardwise.errors import BadInput
from shardwise.graph import write_graph

DIVISORS_OF_24 = (1, 2, 3, 4, 6, 8, 12, 24)


def test_every_divisor_of_the_batch_is_tried_where_replayed_times_are_searched() -> None:
    assert Options().counts(24) == DIVISORS_OF_24
    assert Options().counts(7) == (1, 7)
    assert Options().counts(1) == (1,)


@pytest.mark.parametrize("batch", [1, 24, None])
def test_sums_have_one_micro_batch(batch: int | None) -> None:
    assert Options(overlap=False).counts(batch) == (1,)
    assert Options(method="tofu").counts(batch) == (1,)


@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"method": "tofu"}])
@pytest.mark.parametrize("batch", [24, None])
def test_named_numbers_of_micro_batches_win(options: dict[str, Any], batch: int | None) -> None:
    assert Options(micro_batches=(2, 8), **options).counts(batch) == (2, 8)


def test_a_graph_without_samples_has_one_micro_batch() -> None:
    assert Options().counts(None) == (1,)


def test_gradients_that_are_applied_at_once_are_those_of_one_micro_batch() -> None:
    assert Options(gradients_applied_at_once=True).counts(24) == (1,)
    assert Options(gradients_applied_at_once=True, micro_batches=(1,)).counts(24) == (1,)
    with pytest.raises(BadInput, match="applied at once"):
        Options(gradients_applied_at_once=True, micro_batches=(1, 2))


def test_recomputation_is_chosen_where_replayed_times_are_searched() -> None:
    assert Options().recomputation == AUTO
    assert Options(overlap=False).recomputation == NEVER
    assert Options(method="tofu").recomputation == NEVER
    for overlap in (False, True):
        for named in (NEVER, AUTO, ALWAYS):
            assert Options(overlap=overlap, recompute=named).recomputation == named


def test_replayed_times_are_searched_unless_sums_are_asked_for() -> None:
    assert Options().replays
    assert not Options(overlap=False).replays
    assert not Options(method="tofu").replays, "Tofu's recursion knows only its sum"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("options") / "mlp.json"
    write_graph(mlp(batch=8), path)
    return path


COMMANDS = ("frontier", "curve", "plan")


def answer(command: str, graph: Path, *options: str) -> dict[str, Any]:
    """Returns the document that a command prints."""
    gpus = "--max-gpus" if command == "curve" else "--gpus"
    arguments = [command, str(graph), "--hardware", "l4", gpus, "2", "--json", *options]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_asks_for_sums_by_the_objective(command: str, graph: Path) -> None:
    sums = answer(command, graph, "--objective", "sum")
    assert sums["overlap"] is False
    assert sums.get("micro_batches", 1) == 1
    assert answer(command, graph, "--objective", "sum", "--overlap")["overlap"] is False


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_asks_for_replayed_times_otherwise(command: str, graph: Path) -> None:
    plain = answer(command, graph)
    assert plain["overlap"] is True
    named = "mini-time" if command == "plan" else "replayed"
    for same in (("--objective", named), ("--overlap",)):
        again = answer(command, graph, *same)
        for key in ("overlap", "points", "predicted", "micro_batches", "objective"):
            assert again.get(key) == plain.get(key)


def test_the_command_line_names_micro_batches_and_recomputation(graph: Path) -> None:
    """Named, they hold for either objective; left out, the objective decides."""
    named = ("--micro-batches", "4", "--recompute", "always")
    for objective in ("replayed", "sum"):
        points = answer("frontier", graph, "--objective", objective, *named)["points"]
        assert {point["micro_batches"] for point in points} == {4}
    for objective, tried in (("replayed", {1, 2, 4, 8}), ("sum", {1})):
        points = answer("frontier", graph, "--objective", objective)["points"]
        assert {point["micro_batches"] for point in points} <= tried
    assert answer("plan", graph, *named)["micro_batches"] == 4


CONVERTED = {
    "memory": "memory_limit_bytes", "room": "memory_room_bytes", "power_limit": "power_limit_w",
    "search_memory": "search_memory_bytes", "time_limit": "time_limit_s",
    "accumulate": "accumulation",
}  # fmt: skip
"""Keywords of the command line that have another name than their field."""
NOT_TYPED = {"memory_headroom", "gradients_applied_at_once", "step", "device", "block_bytes"}
"""Fields that no command has an option for."""


def test_every_option_has_a_flag_and_every_flag_is_an_option() -> None:
    """The command line has all options of requests, and no others but those of this machine."""
    typed = {CONVERTED.get(name, name) for name in option_keywords() - {"quiet"}}
    declared = {*NAMES, *(item.name for item in fields(StepSettings))}
    assert typed == (declared - NOT_TYPED) | {"policy", "threads"}
    assert set(options_schema()["properties"]) == set(NAMES)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--expert-imbalance", "2"], "expert_imbalance", 2.0),
        (["--loss", "chunked"], "loss", "chunked"),
        (["--threads", "3"], "threads", 3),
        (["--room", "5GB"], "memory_room_bytes", 5e9),
        (["--zero", "3,0"], "zero", (0, 3)),
        (["--accumulate", "whole"], "step.accumulation", "whole"),
        (["--gradients", "float32"], "step.gradients", "float32"),
        (["--objective", "sum"], "overlap", False),
        ([], "", None),
    ],
)
def test_a_flag_sets_its_field_alone(words: list[str], name: str, value: Any) -> None:
    """Of equal names without a line for each; without flags the options are the defaults."""
    asked: list[Options] = []

    def ask(**values: Any) -> None:
        asked.append(options_from(values))

    command = click.command()(search_options(ask))
    command.main(words, standalone_mode=False)
    expected = Options()
    if name.startswith("step."):
        step = replace(expected.step, **{name.removeprefix("step."): value})
        expected = replace(expected, step=step)
    elif name:
        expected = replace(expected, **{name: value})
    assert asked == [expected]


def test_flags_have_the_words_of_the_schema() -> None:
    """Requests and commands take the same words."""
    command = click.command()(other_search_options(lambda **values: None))
    typed = {
        option.name: tuple(option.type.choices)
        for option in command.params
        if isinstance(option.type, click.Choice) and option.name in CHOICES
    }
    assert typed == {name: tuple(words) for name, words in CHOICES.items()}
