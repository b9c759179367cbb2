"""What an action of a pipeline waits for, and whether a schedule does everything once."""

from __future__ import annotations

from collections import Counter

from shardwise.errors import BadInput
from shardwise.pipeline.actions import Action, Kind, Schedule

Work = tuple[Kind, int, int]
"""The kind, stage and micro-batch of an action."""

_TWIN = {Kind.BACKWARD: Kind.INPUTS, Kind.INPUTS: Kind.BACKWARD}


def needs(action: Action, stages: int) -> tuple[tuple[Work, ...], ...]:
    """Returns what must have ended before an action starts, in a pipeline of `stages` stages.

    Each entry lists alternatives, of which a schedule has exactly one: the gradient that a backward
    pass waits for comes from the next stage's whole backward pass or from that of its inputs. The
    first entry is done by the same stage, a second one by its neighbour, from which a tensor comes.
    """
    kind, stage, micro_batch = action.work
    forward = (Kind.FORWARD, stage, micro_batch)
    if kind is Kind.FORWARD:
        return (((Kind.FORWARD, stage - 1, micro_batch),),) if stage else ()
    if kind is Kind.WEIGHTS:
        return (((Kind.INPUTS, stage, micro_batch),),)
    if stage == stages - 1:
        return ((forward,),)
    gradient = tuple((kind, stage + 1, micro_batch) for kind in _TWIN)
    return (forward,), gradient


def check(schedule: Schedule) -> None:
    """Raises BadInput unless each micro-batch is done once by each stage, on the stage's rank.

    That is one forward, and one whole backward or one of the inputs and one of the weights. Whether
    the lists can run to their end is seen by running them (`simulate`).
    """
    done: Counter[Work] = Counter()
    for rank, actions in enumerate(schedule.ranks):
        for position, action in enumerate(actions):
            field = f"ranks[{rank}][{position}]"
            if not 0 <= action.stage < schedule.stages:
                expected = f"a stage below {schedule.stages}"
                raise BadInput(f"{action} is of no stage", field=field, expected=expected)
            if not 0 <= action.micro_batch < schedule.micro_batches:
                expected = f"a micro-batch below {schedule.micro_batches}"
                raise BadInput(f"{action} is of no micro-batch", field=field, expected=expected)
            owner = schedule.placement.rank_of(action.stage)
            if owner != rank:
                expected = f"rank {owner}, which has its stage"
                raise BadInput(f"{action} is on rank {rank}", field=field, expected=expected)
            done[action.work] += 1
    for stage in range(schedule.stages):
        for micro_batch in range(schedule.micro_batches):
            counts = tuple(done[kind, stage, micro_batch] for kind in Kind)
            if counts not in ((1, 1, 0, 0), (1, 0, 1, 1)):
                had = ", ".join(f"{n} {kind}" for n, kind in zip(counts, Kind, strict=True) if n)
                raise BadInput(
                    f"stage {stage} has {had or 'nothing'} of micro-batch {micro_batch}",
                    field=f"ranks[{schedule.placement.rank_of(stage)}]",
                    expected="one F, and one B or one I and one W",
                )
