"""Predicted and measured steps of ranks that are slowed on purpose, a small part of
benchmarks/bench_mixed_reality.py. Nothing here depends on how fast the machine is: only on which of
two steps that are predicted to be far apart takes longer."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from harness.execute.ranks import Ranks  # noqa: E402
from harness.execute.slowed_kinds import Kinds, RandomStrategies  # noqa: E402
from harness.execute.slowed_run import kendall_tau, measured_step  # noqa: E402
from harness.execute.sources import captured_source  # noqa: E402
from shardwise.hardware import hardware_from_document  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.full]

SOURCE = ("zoo:mlp:layers=3,inputs=256,hidden=512,classes=16,batch=256", None, None)
COUNT = 12
APART = 1.6
"""Times as long as another step is one that is surely longer."""


def test_strategies_on_slowed_ranks_take_times_and_memory_in_the_predicted_order(
    tmp_path: Path,
) -> None:
    kinds = Kinds((1.0, 4.0))
    target = tmp_path / "profile.json"
    subprocess.run(
        [sys.executable, "-m", "shardwise.measure", "--ranks", "2", "--quiet", "--max-size", "4MiB",
         "--time-limit", "15", "-o", str(target)],
        check=True,
    )  # fmt: skip
    one = hardware_from_document(json.loads(target.read_text()))
    random = RandomStrategies(captured_source(*SOURCE).graph, one, kinds, COUNT, seed=3)
    tables = random.measured(30.0).tables
    assert tables
    drawn, ranks = random.predicted(tables), Ranks(2)
    measured = [
        measured_step(ranks, SOURCE, d.plan, kinds.times, warm_up=2, steps=5, alone=1)
        for d in drawn
    ]
    ranks.stop()
    clear = [
        (a, b)
        for a, b in combinations(range(COUNT), 2)
        if max(drawn[a].time_s, drawn[b].time_s) > APART * min(drawn[a].time_s, drawn[b].time_s)
    ]
    assert len(clear) >= 5
    right = [
        (drawn[a].time_s - drawn[b].time_s) * (measured[a].step_s - measured[b].step_s) > 0
        for a, b in clear
    ]
    assert sum(right) >= 0.9 * len(right), (right, drawn, measured)
    assert kendall_tau([d.time_s for d in drawn], [m.step_s for m in measured]) > 0.3
    for d, m in zip(drawn, measured, strict=True):
        assert m.peaks == pytest.approx(d.peaks, rel=0.1)
