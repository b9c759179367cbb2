"""What a question that does not fit is told: options and numbers of devices with which it does."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from harness.graph_builder import mlp
from shardwise.answers import Infeasible, plan
from shardwise.answers.remedies import answered
from shardwise.cli.plan import plan as plan_command
from shardwise.cost.options import Options, quiet
from shardwise.graph import Graph, write_graph
from shardwise.hardware import Devices, load_hardware
from shardwise.trainers.plan import plan_for

FEW = Options(micro_batches=(1,), framework="eager")
L4 = load_hardware("l4")


def told(graph: Graph, options: Options, gpus: int = 1, trainer: str | None = None) -> str:
    """Returns the error of a plan that does not fit."""
    with pytest.raises(Infeasible) as caught:
        if trainer is None:
            plan(graph, L4, gpus, options=options)
        else:
            plan_for(graph, L4, gpus, trainer, options=options)
    return str(caught.value)


def least(gpus: int = 1, options: Options = FEW) -> float:
    """Returns the least peak of the model, in bytes."""
    return plan(mlp(), L4, gpus, objective="mini-memory", options=options).predicted.peak_bytes


def test_what_is_named_fits(tmp_path: Any) -> None:
    tight = replace(FEW, memory_limit_bytes=0.98 * least())
    text = told(mlp(), tight)
    words = re.findall(r"with (--[^(]+) \(", text)
    assert words and "; it fits with --update fused (" in text
    graph = tmp_path / "g.json"
    write_graph(mlp(), graph)
    asked = [str(graph), "--hardware", "l4", "--gpus", "1", "--micro-batches", "1", "--quiet"]
    asked += ["--framework", "eager"]
    asked += ["--memory", str(tight.memory_limit_bytes)]
    assert CliRunner().invoke(plan_command, asked).exit_code == 1
    for named in words:
        assert CliRunner().invoke(plan_command, [*asked, *named.split()]).exit_code == 0


def test_more_devices_are_tried_and_counted() -> None:
    tight = replace(FEW, memory_limit_bytes=1.02 * least(2))
    assert re.search(r" or on 2 GPUs \([0-9.]+ GiB per GPU\)$", told(mlp(), tight))


def test_nothing_is_named_that_does_not_help() -> None:
    text = told(mlp(), replace(FEW, memory_limit_bytes=1e4))
    assert "it fits" not in text


def test_a_trainer_decides_itself_how_it_runs() -> None:
    tight = replace(FEW, memory_limit_bytes=0.98 * least())
    text = told(mlp(), tight, trainer="deepspeed")
    assert "--update" not in text and "--state" not in text


SAVINGS = {"update": 10.0, "state": 30.0}


def asked_with(limit: float, options: Options = FEW) -> tuple[str, list[Options]]:
    """Returns the error of a step of 100 bytes that options make smaller, and what was asked."""
    asked: list[Options] = []

    def ask(options: Options, devices: Any, progress: Any) -> Any:
        asked.append(options)
        peak = 100.0 / devices.gpus
        peak -= SAVINGS["update"] * (options.step.update == "fused")
        peak -= SAVINGS["state"] * (options.step.state == "8bit")
        if peak > limit:
            raise Infeasible("too large")
        return SimpleNamespace(predicted=SimpleNamespace(peak_bytes=peak))

    with pytest.raises(Infeasible) as caught:
        answered(ask, mlp(), options, Devices.alike(1), quiet)
    return str(caught.value), asked


@pytest.mark.parametrize(
    ("limit", "named"),
    [
        (95.0, ["with --update fused", "with --state 8bit", "on 2 GPUs"]),
        (85.0, ["with --state 8bit", "on 2 GPUs"]),
        (65.0, ["with --update fused --state 8bit", "on 2 GPUs"]),
        (50.0, ["on 2 GPUs"]),
        (13.0, ["on 8 GPUs"]),
        (1.0, []),
    ],
)
def test_the_fewest_that_are_enough(limit: float, named: list[str]) -> None:
    text, _ = asked_with(limit)
    found = re.sub(r" \([^)]*\)", "", text).removeprefix("too large").removeprefix("; it fits ")
    assert (found.split(" or ") if found else []) == named


def test_what_is_asked_for_already_is_not_tried() -> None:
    cpu = replace(FEW, step=replace(FEW.step, device="cpu", state="8bit"), micro_batches=())
    _, asked = asked_with(1.0, cpu)
    assert {options.step for options in asked} == {cpu.step}


def test_an_end_of_the_search_ends_the_tries() -> None:
    def ask(options: Options, devices: Any, progress: Any) -> Any:
        assert progress("searching", 0.0) is False
        raise Infeasible("too large")

    with pytest.raises(Infeasible, match=r"^too large$"):
        answered(ask, mlp(), FEW, Devices.alike(1), lambda stage, fraction: False)
