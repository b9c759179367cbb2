"""The published schedules of pipelines, by name: each writes the list of actions of every rank.

p ranks, v stages per rank (chunks), n micro-batches. They are compared in tests with the lists of
`torch.distributed.pipelining`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.errors import BadInput
from shardwise.pipeline.actions import Action, Schedule
from shardwise.pipeline.in_order import round_of, steady
from shardwise.pipeline.phases import dual_pipe_v, zero_bubble_v
from shardwise.pipeline.placement import Placement, Shape

MAX_ACTIONS = 2_000_000
"""Maximum length of a schedule, in actions of all ranks: some 200 MB."""

Writer = Callable[[Placement, int, int], list[Action]]
"""Writes one rank's list from placement, number of micro-batches and rank."""


@dataclass(frozen=True)
class Rule:
    """A schedule's writer and allowed sizes."""

    write: Writer
    shape: Shape = Shape.LOOP
    stages_per_rank: int | None = 1
    """The only number of stages per rank; None allows any."""
    in_rounds: bool = False
    """Whether micro-batches are taken in rounds of at least p, all of one size."""
    fills: bool = False
    """Whether the schedule needs a micro-batch for each stage."""
    splits: bool = False
    """Whether some backward is split."""


def _gpipe(placement: Placement, micro_batches: int, rank: int) -> list[Action]:
    """All forwards, then all backwards (Huang et al. 2019, GPipe, §2.2)."""
    return steady(placement, micro_batches, rank, warm_up=micro_batches)


def _one_forward_one_backward(placement: Placement, micro_batches: int, rank: int) -> list[Action]:
    """PipeDream-Flush (Narayanan et al. 2021, §2.2.1).

    A rank runs ahead by one forward for each rank behind it, then alternates.
    """
    return steady(placement, micro_batches, rank, warm_up=placement.ranks - 1 - rank)


def _eager(placement: Placement, micro_batches: int, rank: int) -> list[Action]:
    """1F1B with twice the warm-up: hides slow hops, keeps more micro-batches.

    The first stage then keeps up to 2p - 1 of them.
    """
    return steady(placement, micro_batches, rank, warm_up=2 * (placement.ranks - 1 - rank))


def _interleaved(placement: Placement, micro_batches: int, rank: int) -> list[Action]:
    """Interleaved stages (Narayanan et al. 2021, §2.2.2).

    Before the first backward all chunks but the last have run a round of micro-batches. Two more
    forwards for each rank behind make up for the way there and back.
    """
    ahead = (placement.stages_per_rank - 1) * round_of(placement.ranks, micro_batches)
    warm_up = ahead + 2 * (placement.ranks - 1 - rank)
    return steady(placement, micro_batches, rank, warm_up)


def _zero_bubble_h1(placement: Placement, micro_batches: int, rank: int) -> list[Action]:
    """ZB-H1 (Qi et al. 2024, Zero Bubble Pipeline Parallelism, §2.1), also with several chunks.

    The backward of the weights is put off by as many micro-batches as there are ranks before, so
    that all ranks have as many in flight, and fills the end of the step.
    """
    ahead = (placement.stages_per_rank - 1) * round_of(placement.ranks, micro_batches)
    warm_up = ahead + placement.ranks - 1 - rank
    return steady(placement, micro_batches, rank, warm_up, weights_late_by=rank)


SCHEDULES: dict[str, Rule] = {
    "gpipe": Rule(_gpipe),
    "1f1b": Rule(_one_forward_one_backward),
    "1f1b-eager": Rule(_eager),
    "interleaved": Rule(_interleaved, stages_per_rank=None, in_rounds=True),
    "zb-h1": Rule(_zero_bubble_h1, stages_per_rank=None, in_rounds=True, splits=True),
    "zbv": Rule(zero_bubble_v, Shape.V, stages_per_rank=2, splits=True),
    "dualpipev": Rule(dual_pipe_v, Shape.V, stages_per_rank=2, fills=True, splits=True),
}
"""All schedules by their names."""


def schedule(
    name: str, *, ranks: int, micro_batches: int, stages_per_rank: int | None = None
) -> Schedule:
    """Returns the schedule `name` for `ranks` ranks of `stages_per_rank` stages each.

    Without `stages_per_rank`, V schedules have two and all others one. Raises BadInput where the
    schedule does not exist, does not allow these sizes, or would be too long.
    """
    rule = SCHEDULES.get(name)
    if rule is None:
        raise BadInput(
            f"unknown schedule {name[:80]!r}", field="schedule", expected=", ".join(SCHEDULES)
        )
    chunks = stages_per_rank if stages_per_rank is not None else rule.stages_per_rank or 1
    placement = Placement(ranks, chunks, rule.shape)
    _check_sizes(name, rule, placement, micro_batches)
    lists = (rule.write(placement, micro_batches, rank) for rank in range(ranks))
    return Schedule(name, placement, micro_batches, tuple(map(tuple, lists)))


def allows(name: str, *, ranks: int, micro_batches: int, stages_per_rank: int) -> bool:
    """Returns whether a schedule, one of `SCHEDULES`, exists for these sizes."""
    rule = SCHEDULES[name]
    try:
        _check_sizes(name, rule, Placement(ranks, stages_per_rank, rule.shape), micro_batches)
    except BadInput:
        return False
    return True


def _check_sizes(name: str, rule: Rule, placement: Placement, micro_batches: int) -> None:
    ranks, chunks = placement.ranks, placement.stages_per_rank
    if micro_batches < 1:
        raise BadInput(f"got {micro_batches}", field="micro_batches", expected="at least 1")
    if 3 * placement.stages * micro_batches > MAX_ACTIONS:
        raise BadInput(
            f"{placement.stages} stages of {micro_batches} micro-batches are too many",
            field="micro_batches",
            expected=f"at most {MAX_ACTIONS // 3} stages times micro-batches",
        )
    if rule.stages_per_rank not in (None, chunks):
        problem = f"{name} has {rule.stages_per_rank} stages per rank, got {chunks}"
        expected = str(rule.stages_per_rank)
        raise BadInput(problem, field="stages_per_rank", expected=expected)
    if rule.in_rounds and micro_batches % (rounds := max(1, micro_batches // ranks)):
        below = micro_batches - micro_batches % ranks
        raise BadInput(
            f"{micro_batches} micro-batches do not divide into {rounds} rounds of at least {ranks}",
            field="micro_batches",
            expected=f"for example {below} or {below + ranks}",
        )
    if rule.fills and micro_batches < placement.stages:
        raise BadInput(
            f"{name} needs a micro-batch for each of {placement.stages} stages, "
            f"got {micro_batches}",
            field="micro_batches",
            expected=f"at least {placement.stages}",
        )
