"""The dependencies of a pipeline's actions, and a check that a schedule is complete."""

from __future__ import annotations

from collections import Counter

from shardwise.errors import BadInput
from shardwise.pipeline.actions import Action, Kind, Schedule

Work = tuple[Kind, int, int]
"""The kind, stage and micro-batch of an action."""

_TWIN = {Kind.BACKWARD: Kind.INPUTS, Kind.INPUTS: Kind.BACKWARD}


def needs(action: Action, stages: int) -> tuple[tuple[Work, ...], ...]:
    """Returns the prerequisites of an action, in a pipeline of `stages` stages.

    Each entry lists alternatives, exactly one of which is in a schedule: the gradient that a
    backward pass waits for comes from the next stage's whole backward pass or from that of its
    inputs. The first entry is done by the same stage, the second by the neighbour that sends a
    tensor.
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
    """Raises BadInput unless each stage does each micro-batch once, on the stage's rank.

    That is one forward, and either one whole backward or one each of the inputs and the weights.
    Whether the lists can run to their end is found by running them (`simulate`).
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
