"""Laws of replayed steps over random strategies: what a search may choose costs nothing unused."""

from __future__ import annotations

import numpy as np
import pytest

from harness.strategies import problem_of, random_strategies
from shardwise.capture import shipped_graph
from shardwise.cost.options import Options
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware
from shardwise.replay.replay import Replayer

MANY = 30


@pytest.mark.parametrize(
    ("model", "gpus", "micro_batches"), [("gpt2", 8, 1), ("gpt2", 4, 4), ("vgg16", 4, 1)]
)
def test_recomputation_that_is_not_chosen_costs_nothing(
    model: str, gpus: int, micro_batches: int
) -> None:
    """Strategies without it replay alike, whether or not the search may choose it."""
    graph, hardware = read_graph(shipped_graph(model)), load_hardware("dgx-h100")
    replayed = []
    for recompute in ("never", "auto"):
        options = Options(recompute=recompute, max_configurations=40)
        problem = problem_of(graph, hardware, gpus, options, micro_batches)
        never = [~cost.recompute for cost in problem.costs]
        strategies = random_strategies(problem, MANY, np.random.default_rng(7), never)
        replayed.append(Replayer(problem, options.step).replay(*strategies))
    assert replayed[0].time_s.tolist() == replayed[1].time_s.tolist()
    assert replayed[0].peak_bytes.tolist() == replayed[1].peak_bytes.tolist()
