"""Predicted and measured steps of ranks that are slowed on purpose, a small part of
benchmarks/bench_mixed_reality.py. Nothing here depends on how fast the machine is, or on what else
it does: only on which of steps that are predicted to be far apart takes longer."""

from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from harness.execute.mixed import profile  # noqa: E402
from harness.execute.ranks import Ranks  # noqa: E402
from harness.execute.slowed_kinds import Kinds, RandomStrategies  # noqa: E402
from harness.execute.slowed_run import measured_step  # noqa: E402
from harness.execute.sources import captured_source  # noqa: E402
from shardwise.hardware import Hardware, hardware_from_document  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.full]

SOURCE = ("zoo:mlp:layers=3,inputs=512,hidden=512,classes=16,batch=8192", None, None)
"""Mostly products: what is communicated is little, on a busy machine too."""
SLOWEST_FIRST = ("slow alone", "even", "proportional to peaks")
APART = 1.4
"""How many times as long as the next the steps are at least predicted to take."""
RANDOM = 3


def _one_kind() -> Hardware:
    """Returns a profile of two CPU ranks whose links are made up, and hardly matter."""
    document = profile()
    del document["groups"]
    document["devices"] = [{**document["devices"][0], "count": 2}]
    document["levels"][1]["size"] = 1
    return hardware_from_document(document)


def test_steps_of_slowed_ranks_are_in_the_predicted_order_and_need_the_predicted_memory() -> None:
    kinds, one = Kinds((1.0, 4.0)), _one_kind()
    strategies = RandomStrategies(captured_source(*SOURCE).graph, one, kinds, RANDOM, seed=3)
    for origin in SLOWEST_FIRST:
        strategies.add_data_parallel(origin)
    tables = strategies.measured(30.0, own_time=True).tables
    drawn, ranks = strategies.predicted(tables), Ranks(2)
    measured = [
        measured_step(ranks, SOURCE, d.plan, kinds.times, warm_up=1, steps=5, alone=1)
        for d in drawn
    ]
    ranks.stop()
    for d, m in zip(drawn, measured, strict=True):
        assert m.peaks == pytest.approx(d.peaks, rel=0.15, abs=1e5)
    predicted_s = [d.time_s for d in drawn[RANDOM:]]
    measured_s = [m.step_s for m in measured[RANDOM:]]
    for longer, shorter in pairwise(predicted_s):
        assert longer > APART * shorter, predicted_s
    for longer, shorter in pairwise(measured_s):
        assert longer > shorter, (predicted_s, measured_s)
