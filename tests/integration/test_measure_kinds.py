"""Ranks of two kinds, one of them slowed on purpose: measured, planned for, run; all for real."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.commands import as_ranks, succeed
from harness.execute.ranks import free_port

pytest.importorskip("torch")

from shardwise.hardware import load_hardware

pytestmark = pytest.mark.torch

SOURCE = "zoo:mlp:layers=3,inputs=512,hidden=512"
KINDS = ["--kinds", "fast=2,slow=2", "--slowed", "slow=2"]
LARGE_S = 1e-4
"""Calls that take a fast rank longer are large enough to tell kinds apart on a loaded machine."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a graph, and the profile of two fast and two slow ranks with its operators."""
    folder = tmp_path_factory.mktemp("kinds")
    succeed("capture", SOURCE, "--batch", "256", "-o", str(folder / "graph.json"))
    measure = ["measure", *KINDS, "--time-limit", "8", "--max-size", "32KiB"]
    measure += ["--operators", "graph.json", "-o", "profile.json", "--name", "two-kinds"]
    _on_four_ranks(folder, *measure)
    return folder


def _on_four_ranks(folder: Path, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """Runs a command as four ranks that meet in this folder; it ends well on all of them."""
    done = as_ranks(4, *arguments, cwd=folder, env={"MASTER_PORT": str(free_port())})
    assert [rank.returncode for rank in done] == [0] * 4, [rank.stderr for rank in done]
    return done


def _calls(document: dict[str, Any], kind: str) -> dict[Any, float]:
    """Returns seconds of the calls of operators that one kind measured."""
    return {
        (table["kind"], table["direction"], json.dumps(table["strides"]), json.dumps(shapes)): s
        for table in document["operators"]
        if table["device"] == kind
        for shapes, s in zip(table["shapes"], table["times_s"], strict=True)
    }


def test_two_kinds_give_one_profile_with_groups(measured: Path) -> None:
    hardware = load_hardware(str(measured / "profile.json"))
    groups = [(g.name, g.kind, g.nodes, g.per_node) for g in hardware.groups]
    assert groups == [("fast", "fast", 1, 2), ("slow", "slow", 1, 2)]
    assert [device.kind for device in hardware.devices] == ["fast", "slow"]
    shapes = {(t.groups, t.ranks_per_node) for t in hardware.collectives}
    both = ("fast", "slow")
    assert shapes == {(("fast",), 2), (("slow",), 2), (both, 1), (both, 2)}
    assert {t.siblings for t in hardware.collectives if t.groups == both} == {1, 2}
    (path,) = hardware.paths
    assert path.ends == {"fast", "slow"} and not path.collectives
    assert 1e3 < path.bandwidth_bytes_per_s < 1e12
    assert all(group.network is not None and group.inside is not None for group in hardware.groups)
    slowed = [kind["slowed"] for kind in hardware.measurement["kinds"]]
    assert slowed == [1.0, 2.0]


def test_operators_of_the_slow_kind_take_longer(measured: Path) -> None:
    document = json.loads((measured / "profile.json").read_bytes())
    fast, slow = _calls(document, "fast"), _calls(document, "slow")
    large = [c for c, s in fast.items() if s > LARGE_S and c in slow and c[1] != "update"]
    assert len(large) >= 4
    ratios = sorted(slow[call] / fast[call] for call in large)
    assert ratios[len(ratios) // 2] > 1.3
    updates = [slow[c] / fast[c] for c in fast if c in slow and c[1] == "update"]
    assert updates and min(updates) < 1.5  # what only the optimizer does is not slowed


def test_a_plan_on_both_kinds_runs_on_these_ranks(measured: Path, tmp_path: Path) -> None:
    plan, report = tmp_path / "plan.json", tmp_path / "measurement.json"
    graph, profile = str(measured / "graph.json"), str(measured / "profile.json")
    chosen = ["--gpus", "fast=2,slow=2", "--micro-batches", "1", "--time-limit", "10"]
    succeed("plan", graph, "--hardware", profile, *chosen, "-o", str(plan))
    document = json.loads(plan.read_bytes())
    assert "measured tables" in document["provenance"]["communication"]
    if "cluster" not in document or len(document["cluster"]["blocks"]) < 2:
        pytest.skip("one group alone was faster on this machine")
    run = ["run", str(plan), "--graph", graph, "--steps", "2", "--warm-up", "1"]
    _on_four_ranks(measured, *run, *KINDS, "-o", str(report))
    ran = json.loads(report.read_bytes())
    assert ran["device_kind"] == "2 fast, 2 slow"
    assert ran["iteration_s"]["median"] > 0
    others = [*run, "--kinds", "slow=2,fast=2"]
    refused = as_ranks(4, *others, cwd=measured, env={"MASTER_PORT": str(free_port())})
    assert {rank.returncode for rank in refused} == {2}
    assert "rank 0 has a device of kind 'slow' (expected 'fast'" in refused[0].stderr
