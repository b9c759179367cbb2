"""What a trainer's pipeline of equal layers takes, and what to change in it for how much.

Priced as the pipelines of `peers/pipelines.py`: each stage replayed, the schedule simulated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from dataclasses import replace as with_fields
from math import inf
from time import monotonic

from msgspec import UNSET
from msgspec.structs import replace

from shardwise.answers.pipelines import pipeline_document
from shardwise.cost.options import Options, Progress, go_on, quiet
from shardwise.cost.program import assumed
from shardwise.documents.parallelism import Parallelism, text_of, whole
from shardwise.documents.pipeline_pricing import PipelineAlternative, PipelinePricing
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.graph.tuning import tuned
from shardwise.hardware import Devices, Hardware, devices_of
from shardwise.peers.methods import STAGE
from shardwise.peers.pipelines import INTERLEAVED, SCATTERING, cut_for, piped_practices
from shardwise.peers.practices import Allowed, Practices
from shardwise.pipeline import schedules as published
from shardwise.pipeline.keeping import keeping
from shardwise.pipeline.schedules import allows
from shardwise.question.question import Question
from shardwise.question.refusals import check
from shardwise.replay.stages import FEWEST
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.uniform import UniformModel, UniformStages
from shardwise.trainers.changes import change_text, changes
from shardwise.trainers.configuration import Configuration
from shardwise.trainers.launched import differing
from shardwise.trainers.price import check_configuration, in_context, with_its_zero
from shardwise.trainers.spaces import space_of
from shardwise.trainers.stated import as_configured, changed_in_words, on_hardware

SCHEDULES = {
    "megatron": ("1f1b", INTERLEAVED),
    "torchtitan": ("1f1b", "gpipe", INTERLEAVED, "zb-h1", "zbv", "dualpipev"),
}
"""Of trainers whose pipelines are priced, the schedules."""

LOOPED = (INTERLEAVED, "zb-h1")
"""Schedules that trainers run with several stages on each rank alone, as many as wanted."""

STAGES, SCHEDULE, STAGES_PER_RANK = "stages", "schedule", "stages per rank"


@dataclass(frozen=True)
class _Key:
    """A pipeline of equal layers: what it is told by."""

    stages: int
    schedule: str
    stages_per_rank: int
    parallelism: Parallelism


def price_pipeline(
    graph: Graph,
    hardware: Hardware,
    gpus: int | str | Devices,
    configuration: Configuration,
    options: Options | None = None,
    *,
    file: str,
    given: Collection[str] = (),
    progress: Progress | None = None,
) -> PipelinePricing:
    """Returns what the pipeline of a configuration takes, and alternatives in its trainer's space.

    Alternatives have other micro-batches, degrees, recomputation or schedules in as many stages,
    other stages with the same strategy, or other numbers of stages on each rank. Nothing is
    searched or proven; options that the configuration states count as in `price_configuration`,
    with those `given` by name left as they are. Raises `BadInput` where layers, devices or the
    batch are not divisible so, where the schedule does not have the micro-batches, where the model
    cannot be split by the degrees, and naming `file` for another batch, sequence or model than the
    graph's.
    """
    asked, progress = options or Options(), progress or quiet
    configuration = on_hardware(configuration, hardware, piped=True)
    options = assumed(as_configured(asked, configuration.stated, given), hardware)
    taken = devices_of(gpus, hardware)
    check(Question.of(options, "pricing", taken, stages=(configuration.stages,)))
    devices = taken.gpus
    check_configuration(graph, configuration, file)
    graph = tuned(graph, options.tune)
    scattered = configuration.trainer in SCATTERING
    model = UniformModel(graph, hardware, devices, scattered=scattered)
    each = _stages_per_rank(model, configuration, file)
    notes: list[str] = []
    ends = _ends(model, configuration, each, notes)
    if ends is not None:
        model = model.with_ends({configuration.stages * each: ends})
    schedule = configuration.schedule if each > 1 else _of_one_stage(configuration, file)
    _check_number(schedule, each, file)
    key = _Key(configuration.stages, schedule, each, configuration.parallelism)
    options = with_its_zero(options, key.parallelism)
    started = monotonic()
    known = _known(model, key, configuration.trainer, options, progress)
    if key not in known:
        raise BadInput(
            f"the model is not split by {text_of(key.parallelism)} on the "
            f"{devices // key.stages} devices of a stage",
            file=file,
            expected="degrees that divide the devices of a stage and samples for every share",
        )
    priced = known[key]
    best = min(known, key=lambda one: known[one].rank)
    others = [_alternative(key, priced, one, known[one]) for one in known]
    document = pipeline_document(priced, monotonic() - started, 0.0)
    warnings = [*differing(configuration, hardware, devices), *document.warnings]
    return PipelinePricing(
        trainer=configuration.trainer,
        stages=key.stages,
        schedule=key.schedule,
        parallelism=key.parallelism,
        fits=priced.fits,
        pipeline=replace(document, warnings=warnings),
        alternatives=sorted(
            (one for one in others if len(one.changes) == 1),
            key=lambda one: (not one.fits, one.step_s if one.fits else float(one.peak_bytes)),
        ),
        best=None
        if best == key or not known[best].fits
        else _alternative(key, priced, best, known[best]),
        unread=[*configuration.left_out, *notes, *configuration.unread],
        stages_per_rank=each if each > 1 else UNSET,
        stated=changed_in_words(asked, options, configuration.stated) or UNSET,
        left_out=configuration.left_out or UNSET,
    )


def _of_one_stage(configuration: Configuration, file: str) -> str:
    """Returns the schedule of ranks with one stage each, which Megatron-LM does not interleave and
    torchtitan refuses to."""
    if configuration.schedule in LOOPED and configuration.trainer != "megatron":
        raise BadInput(
            f"{configuration.schedule} with one stage on each rank",
            file=file,
            field="stages per rank",
            expected="at least 2",
        )
    return "1f1b" if configuration.schedule == INTERLEAVED else configuration.schedule


def _check_number(schedule: str, each: int, file: str) -> None:
    """Raises `BadInput` for another number of stages on each rank than the schedule has."""
    only = published.SCHEDULES[schedule].stages_per_rank
    if only is not None and each != only:
        raise BadInput(
            f"{schedule} with {each} stages on each rank",
            file=file,
            field="stages per rank",
            expected=f"{only}",
        )


def trainer_stages(
    model: UniformModel, costed: UniformStages, trainer: str
) -> Iterator[tuple[str, UniformStages]]:
    """Yields the schedules of a trainer, each with the stages that it can run."""
    for schedule, cut in cut_for(model, costed, SCHEDULES[trainer]):
        if cut.stages_per_rank > 1 or schedule not in LOOPED:
            yield schedule, cut


def _stages_per_rank(model: UniformModel, configuration: Configuration, file: str) -> int:
    """Returns how many stages each rank has; raises `BadInput` where the layers of a stage, which
    the file says, do not divide those of a rank."""
    each = configuration.layers_per_stage
    if each is None:
        return configuration.stages_per_rank
    layers, ranks = len(model.layers), configuration.stages
    if configuration.less is not None:
        stages = -(-(layers + sum(configuration.less)) // each)
        if stages % ranks:
            raise BadInput(
                f"{layers} layers, {sum(configuration.less)} fewer in the ends, make {stages} "
                f"stages of {each} on {ranks} ranks",
                file=file,
                field="layers per stage",
                expected=f"a number that makes a multiple of {ranks} stages",
            )
        return stages // ranks
    if layers % (each * ranks):
        raise BadInput(
            f"{layers} layers do not divide into stages of {each} on {ranks} ranks",
            file=file,
            field="layers per stage",
            expected="a divisor of the layers of a rank",
        )
    return layers // (each * ranks)


def _ends(
    model: UniformModel, configuration: Configuration, each: int, notes: list[str]
) -> tuple[int, int] | None:
    """Returns the layers of the first and the last stage where they differ from the others.

    Where torchtitan gives some stages between them another layer, a note says so, and the stages
    are priced as equal.
    """
    if configuration.less is None:
        return configuration.ends
    first, last = configuration.less
    stages, layers = configuration.stages * each, len(model.layers)
    of_stage, more = divmod(layers + first + last, stages)
    counts = [of_stage + (place < more) for place in range(stages)]
    counts[0], counts[-1] = max(counts[0] - first, 0), max(counts[-1] - last, 0)
    if len(set(counts)) == 1:
        return None
    if len(set(counts[1:-1])) < 2 and sum(counts) == layers:
        return counts[0], counts[-1]
    notes.append(
        f"pipeline_parallel_first_stage_less_layers {first} and last {last}: stages of "
        f"{', '.join(map(str, counts))} layers, priced as stages of equal layers"
    )
    return None


def _known(
    model: UniformModel, given: _Key, trainer: str, options: Options, progress: Progress
) -> dict[_Key, Pipeline]:
    """Returns the given pipeline and its alternatives; raises as `UniformModel.costed`."""
    space, known = space_of(trainer), dict[_Key, Pipeline]()
    own = given.parallelism
    model.bounds(given.stages, given.stages_per_rank)
    first = model.costed(given.stages, own.micro_batches, options, progress)
    # Raises where the schedule does not have these sizes.
    keeping(given.schedule, given.stages, own.micro_batches, given.stages_per_rank)

    def runs(ranks: int, batches: int) -> bool:
        """Returns whether the schedule, and layers, have as many stages on each of these ranks."""
        each = given.stages_per_rank
        sizes = {"ranks": ranks, "micro_batches": batches, "stages_per_rank": each}
        return each in model.stages_per_rank(ranks) and allows(given.schedule, **sizes)

    def alike(one: Parallelism) -> bool:
        """Whether another number of stages leaves the strategy as it is."""
        return not changes(own, one) and space.allows(one)

    def usual(one: Parallelism) -> bool:
        """Whether a strategy is one of the trainer's with positions divided as given or not."""
        return in_context(one, own) and space.allows(one)

    questions: list[tuple[UniformStages, Allowed]] = [(first, lambda one: one == own or usual(one))]
    counts = sorted({*options.counts(model.batch)} - {own.micro_batches})
    for place, count in enumerate(counts):
        go_on(progress, STAGE, place / len(counts))
        if count >= FEWEST and runs(given.stages, count):
            other = model.costed(given.stages, count, options, progress)
            questions.append((other, usual))
    for stages in model.counts():
        if stages != given.stages and runs(stages, own.micro_batches):
            other = model.costed(stages, own.micro_batches, options, progress)
            questions.append((other, alike))
    for costed, allowed in questions:
        fastest_s = min((one.step_s for one in known.values() if one.fits), default=inf)
        found = _priced(model, costed, allowed, given, trainer, fastest_s, progress)
        for key, pipeline in found:
            if key not in known or pipeline.rank < known[key].rank:
                known[key] = pipeline
    return known


def _priced(
    model: UniformModel,
    costed: UniformStages,
    allowed: Allowed,
    given: _Key,
    trainer: str,
    fastest_s: float,
    progress: Progress,
) -> Iterator[tuple[_Key, Pipeline]]:
    """Yields the allowed strategies with stages that are placed as given, under the trainer's
    schedules for those; and with others, or another backward, the given strategy alone.

    Strategies in which several things change can only be the best, and are left out where by sums
    they take far longer than `fastest_s`, that of what fits already."""
    own = published.SCHEDULES[given.schedule]
    practices = Practices(costed.search.problem, progress)
    alike: list[str] = []
    of = given.parallelism
    partial = (of,) if whole(of) != of else ()
    for schedule, cut in trainer_stages(model, costed, trainer):
        rule, each = published.SCHEDULES[schedule], cut.stages_per_rank
        if (rule.splits, rule.shape, each) == (own.splits, own.shape, given.stages_per_rank):
            alike.append(schedule)
            continue
        same = given.parallelism.__eq__
        for one in piped_practices(
            cut, schedule, same, progress, partial=partial, practices=practices
        ):
            yield _Key(cut.ranks, schedule, each, one.practice.parallelism), one.pipeline
    cut = model.recut(costed, given.stages_per_rank)

    def near(one: Parallelism) -> bool:
        return allowed(one) and len(changes(given.parallelism, one)) <= 1

    def far(one: Parallelism) -> bool:
        return allowed(one) and not near(one)

    for wanted in (near, far):
        for one in piped_practices(
            cut,
            given.schedule,
            wanted,
            progress,
            cutoff_s=inf if wanted is near else fastest_s,
            partial=partial if wanted is near else (),
            practices=practices,
        ):
            if one.pipeline.fits:
                fastest_s = min(fastest_s, one.pipeline.step_s)
            for name in alike:
                key = _Key(cut.ranks, name, cut.stages_per_rank, one.practice.parallelism)
                yield key, with_fields(one.pipeline, schedule=name)


def _alternative(given: _Key, own: Pipeline, key: _Key, other: Pipeline) -> PipelineAlternative:
    fields = changes(given.parallelism, key.parallelism)
    words = [change_text(given.parallelism, key.parallelism)] if fields else []
    if key.stages != given.stages:
        fields.append(STAGES)
        words.append(f"{key.stages} stages instead of {given.stages}")
    each = key.stages_per_rank
    if key.schedule != given.schedule:
        fields.append(SCHEDULE)
        of = f" with {each} stages a rank" if each > 1 else ""
        words.append(f"{key.schedule}{of} instead of {given.schedule}")
    elif each != given.stages_per_rank:
        fields.append(STAGES_PER_RANK)
        words.append(f"{each} stages a rank instead of {given.stages_per_rank}")
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
        stages_per_rank=each if each > 1 else UNSET,
    )
