"""The fastest pipeline of equal layers in the space of a trainer."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic

from msgspec.structs import replace

from shardwise.answers.pipeline_points import pipeline_point
from shardwise.answers.pipelines import pipeline_document
from shardwise.cost.options import Options, Progress, go_on, quiet
from shardwise.cost.program import assumed
from shardwise.documents import Pipeline
from shardwise.documents.parallelism import Parallelism
from shardwise.documents.pipeline_point import PipelinePoint
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.graph.tuning import tuned
from shardwise.hardware import Devices, Hardware, devices_of
from shardwise.peers.methods import STAGE
from shardwise.peers.pipelines import SCATTERING, PipedPractice, piped_practices
from shardwise.peers.practices import Practices
from shardwise.pipeline.asked import FASTEST
from shardwise.question.question import Question
from shardwise.question.refusals import check
from shardwise.replay.stages import FEWEST
from shardwise.search.pipelines.searched import LOOPED, Searched
from shardwise.search.pipelines.uniform import UniformModel, UniformStages
from shardwise.search.search import Infeasible
from shardwise.trainers.partial import Tried, fewest, parts_of, with_parts
from shardwise.trainers.pipelines import SCHEDULES, trainer_stages
from shardwise.trainers.plan import planned_trainer, with_program
from shardwise.trainers.spaces import space_of
from shardwise.trainers.stated import with_stated


def pipeline_for(
    graph: Graph,
    hardware: Hardware,
    gpus: int | str | Devices,
    trainer: str,
    *,
    objective: str = FASTEST[0],
    stages: Sequence[int] | None = None,
    schedules: Sequence[str] | None = None,
    options: Options | None = None,
    given: Collection[str] = (),
    progress: Progress | None = None,
) -> Pipeline:
    """Returns the fastest pipeline that fits of these numbers of stages (None: all that divide
    layers and devices) and schedules (None: all of the trainer), each stage with the same strategy
    of a trainer, one of `SCHEDULES`, and the step that of its program, as in `plan_for`.

    Nothing is proven. Raises `Infeasible` where none fits, and `BadInput` for schedules that a
    trainer does not have, for numbers of stages that layers or devices do not allow and for what is
    in the table of refusals (`question/refusals.py`).
    """
    asked_options, progress = options or Options(), progress or quiet
    space, taken = space_of(trainer), devices_of(gpus, hardware)
    options = assumed(with_stated(asked_options, space.implies, given), hardware)
    check(
        Question.of(
            options, "plan", taken, objective=objective, space=trainer, stages=stages,
            schedules=schedules,
        )
    )  # fmt: skip
    named = _named(trainer, schedules or SCHEDULES[trainer])
    graph, devices = tuned(graph, options.tune), taken.gpus
    started = monotonic()
    asked, best = _fastest(
        graph, hardware, devices, trainer, stages=stages, named=named, options=options,
        progress=progress,
    )  # fmt: skip
    if best is None or not best.pipeline.fits:
        raise Infeasible(_reason(trainer, asked, devices, best))
    planned = planned_trainer(
        trainer, graph, options, best.practice.parallelism, best.pipeline.step_s
    )
    return replace(
        pipeline_document(best.pipeline, monotonic() - started, 0.0),
        trainer=with_program(planned, asked_options, options),
    )


def _fastest(
    graph: Graph,
    hardware: Hardware,
    gpus: int,
    trainer: str,
    *,
    stages: Sequence[int] | None,
    named: frozenset[str],
    options: Options,
    progress: Progress,
) -> tuple[Sequence[int], PipedPractice | None]:
    """Returns the numbers of stages that are tried, and the fastest pipeline that fits, else that
    which is nearest in memory; None where a trainer has none."""
    space = space_of(trainer)
    model = UniformModel(graph, hardware, gpus, scattered=trainer in SCATTERING)
    best: PipedPractice | None = None
    asked = model.counts() if stages is None else sorted(set(stages))
    questions = [
        (count, batches)
        for count in asked
        for batches in options.counts(model.batch)
        if model.bounds(count) and batches >= max(FEWEST, count)
    ]
    for place, (count, batches) in enumerate(questions):
        go_on(progress, STAGE, place / len(questions))
        costed = model.costed(count, batches, options, progress)
        practices = Practices(costed.search.problem, progress)
        for schedule, cut in trainer_stages(model, costed, trainer):
            if not named & {schedule, str(Searched(schedule, cut.stages_per_rank))}:
                continue
            cutoff_s = best.pipeline.step_s if best and best.pipeline.fits else inf
            known = list(
                piped_practices(
                    cut, schedule, space.allows, progress, cutoff_s, practices=practices
                )
            )
            if space.layers == "first":
                known += _with_parts(known, practices, cut, schedule, progress, cutoff_s)
            best = min(
                known if best is None else [best, *known],
                key=lambda one: one.pipeline.rank,
                default=None,
            )
    return asked, best


@dataclass
class TrainerPipelines:
    """The pipelines of a trainer on successive numbers of devices, for a curve.

    `options` are those of the trainer's program; `stages` and `schedules` are as in `pipeline_for`,
    but that numbers which layers or devices do not allow are left out. `seconds` are those of the
    searches so far.
    """

    graph: Graph
    options: Options
    trainer: str
    stages: Sequence[int] | None
    schedules: Sequence[str] | None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Raises `BadInput` for schedules that the trainer does not have."""
        self._named = _named(self.trainer, self.schedules or SCHEDULES[self.trainer])

    def fastest(
        self, hardware: Hardware, gpus: Devices, progress: Progress, cutoff_s: float | None = None
    ) -> PipelinePoint | None:
        """Returns the fastest pipeline that fits; None where none is faster than `cutoff_s`."""
        started = monotonic()
        scattered = self.trainer in SCATTERING
        possible = UniformModel(self.graph, hardware, gpus.gpus, scattered=scattered).counts()
        stages = [count for count in possible if self.stages is None or count in self.stages]
        _, best = _fastest(
            self.graph, hardware, gpus.gpus, self.trainer, stages=stages, named=self._named,
            options=self.options, progress=progress,
        )  # fmt: skip
        self.seconds += monotonic() - started
        if best is None or not best.pipeline.fits:
            return None
        if cutoff_s is not None and best.pipeline.step_s >= cutoff_s:
            return None
        return pipeline_point(best.pipeline, 0.0)


def _with_parts(
    known: Sequence[PipedPractice],
    practices: Practices,
    cut: UniformStages,
    schedule: str,
    progress: Progress,
    fastest_s: float,
) -> list[PipedPractice]:
    """Returns the pipelines with the first blocks of each stage recomputed that are faster than all
    that are known to fit."""
    layers = practices.in_stages(len(cut.bounds) - 1).blocks

    def tried(one: PipedPractice) -> Tried:
        pipeline = one.pipeline
        over_bytes = pipeline.scaled_peak_bytes - pipeline.limit_bytes
        return Tried(one.practice.parallelism, pipeline.step_s, over_bytes)

    def replayed(part: Parallelism) -> PipedPractice | None:
        found = piped_practices(
            cut, schedule, lambda one: False, progress, partial=(part,), practices=practices
        )
        return min(found, key=lambda one: one.pipeline.rank, default=None)

    def refined(none: PipedPractice, full: PipedPractice) -> PipedPractice | None:
        parts = parts_of(full.practice.parallelism, "first", layers)
        return fewest(parts, tried(none), tried(full), replayed, tried)

    return list(with_parts(known, tried, refined, fastest_s))


def _named(trainer: str, schedules: Sequence[str]) -> frozenset[str]:
    """Returns the schedules that were asked for, without a number of stages for any number. Raises
    `BadInput` for one that a trainer does not run."""
    for name in schedules:
        if (name if name in LOOPED else Searched.of(name).name) not in SCHEDULES[trainer]:
            raise BadInput(
                f"{trainer} does not run {name[:80]}",
                field="schedules",
                expected=", ".join(SCHEDULES[trainer]),
            )
    return frozenset(schedules)


def _reason(trainer: str, asked: Sequence[int], gpus: int, nearest: PipedPractice | None) -> str:
    of = f"{' or '.join(map(str, asked)) or 'any number of'} stages on {gpus} GPUs"
    if nearest is None:
        return f"{trainer} has no pipeline of {of} with samples for every share of a micro-batch"
    peak, limit = nearest.pipeline.peak_bytes.max(), nearest.pipeline.limit_bytes
    return (
        f"no pipeline of {trainer} with {of} fits: the nearest in memory needs "
        f"{peak / 2**30:.1f} GiB per GPU, the limit is {limit / 2**30:.1f} GiB"
    )
