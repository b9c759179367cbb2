"""What shaped hosts are asked: to measure themselves, and to run plans."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.answers import document
from harness.containers.hosts import ROOT
from harness.containers.shaped import ShapedHosts
from shardwise.documents import Plan
from shardwise.execute.timing import LEAST_TIMED

VARIABLES = {"PYTHONPATH": str(ROOT)}
OPERATIONS = "all_reduce,all_gather,reduce_scatter,all_to_all"
"""What strategies of one kind of devices call."""
LONGEST_S = 580.0


def measured_profile(
    hosts: ShapedHosts,
    folder: Path,
    *,
    per_host: int,
    time_limit_s: float,
    max_size: str,
    arguments: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the profile that `shardwise measure` makes on all hosts; `folder` is one they see."""
    target = folder / "profile.json"
    hosts.torchrun(
        per_host, "-m", "shardwise.measure", "--time-limit", str(time_limit_s), "--quiet",
        "--max-size", max_size, "--operations", OPERATIONS, *arguments, "-o", str(target),
        variables=VARIABLES, timeout_s=LONGEST_S + time_limit_s,
    )  # fmt: skip
    profile: dict[str, Any] = json.loads(target.read_text())
    return profile


def plan_times(
    hosts: ShapedHosts,
    folder: Path,
    source: Sequence[Any],
    plans: Sequence[Plan],
    *,
    per_host: int,
    warm_up: int,
    steps: int,
    alone: int = LEAST_TIMED,
    within_s: float = LONGEST_S,
) -> list[dict[str, float]]:
    """Returns seconds and bytes of plans, run one after another (`harness.execute.on_hosts`); of
    fewer if those after `within_s` seconds did not begin."""
    asked, output = folder / "asked.json", folder / "times.jsonl"
    output.unlink(missing_ok=True)
    asked.write_text(
        json.dumps(
            {
                "source": list(source),
                "plans": [document(plan) for plan in plans],
                "warm_up": warm_up,
                "steps": steps,
                "alone": alone,
                "within_s": within_s,
            }
        )
    )
    hosts.torchrun(
        per_host, "-m", "harness.execute.on_hosts", str(asked), str(output),
        variables=VARIABLES, timeout_s=LONGEST_S * 2,
    )  # fmt: skip
    return [json.loads(line) for line in output.read_text().splitlines()]
