"""A profile fitted to one measured step: what was changed is found again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.graph_builder import mlp
from shardwise.answers import Options, plan
from shardwise.answers.calibrate import CLOCK, EFFICIENCY, HOST, TOLERANCE, calibrate
from shardwise.cli.main import cli
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware, load_hardware
from shardwise.hardware.host import Host

OPTIONS = Options(
    precision="bf16", zero=(0,), recompute="never", micro_batches=(1,), max_configurations=20,
    memory_limit_bytes=200e9,
)  # fmt: skip


def step_of(graph: Graph, machine: Hardware, gpus: int, options: Options) -> float:
    return plan(graph, machine, gpus, options=options).predicted.replayed_time_s


def with_device(machine: Hardware, **changed: Any) -> Hardware:
    return replace(machine, devices=(replace(machine.devices[0], **changed),))


@pytest.mark.parametrize(("name", "figure", "true"), [
    ("dgx-a100-80gb", CLOCK, 0.7),
    ("dgx-a100-80gb", CLOCK, 0.98),
    ("mi300x-8", EFFICIENCY, 0.31),
])  # fmt: skip
def test_the_clock_and_the_efficiency_are_found_again(
    gpt2: Graph, name: str, figure: str, true: float
) -> None:
    assumed = replace(load_hardware(name), host=None)
    measured_s = step_of(gpt2, with_device(assumed, **{figure: true}), 1, OPTIONS)
    found = calibrate(gpt2, assumed, 1, measured_s, options=OPTIONS)
    assert (found.figure, found.before) == (figure, getattr(assumed.devices[0], figure))
    assert found.after == pytest.approx(true, rel=0.02)
    assert found.after_s == pytest.approx(measured_s, rel=2 * TOLERANCE)
    assert step_of(gpt2, found.hardware, 1, OPTIONS) == pytest.approx(found.after_s)
    assert found.hardware.name == f"{name}-calibrated"
    assert f"{measured_s:.6g} s" in found.hardware.sources[figure]


def test_where_the_host_binds_its_times_are_fitted() -> None:
    assumed = load_hardware("dgx-h100")
    slower = replace(assumed, host=Host(3 * 50e-6, 3 * 60e-6))
    measured_s = step_of(mlp(), slower, 1, OPTIONS)
    found = calibrate(mlp(), assumed, 1, measured_s, options=OPTIONS)
    assert (found.figure, found.before) == (HOST, 1.0)
    assert found.after == pytest.approx(3.0, rel=0.02)
    assert found.hardware.host is not None
    assert found.hardware.host.operator_s == pytest.approx(3 * 50e-6, rel=0.02)


def test_a_step_that_is_predicted_already_changes_nothing(gpt2: Graph) -> None:
    machine = replace(load_hardware("dgx-a100-80gb"), host=None)
    measured_s = step_of(gpt2, machine, 1, OPTIONS)
    found = calibrate(gpt2, machine, 1, measured_s, options=OPTIONS)
    assert found.hardware.devices == machine.devices


@pytest.mark.parametrize("measured_s", [1e-6, 1e3])
def test_a_step_that_no_clock_explains_is_refused(gpt2: Graph, measured_s: float) -> None:
    machine = replace(load_hardware("dgx-a100-80gb"), host=None)
    with pytest.raises(BadInput, match=r"with a sustained_clock of (1|0\.3) a step still takes"):
        calibrate(gpt2, machine, 1, measured_s, options=OPTIONS)


@pytest.mark.parametrize("step", [0.0, -1.0, float("inf"), float("nan")])
def test_steps_are_seconds_above_0(step: float) -> None:
    with pytest.raises(BadInput, match="seconds above 0"):
        calibrate(mlp(), load_hardware("l4"), 1, step)


def test_the_command_writes_the_profile(gpt2: Graph, gpt2_file: str, tmp_path: Path) -> None:
    machine = load_hardware("dgx-a100-80gb")
    measured_s = step_of(gpt2, with_device(machine, sustained_clock=0.75), 1, OPTIONS)
    target = tmp_path / "mine.json"
    arguments = [
        "calibrate",
        gpt2_file,
        "--hardware",
        "dgx-a100-80gb",
        "--gpus",
        "1",
        "--quiet",
    ]
    arguments += ["--step", str(measured_s), "-o", str(target), "--precision", "bf16"]
    arguments += ["--zero", "0", "--recompute", "never", "--micro-batches", "1"]
    done = CliRunner().invoke(cli, [*arguments, "--max-configurations", "20"])
    assert done.exit_code == 0, done.output
    assert "sustained_clock: 0.8 → 0.7" in done.output
    device = json.loads(target.read_text())["devices"][0]
    assert device["sustained_clock"] == pytest.approx(0.75, rel=0.02)
    again = load_hardware(str(target))
    assert step_of(gpt2, again, 1, OPTIONS) == pytest.approx(measured_s, rel=2 * TOLERANCE)
