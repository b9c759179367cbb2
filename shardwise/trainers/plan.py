"""The fastest plan that a trainer can run as it is, and what that costs.

The trainer's strategies (`spaces.py`) are for the whole model, so they can be enumerated: each is
replayed with every number of micro-batches, and the simplest that fits and is within epsilon of the
fastest is the answer (`answers/simplest.py`). The fastest is exact within that space, under one
reservation: what tensor parallelism splits is the least sum of its factorisation
(`peers/practitioners.py`).

Beside it the unrestricted search runs as ever. Every strategy of the space is one of that search's
space too, so what it proves of all strategies that fit bounds the trainer's as well: `gap` and
`certificate` are relative to that bound, and null where it proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from shardwise.answers.label import Labels
from shardwise.answers.neighbours import with_neighbours
from shardwise.answers.plan import plan_document
from shardwise.answers.remedies import answered
from shardwise.answers.simplest import tolerated_s
from shardwise.cost.options import Options, Progress, quiet
from shardwise.cost.program import assumed
from shardwise.documents import WholePlan
from shardwise.documents.parallelism import Parallelism, PlannedTrainer, text_of
from shardwise.documents.plan import Neighbour
from shardwise.graph import Graph
from shardwise.graph.step import step_of
from shardwise.graph.tuning import tuned
from shardwise.hardware import Devices, Hardware, devices_of
from shardwise.peers.practitioners import Practised
from shardwise.peers.replayed import replayer_of_whole
from shardwise.pipeline.asked import FASTEST
from shardwise.question.question import Question
from shardwise.question.refusals import check
from shardwise.search.chosen import Chosen, fastest
from shardwise.search.fitting import search_fitting
from shardwise.search.search import Infeasible, Search, Subject
from shardwise.search.turning_point import picked
from shardwise.texts import counted
from shardwise.trainers.changes import change_text, changes
from shardwise.trainers.facts import facts_of
from shardwise.trainers.spaces import TrainerSpace, space_of
from shardwise.trainers.stated import changed_in_words, with_stated
from shardwise.trainers.strategies import (
    Replayable,
    best_of,
    searches_of,
    simplest_of,
    strategies,
)


@dataclass(frozen=True)
class Answer:
    """A trainer's strategy that is the answer, all that were replayed, and these as points of
    searches; `faster` is the fastest that fits, where that is another."""

    best: Practised
    known: Collection[Practised]
    searches: list[Search]
    chosen: Chosen
    faster: Chosen | None


def plan_for(
    graph: Graph,
    hardware: Hardware,
    gpus: int | str | Devices,
    trainer: str,
    *,
    objective: str = "mini-time",
    order: str | None = None,
    options: Options | None = None,
    given: Collection[str] = (),
    progress: Progress | None = None,
) -> WholePlan:
    """Returns the fastest plan that fits among the strategies of a trainer, one of `SPACES`, or
    with the option `simplest` the simplest within epsilon of it.

    The step is that of the program which the trainer runs (`TrainerSpace.implies`), except for
    options `given` by name and those that differ from their default. A time limit of the options is
    for the unrestricted search; the trainer's strategies come on top. Raises `Infeasible` where
    none of them fits, with what would (`answers/remedies.py`), and `BadInput` for an unknown
    trainer and for what trainers do not take: devices of several kinds, rules, sums, other
    objectives and orders.
    """
    asked, progress = options or Options(), progress or quiet
    space = space_of(trainer)
    options = assumed(with_stated(asked, space.implies, given), hardware)
    graph = tuned(graph, options.tune)
    devices = devices_of(gpus, hardware)
    check(Question.of(options, "plan", devices, objective=objective, order=order, space=trainer))
    ask = partial(_fastest_plan, graph, hardware, trainer, objective, asked)
    return answered(ask, graph, options, devices, progress, own_program=False)


def _fastest_plan(
    graph: Graph,
    hardware: Hardware,
    trainer: str,
    objective: str,
    asked: Options,
    options: Options,
    devices: Devices,
    progress: Progress,
) -> WholePlan:
    """Returns the plan as `plan_for`, of options of which `asked` are those without the trainer's
    program; where nothing fits, what would is not tried."""
    space = space_of(trainer)
    searches = search_fitting(Subject.of(graph), hardware, devices, options, progress)
    if all(search.proof is not None for search in searches):
        searches, _ = with_neighbours(searches, progress)
    answer = answer_of(trainer, space, searches, progress, objective)
    near = neighbours_of(answer.best, answer.known, answer.chosen.search.limit_bytes)
    return replace(
        plan_document(answer.searches, answer.chosen, objective, near, faster=answer.faster),
        trainer=with_program(
            planned_trainer(
                trainer,
                graph,
                options,
                answer.best.practice.parallelism,
                answer.best.step.time_s,
                fastest(searches),
            ),
            asked,
            options,
        ),
    )


def answer_of(
    trainer: str,
    space: TrainerSpace,
    searches: Sequence[Search],
    progress: Progress,
    objective: str = FASTEST[0],
) -> Answer:
    """Returns the fastest strategy of a trainer that fits, or the simplest as the options say, or
    what another objective picks of those that no other beats in peak and time. Raises `Infeasible`
    as `fitting`."""
    started = monotonic()
    replayables = [Replayable(one, replayer_of_whole(one, progress)) for one in searches]
    known: list[Practised] = []
    # Context parallelism is tried where nothing fits without it, and where the fastest strategy of
    # any kind divides positions: elsewhere it only takes time.
    for context in (False, True):
        known += strategies(
            replayables,
            _with_context(space, context),
            progress,
            layers=space.layers,
        ).values()
        fits = any(one.step.peak_bytes <= searches[0].limit_bytes for one in known)
        if fits and not _divides_positions(fastest(searches)):
            break
    best = _picked(known, objective, fitting(known, trainer, searches[0]), searches[0].limit_bytes)
    seconds = monotonic() - started
    own, [chosen] = searches_of(replayables, known, [best], seconds)
    if objective not in FASTEST:
        return Answer(best, known, own, chosen, None)
    within_s = tolerated_s(own, chosen)
    simple = best if within_s is None else simplest_of(known, chosen.search.limit_bytes, within_s)
    if simple is best or simple.step.time_s == best.step.time_s:
        return Answer(best, known, own, chosen, None)
    own, [chosen, faster] = searches_of(replayables, known, [simple, best], seconds)
    return Answer(simple, known, own, chosen, faster)


def _with_context(space: TrainerSpace, context: bool) -> Callable[[Parallelism], bool]:
    """Returns whether a strategy is the space's, and has context parallelism or has none."""
    return lambda one: (one.context > 1) is context and space.allows(one)


def _divides_positions(best: Chosen | None) -> bool:
    """Returns whether most products of a strategy of any kind divide positions."""
    if best is None:
        return False
    degrees = Labels(best.search.problem).degrees(best.search.solution.choices[best.point])
    return degrees is not None and degrees.position > 1


def fitting(known: Collection[Practised], trainer: str, search: Search) -> Practised:
    """Returns the fastest strategy that fits; raises `Infeasible` that names the trainer and what
    is nearest in memory."""
    gpus = counted(search.mesh.gpus, "GPU")
    if not known:
        raise Infeasible(
            f"{trainer} has no strategy for {gpus}: a micro-batch has fewer samples than "
            "there are devices to divide them, or the options leave none"
        )
    best = best_of(known, search.limit_bytes)
    if best.step.peak_bytes > search.limit_bytes:
        raise Infeasible(
            f"no strategy of {trainer} fits on {gpus}: the nearest in memory "
            f"({text_of(best.practice.parallelism)}) needs {best.step.peak_bytes / 2**30:.1f} GiB "
            f"per GPU, the limit is {search.limit_bytes / 2**30:.1f} GiB"
        )
    return best


def _picked(
    known: Sequence[Practised], objective: str, fastest_fitting: Practised, limit_bytes: float
) -> Practised:
    """Returns what an objective picks: the fastest that fits, the lowest peak, or the knee of the
    frontier, in its place the fastest where that does not fit."""
    if objective in FASTEST:
        return fastest_fitting
    peaks = np.array([one.step.peak_bytes for one in known])
    times = np.array([one.step.time_s for one in known])
    wanted = known[picked(objective, peaks, times)]
    return wanted if wanted.step.peak_bytes <= limit_bytes else fastest_fitting


def neighbours_of(
    best: Practised, known: Collection[Practised], limit_bytes: float
) -> list[Neighbour]:
    """Returns for each field the best strategy that differs from the answer in that field alone.

    It is the fastest that fits, or one that does not fit if it would be faster than the answer.
    """
    own, time_s = best.practice.parallelism, best.step.time_s
    found: dict[str, tuple[bool, float, Practised]] = {}
    for one in known:
        fields = changes(own, one.practice.parallelism)
        fits = one.step.peak_bytes <= limit_bytes
        if len(fields) != 1 or not (fits or one.step.time_s < time_s):
            continue
        rank = (fits, one.step.time_s, one)
        if fields[0] not in found or rank[:2] < found[fields[0]][:2]:
            found[fields[0]] = rank
    return [
        Neighbour(
            name=change_text(own, one.practice.parallelism),
            label=text_of(one.practice.parallelism),
            micro_batches=one.practice.parallelism.micro_batches,
            replayed_time_s=one.step.time_s,
            peak_bytes=round(one.step.peak_bytes),
            fits=fits,
        )
        for fits, _, one in found.values()
    ]


def with_program(planned: PlannedTrainer, asked: Options, options: Options) -> PlannedTrainer:
    """Returns a plan's trainer with what it implies of the step, beyond the options asked for."""
    return replace(
        planned,
        implied=changed_in_words(asked, options, space_of(planned.name).implies) or UNSET,
    )


def planned_trainer(
    trainer: str,
    graph: Graph,
    options: Options,
    parallelism: Parallelism,
    time_s: float,
    any_kind: Chosen | None = None,
) -> PlannedTrainer:
    """Returns a plan's trainer, with what its space costs where the fastest of any kind is known.
    Where the unrestricted search ended early with a slower answer, the trainer's own is that."""
    any_time_s = None if any_kind is None else min(any_kind.ranking_s, time_s)
    step = step_of(graph)
    return PlannedTrainer(
        name=trainer,
        parallelism=parallelism,
        sequence_length=step.seq,
        any_time_s=any_time_s,
        slower=None if any_time_s is None else time_s / any_time_s - 1.0,
        dtype=step.dtype,
        gradients=options.step.gradients,
        model=facts_of(graph) or UNSET,
    )
