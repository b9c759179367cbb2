"""Peak memory on devices of several kinds, predicted by replay for every place, and measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from harness.execute.keeper import SharedRanks, graph_of_source, keeper  # noqa: E402
from harness.execute.mixed import MixedStrategies, data_parallel, drawn_strategy  # noqa: E402
from harness.execute.trained_rank import TrainedRank  # noqa: E402
from harness.tiers import some  # noqa: E402
from shardwise import documents  # noqa: E402
from shardwise.cost.mixed.assemble import MixedProblem  # noqa: E402

pytestmark = pytest.mark.torch

SOURCES = {
    "GPT-2": (
        "hf:GPT2Config:n_layer=2,n_embd=128,n_head=4,vocab_size=512,resid_pdrop=0.0,"
        "embd_pdrop=0.0,attn_pdrop=0.0",
        12,
        64,
    ),
    "Wide ResNet": ("zoo:wrn:depth=10,width=2,image=16,classes=10,batch=48", None, None),
}


def peaks_of(rank: int, name: str, plan: dict[str, Any]) -> int:
    """Returns this rank's peak of a step, the least of three (`test_peaks.py` says why)."""
    trained = TrainedRank(SOURCES[name], documents.read(plan, documents.Plan), rank)

    def followed() -> int:
        peak_bytes = trained.followed_peak()
        torch.distributed.barrier()
        return peak_bytes

    trained.step()
    return min(followed() for _ in range(3))


Case = Callable[[MixedProblem], tuple[list[int], list[int]]]


def _of(proportion: int, sum_name: str | None = None, zero: int = 0) -> Case:
    """Makes data parallelism with one proportion, gradient sum and stage."""

    def case(problem: MixedProblem) -> tuple[list[int], list[int]]:
        names = [known and known.name for known in problem.context.mesh.gradient_sums]
        number = names.index(sum_name)
        choices = data_parallel(problem, proportion, gradient_sum=number, zero=zero)
        taken = [cost.gradient_sum[c] for cost, c in zip(problem.costs, choices, strict=True)]
        assert sum_name is None or number in taken
        return choices, [0] * len(problem.edges)

    return case


def _alone(name: str) -> Case:
    """Makes a strategy that is all on one kind."""

    def case(problem: MixedProblem) -> tuple[list[int], list[int]]:
        origins = [proportion.origin for proportion in problem.cluster.proportions]
        return _of(origins.index(f"{name} alone"))(problem)

    return case


def _in_turn(problem: MixedProblem) -> tuple[list[int], list[int]]:
    """Makes a strategy in which shares change from group to group."""
    choices, others = (_of(proportion)(problem)[0] for proportion in (0, 1))
    choices[1::2] = others[1::2]
    return choices, [0] * len(problem.edges)


def _random(seed: int) -> Case:
    return lambda problem: drawn_strategy(problem, seed)


CASES: dict[str, tuple[int, Case]] = {
    "uneven": (0, _of(1)),
    "one kind alone": (0, _alone("b")),
    "a server that sends sums": (0, _of(0, "server a", 0)),
    "a server that updates": (1, _of(1, "server b", 1)),
    "shards by memory": (1, _of(0, "by memory", 2)),
    "shards by memory, gathered": (1, _of(1, "by memory", 3)),
    "shares that change": (1, _in_turn),
    **{f"random {seed}": (seed % 2, _random(seed)) for seed in (1, 2, 3, 4, 5)},
}
"""By name the bundle, and what makes the strategy."""
OWNED = ("a server that updates", "shards by memory", "shards by memory, gathered")
PARAMETER = "parameter"
ALWAYS = ("uneven", "a server that updates", "random 3")


@pytest.mark.parametrize(
    ("model", "case"),
    some(
        [(model, case) for model in SOURCES for case in CASES],
        lambda one: one[0] == "GPT-2" and one[1] in ALWAYS,
    ),
)
def test_every_rank_needs_what_is_predicted_of_its_place(
    four: SharedRanks, model: str, case: str
) -> None:
    strategies = MixedStrategies(keeper().run(graph_of_source, 4, SOURCES[model]), (1,))
    bundle, make = CASES[case]
    problem = strategies.problem(bundle)
    choices, edges = make(problem)
    predicted = np.array(strategies.peaks(problem, choices, edges))
    measured = np.array(four(peaks_of, model, strategies.document(problem, choices, edges, case)))
    # Constants and running statistics are counted, and are there, also where nothing else is.
    there = predicted > 0.05 * predicted.max()
    assert (measured[~there] < 0.05 * predicted.max()).all()
    # A bucket of gradients that go to their owners is a copy that has no price; here it is all.
    bucket = sum(
        t.size_bytes for t in problem.context.graph.tensors.values() if t.role == PARAMETER
    )
    copied = bucket if case in OWNED else 0.0
    off = (measured - copied)[there] / predicted[there] - 1.0
    assert off.max() < 0.12, off
    assert (measured[there] / predicted[there]).min() > 0.79, off
