"""What a trainer's pipeline of equal layers takes, and what to change in it for how much.

Priced as the pipelines of `peers/pipelines.py`: each stage replayed, the schedule simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as with_fields
from time import monotonic

from shardwise.advise.pipeline_points import check_pipelines
from shardwise.advise.pipelines import pipeline_document
from shardwise.cost.options import AUTO, Options, Progress, go_on, quiet
from shardwise.documents.parallelism import Parallelism, text_of
from shardwise.documents.pipeline_pricing import PipelineAlternative, PipelinePricing
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Bundle, Hardware
from shardwise.peers.methods import STAGE
from shardwise.peers.pipelines import piped_practices
from shardwise.peers.practices import Allowed
from shardwise.replay.stages import FEWEST
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.uniform import UniformModel, UniformStages
from shardwise.trainers.changes import change_text, changes
from shardwise.trainers.configuration import Configuration
from shardwise.trainers.plan import check_options, one_kind
from shardwise.trainers.price import check_step
from shardwise.trainers.spaces import space_of

SCHEDULES = {"megatron": ("1f1b",), "torchtitan": ("1f1b", "gpipe")}
"""Of trainers whose pipelines are priced, the schedules of one stage a device."""

STAGES, SCHEDULE = "stages", "schedule"


@dataclass(frozen=True)
class _Key:
    """A pipeline of equal layers: what it is told by."""

    stages: int
    schedule: str
    parallelism: Parallelism


def price_pipeline(
    graph: Graph,
    hardware: Hardware,
    gpus: int | str | Bundle,
    configuration: Configuration,
    options: Options | None = None,
    *,
    file: str,
    progress: Progress | None = None,
) -> PipelinePricing:
    """Returns what the pipeline of a configuration takes, and alternatives in its trainer's space.

    Alternatives have other micro-batches, degrees, recomputation or schedules in as many stages, or
    other stages with the same strategy. Nothing is searched or proven. Raises `BadInput` where
    layers, devices or the batch are not divisible so, where the model cannot be split by the
    degrees, and naming `file` for another batch or sequence than the graph's.
    """
    options, progress = options or Options(), progress or quiet
    devices = one_kind(gpus, hardware)
    check_options(options)
    check_pipelines(options)
    check_step(graph, configuration.batch, configuration.sequence_length, file)
    given = _Key(configuration.stages, configuration.schedule, configuration.parallelism)
    zero = tuple(sorted({*options.zero, given.parallelism.zero}))
    options = with_fields(options, zero=zero, recompute=AUTO)
    started = monotonic()
    model = UniformModel(graph, hardware, devices)
    known = _known(model, given, configuration.trainer, options, progress)
    if given not in known:
        raise BadInput(
            f"the model is not split by {text_of(given.parallelism)} on the "
            f"{devices // given.stages} devices of a stage",
            file=file,
            expected="degrees that divide the devices of a stage and samples for every share",
        )
    own = known[given]
    best = min(known, key=lambda key: known[key].rank)
    others = [_alternative(given, own, key, known[key]) for key in known]
    return PipelinePricing(
        trainer=configuration.trainer,
        stages=given.stages,
        schedule=given.schedule,
        parallelism=given.parallelism,
        fits=own.fits,
        pipeline=pipeline_document(own, monotonic() - started, 0.0),
        alternatives=sorted(
            (one for one in others if len(one.changes) == 1),
            key=lambda one: (not one.fits, one.step_s if one.fits else float(one.peak_bytes)),
        ),
        best=None
        if best == given or not known[best].fits
        else _alternative(given, own, best, known[best]),
        unread=configuration.unread,
    )


def _known(
    model: UniformModel, given: _Key, trainer: str, options: Options, progress: Progress
) -> dict[_Key, Pipeline]:
    """Returns the given pipeline and its alternatives; raises as `UniformModel.costed`."""
    space, known = space_of(trainer), dict[_Key, Pipeline]()
    own = given.parallelism
    first = model.costed(given.stages, own.micro_batches, options, progress)

    def alike(one: Parallelism) -> bool:
        """Whether another number of stages leaves the strategy as it is."""
        return not changes(own, one) and space.allows(one)

    questions: list[tuple[int, UniformStages, Allowed]] = [
        (given.stages, first, lambda one: one == own or space.allows(one))
    ]
    counts = sorted({*options.counts(model.batch)} - {own.micro_batches})
    for place, count in enumerate(counts):
        go_on(progress, STAGE, place / len(counts))
        if count >= FEWEST:
            other = model.costed(given.stages, count, options, progress)
            questions.append((given.stages, other, space.allows))
    for stages in model.counts():
        if stages != given.stages:
            other = model.costed(stages, own.micro_batches, options, progress)
            questions.append((stages, other, alike))
    for stages, costed, allowed in questions:
        for key, pipeline in _priced(stages, costed, allowed, given.schedule, trainer, progress):
            if key not in known or pipeline.rank < known[key].rank:
                known[key] = pipeline
    return known


def _priced(
    stages: int,
    costed: UniformStages,
    allowed: Allowed,
    schedule: str,
    trainer: str,
    progress: Progress,
) -> Iterator[tuple[_Key, Pipeline]]:
    """Yields the allowed strategies in stages under each schedule of the trainer."""
    for one in piped_practices(costed, schedule, allowed, progress):
        parallelism = one.practice.parallelism
        for name in {schedule, *SCHEDULES[trainer]}:
            yield _Key(stages, name, parallelism), with_fields(one.pipeline, schedule=name)


def _alternative(given: _Key, own: Pipeline, key: _Key, other: Pipeline) -> PipelineAlternative:
    fields = changes(given.parallelism, key.parallelism)
    words = [change_text(given.parallelism, key.parallelism)] if fields else []
    if key.stages != given.stages:
        fields.append(STAGES)
        words.append(f"{key.stages} stages instead of {given.stages}")
    if key.schedule != given.schedule:
        fields.append(SCHEDULE)
        words.append(f"{key.schedule} instead of {given.schedule}")
    return PipelineAlternative(
        text=", ".join(words),
        changes=fields,
        stages=key.stages,
        schedule=key.schedule,
        parallelism=key.parallelism,
        step_s=other.step_s,
        peak_bytes=round(float(other.peak_bytes.max())),
        fits=other.fits,
        saves=1.0 - other.step_s / own.step_s,
    )
