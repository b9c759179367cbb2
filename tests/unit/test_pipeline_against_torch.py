"""Our schedules of pipelines are those that torch.distributed.pipelining generates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from shardwise.pipeline.actions import Action, Kind
from shardwise.pipeline.schedules import SCHEDULES, schedule

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

MOST_RANKS = 8


@pytest.fixture(scope="module")
def distributed() -> Iterator[Any]:
    """torch.distributed as one rank of a group whose other ranks do not exist."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=MOST_RANKS, store=FakeStore())
    yield dist
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def groups(distributed: Any) -> dict[int, Any]:
    return {p: distributed.new_group(list(range(p))) for p in range(1, MOST_RANKS + 1)}


def torchs(name: str, group: Any, ranks: int, chunks: int, micro_batches: int) -> Any:
    """The lists of torch's schedule, rank by rank, with idle slots."""
    import torch
    from torch.distributed import pipelining
    from torch.distributed.pipelining import PipelineStage

    classes = {
        "gpipe": pipelining.ScheduleGPipe,
        "1f1b": pipelining.Schedule1F1B,
        "interleaved": pipelining.ScheduleInterleaved1F1B,
        "1f1b-eager": pipelining.ScheduleInterleaved1F1B,
        "zb-h1": pipelining.ScheduleInterleavedZeroBubble,
        "zbv": pipelining.ScheduleZBVZeroBubble,
        "dualpipev": pipelining.ScheduleDualPipeV,
    }
    stages = [
        PipelineStage(torch.nn.Identity(), stage, ranks * chunks, torch.device("cpu"), group=group)
        for stage in range(0, ranks * chunks, ranks)
    ]
    if SCHEDULES[name].shape == "v":
        last = ranks * chunks - 1
        stages[1] = PipelineStage(
            torch.nn.Identity(), last, last + 1, torch.device("cpu"), group=group
        )
    alone = name in ("gpipe", "1f1b")
    made = classes[name](stages[0] if alone else stages, micro_batches, loss_fn=lambda a, b: a)
    return made._get_pipeline_order() if alone else made.pipeline_order


def ours(slots: list[Any], name: str) -> list[Action]:
    """A list of torch's in our words, without idle slots and what reduces gradients."""
    actions = []
    for slot in filter(None, slots):
        for position, part in enumerate(slot.sub_actions or (slot,)):
            letter = part.computation_type.value
            if letter in list(Kind):
                beside = position > 0
                actions.append(
                    Action(Kind(letter), part.stage_index, part.microbatch_index, beside)
                )
    if name != "1f1b":
        return actions
    # The order that torch prints for 1F1B counts the last rank's forwards from 1 (2.15); the step
    # that it runs counts them from 0.
    seen: Counter[Kind] = Counter()
    counted = []
    for action in actions:
        counted.append(action._replace(micro_batch=seen[action.kind]))
        seen[action.kind] += 1
    return counted


def sizes(name: str) -> Iterator[tuple[int, int, int]]:
    """Ranks, stages per rank and micro-batches that both allow."""
    rule = SCHEDULES[name]
    for ranks in (*range(1, 6), MOST_RANKS):
        for chunks in (1, 2, 3) if rule.stages_per_rank is None else (rule.stages_per_rank,):
            for micro_batches in (*range(1, 14), 16, 24, 31, 40):
                rounds = max(1, micro_batches // ranks)
                takes = not (rule.in_rounds or name == "1f1b-eager") or not micro_batches % rounds
                least = {"1f1b": ranks, "dualpipev": 2 * ranks}.get(name, 1)
                if takes and micro_batches >= least:
                    yield ranks, chunks, micro_batches


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_lists_are_torchs(name: str, groups: dict[int, Any]) -> None:
    grid = list(sizes(name))
    assert len(grid) > 30
    for ranks, chunks, micro_batches in grid:
        made = schedule(name, ranks=ranks, stages_per_rank=chunks, micro_batches=micro_batches)
        theirs = torchs(name, groups[ranks], ranks, chunks, micro_batches)
        for rank in range(ranks):
            expected = ours(theirs[rank], name)
            assert list(made.ranks[rank]) == expected, (ranks, chunks, micro_batches, rank)
