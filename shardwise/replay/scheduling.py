"""Orders of execution by list scheduling (HeteroG §4.2, "Part II").

    program               the graph's order, backward reversed, as frameworks run it
    rank                  whenever a device is free it takes its ready operator of the highest
                          upward rank:  rank(o) = p_o + max over successors of rank
    rank-within-memory    as rank, but an operator that would lift a device above its memory limit
                          is passed over while anything else can run
    depth                 the ready operator with the shortest longest path up to its end (what
                          HeteroG's published code computes)
    fifo                  the operator that became ready first

A schedule by rank treats one micro-batch's operators as free tasks: forward before backward before
update, each device one operator at a time, communication on the links by the same urgency. The
order in which operators have started on all devices gives one list for forward and one for
backward. The step is then written again in this order and replayed as the program (`replay.py`),
including what depends on the order, such as repeated moves or parameters gathered ahead. So time
and peak are those of the list, not of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.mixed.assemble import MixedProblem
from shardwise.cost.step_settings import StepSettings
from shardwise.errors import BadInput
from shardwise.graph.order import OperatorOrder, pairs
from shardwise.replay.columns import GroupTable
from shardwise.replay.kit import Kit, kit_of, written_kit
from shardwise.replay.mixed.replay import MixedReplayer
from shardwise.replay.owner_costs import Choices
from shardwise.replay.program import Pass, step_program
from shardwise.replay.record import Order
from shardwise.replay.replay import Replayed, Replayer, StrategyReplayer
from shardwise.replay.tape import COMPUTE, Tape, Urgency
from shardwise.sharding.layout import Floats

PROGRAM: Final = "program"
RANK: Final = "rank"
WITHIN_MEMORY: Final = "rank-within-memory"
DEPTH: Final = "depth"
FIFO: Final = "fifo"
Kind = Literal["program", "rank", "rank-within-memory", "depth", "fifo"]
KINDS: tuple[Kind, ...] = (PROGRAM, RANK, WITHIN_MEMORY, DEPTH, FIFO)

RULES: Mapping[str, tuple[Order, Urgency]] = {
    RANK: ("rank", "rank"),
    WITHIN_MEMORY: ("rank-within-memory", "rank"),
    DEPTH: ("rank", "depth"),
    FIFO: ("rank", "fifo"),
}
"""How devices pick operators, and the measure of urgency."""


@dataclass(frozen=True)
class Scheduled:
    """A strategy in an order of execution.

    `replayed` has the one strategy, and `replayer` replays others in the same order.
    """

    kind: Kind
    order: OperatorOrder
    replayed: Replayed
    replayer: StrategyReplayer

    @property
    def time_s(self) -> float:
        """The seconds of a step."""
        return float(self.replayed.time_s[0])

    @property
    def peak_bytes(self) -> float:
        """The peak of a device's memory, scaled as in `MixedReplayer`."""
        return float(self.replayed.peak_bytes[0])


def scheduled(
    problem: SearchProblem,
    settings: StepSettings,
    choices: Choices,
    edge_choices: Choices,
    kind: Kind,
    limits_bytes: Floats,
) -> Scheduled:
    """Returns a strategy, (groups,) and (edges,), replayed in an order computed for it.

    `limits_bytes` are the memory limits of a device at each place, (places,), on one kind (1,).
    Raises `BadInput` for an unknown kind.
    """
    order = order_for(problem, settings, choices, edge_choices, kind, limits_bytes)
    urgency = RULES[kind][1] if kind in RULES else "rank"
    replayer = replayer_in(problem, settings, order, limits_bytes, urgency)
    return Scheduled(kind, order, replayer.replay(choices[None], edge_choices[None]), replayer)


def order_for(
    problem: SearchProblem,
    settings: StepSettings,
    choices: Choices,
    edge_choices: Choices,
    kind: Kind,
    limits_bytes: Floats,
) -> OperatorOrder:
    """Returns the order of one strategy, (groups,) and (edges,); raises as `scheduled`."""
    if kind == PROGRAM:
        return program_order(problem)
    if kind not in RULES:
        raise BadInput(f"unknown order {kind!r}", field="order", expected=", ".join(KINDS))
    compute, urgency = RULES[kind]
    write = partial(_free_kit, compute=compute)
    if isinstance(problem, MixedProblem):
        several = MixedReplayer(problem, settings, limits_bytes, write=write, urgency=urgency)
        return _listed(several.kit.passes[-1], several.starts(choices, edge_choices))
    replayer = Replayer(problem, settings, made=write(problem, settings), urgency=urgency)
    starts = replayer.starts(choices, edge_choices, float(limits_bytes.min()))
    return _listed(replayer.passes[-1], starts[None])


def program_order(problem: SearchProblem) -> OperatorOrder:
    """Returns a framework's order of a problem's graph."""
    patterns = problem.context.patterns
    members = [m for pattern in problem.patterns for m in pattern.members]
    with_backward = {m.operator.name for m in members if patterns.has_backward(m)}
    return OperatorOrder.of_graph(problem.context.graph, with_backward)


def replayer_in(
    problem: SearchProblem,
    settings: StepSettings,
    order: OperatorOrder,
    limits_bytes: Floats,
    urgency: Urgency = "rank",
) -> StrategyReplayer:
    """Returns a replayer whose steps run in an order; `limits_bytes` as in `scheduled`."""
    write = partial(written_kit, order=order)
    if isinstance(problem, MixedProblem):
        return MixedReplayer(problem, settings, limits_bytes, write=write, urgency=urgency)
    return Replayer(problem, settings, made=write(problem, settings), urgency=urgency)


def _listed(tasks: Pass, starts: Floats) -> OperatorOrder:
    """Returns the operators in the order in which their tasks have started at all places.

    `starts` has the shape (places, tasks). No task starts before its predecessors, so the list
    respects dependencies; ties follow the program's order.
    """
    latest = starts.max(axis=0)

    def in_order(of: Mapping[str, int]) -> tuple[str, ...]:
        names, numbers = list(of), np.array(list(of.values()), dtype=np.int64)
        return tuple(names[n] for n in np.lexsort((numbers, latest[numbers])).tolist())

    return OperatorOrder(in_order(tasks.forward), in_order(tasks.backward))


def _free_kit(
    problem: SearchProblem,
    settings: StepSettings,
    tables: list[GroupTable] | None = None,
    *,
    compute: Order,
) -> tuple[Kit, list[GroupTable]]:
    """Returns the step of one micro-batch with operators ordered only by dependencies and phases:
    forward before backward before update."""
    written = step_program(problem, settings, tables, most=1, compute=compute)
    tape = written.structure.tape
    of = written.passes[-1]
    graph = problem.context.graph
    tape.dependencies.update((of.forward[a], of.forward[b]) for a, b in pairs(graph))
    _part(tape, of.forward_tasks, range(of.forward_tasks.stop, written.update.start))
    _part(tape, range(of.forward_tasks.stop, written.update.start), written.update)
    tape.dependencies.update(pairwise(_computing(tape, written.update)))
    return kit_of(written), written.structure.tables


def _part(tape: Tape, first: range, second: range) -> None:
    """Makes one phase's computation start after the previous one's.

    The last tasks of the earlier phase, for which no others wait, precede those of the later phase
    that wait for nothing else in it.
    """
    followed, waiting = set(), set()
    for before, after in tape.dependencies:
        if before in first and after in first:
            followed.add(before)
        elif before in second and after in second:
            waiting.add(after)
    last = [task for task in _computing(tape, first) if task not in followed]
    begins = [task for task in _computing(tape, second) if task not in waiting]
    if not begins:
        return
    # Through one task, to avoid all pairs.
    opening, *others = begins
    tape.dependencies.update((task, opening) for task in last)
    tape.dependencies.update((opening, task) for task in others)


def _computing(tape: Tape, stretch: range) -> Iterable[int]:
    return (task for task in stretch if COMPUTE in tape.holds[task])
