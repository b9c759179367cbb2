"""The law of bounds: no strategy replays in less than a longest path, nor in less than is held."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("torch")
from replay_cases import MODELS

from harness.strategies import problem_of, random_strategies
from harness.tiers import some
from shardwise.answers import Options
from shardwise.capture import capture
from shardwise.hardware import load_hardware
from shardwise.replay.bound import StepBound, with_host
from shardwise.replay.moments import Moments
from shardwise.replay.replay import Replayer

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

STRATEGIES = 84
"""Of each of twelve models: a thousand in all."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class Model:
    name: str
    source: str
    batch: int
    seq: int | None = None


CASES = [
    *(Model(case.name, case.source, case.batch, case.seq) for case in MODELS),
    Model(
        "T5",
        "hf:T5Config:d_model=128,d_kv=32,d_ff=256,num_layers=2,num_heads=4,vocab_size=1000",
        8,
        64,
    ),
    Model(
        "Mixtral",
        "hf:MixtralConfig:hidden_size=128,num_hidden_layers=2,num_attention_heads=4,"
        "num_key_value_heads=2,intermediate_size=256,num_local_experts=4,vocab_size=1000",
        8,
        64,
    ),
    Model("ConvNeXt", "timm:convnext_atto:num_classes=10", 4),
]


@pytest.mark.parametrize(
    ("model", "machine", "micro_batches"),
    some(
        [
            (model, machine, micro_batches)
            for model in CASES
            for machine, micro_batches in (("dgx-h100", 1), ("dgx-v100-16gb", 4))
        ],
        lambda case: case[0].name in ("Llama", "LSTM") and case[2] == 4,
    ),
    ids=lambda value: value.name if isinstance(value, Model) else str(value),
)
def test_no_strategy_is_below_its_bounds(model: Model, machine: str, micro_batches: int) -> None:
    graph = capture(model.source, batch=model.batch, seq=model.seq)
    options = Options(recompute="auto", max_configurations=60)
    problem = problem_of(graph, load_hardware(machine), 4, options, micro_batches)
    replayer = Replayer(problem, options.step)
    choices, edges = random_strategies(problem, STRATEGIES // 2, np.random.default_rng(11))
    replayed = replayer.replay(choices, edges)
    values = replayer.values(choices, edges)
    durations = with_host(values[0], replayer.host_times(choices, edges))
    paths = StepBound(replayer).longest(durations)
    assert (durations @ paths.weights.T <= replayed.time_s[:, None] * (1 + ROUNDING)).all()
    assert np.median(replayed.time_s / paths.length_s) < 1.1
    moments = Moments(replayer)
    tasks = {moments.last_backward, *(moments.task_of(int(t)) for t in replayed.peak_task)}
    for task in tasks:
        held = moments.held(task).of(problem, choices, edges)
        assert (held <= replayed.peak_bytes * (1 + ROUNDING)).all()
