"""What a given strategy of the whole model takes, and what to change in it for how much."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace as with_fields
from time import monotonic

from msgspec import UNSET
from msgspec.structs import replace

from shardwise.answers.plan import plan_document
from shardwise.cost.options import AUTO, Options, Progress, go_on, quiet
from shardwise.cost.program import assumed
from shardwise.documents.parallelism import Parallelism, text_of, whole
from shardwise.documents.pricing import Alternative, Pricing
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.graph.step import step_of
from shardwise.graph.tuning import tuned
from shardwise.hardware import Devices, Hardware, devices_of
from shardwise.peers.methods import STAGE
from shardwise.peers.practices import Practices
from shardwise.peers.practitioners import Practised
from shardwise.pipeline.asked import ANY
from shardwise.question.question import Question
from shardwise.question.refusals import check
from shardwise.search.search import Draft, Subject, mesh_of
from shardwise.search.solution import Solution
from shardwise.sharding.layout import shard_fits
from shardwise.trainers.changes import change_text, changes
from shardwise.trainers.configuration import Configuration
from shardwise.trainers.job import canonical
from shardwise.trainers.launched import differing
from shardwise.trainers.model_sizes import check_model
from shardwise.trainers.plan import planned_trainer
from shardwise.trainers.spaces import priced_space
from shardwise.trainers.stated import as_configured, changed_in_words, on_hardware
from shardwise.trainers.strategies import Replayable, best_of, searches_of, strategies

GIVEN = "given"
"""The `objective` of a plan whose strategy was given."""


def price(
    graph: Graph,
    hardware: Hardware,
    gpus: int | str | Devices,
    parallelism: Parallelism,
    options: Options | None = None,
    *,
    trainer: str = ANY,
    unread: Sequence[str] = (),
    progress: Progress | None = None,
) -> Pricing:
    """Returns the plan of a strategy, whether or not it fits, and alternatives to it.

    Alternatives are in the space of `trainer`, with the numbers of micro-batches and the ZeRO
    stages of the options; nothing is searched or proven, so the plan's `gap` is null. Raises
    `BadInput` where the strategy does not divide the devices or the batch, where the model cannot
    be split by its degrees, and for options that such strategies do not have.
    """
    options, progress = assumed(options, hardware), progress or quiet
    graph = tuned(graph, options.tune)
    taken, given = devices_of(gpus, hardware), canonical(parallelism)
    check(Question.of(options, "pricing", taken))
    devices = taken.gpus
    space = priced_space(trainer)
    _check(parallelism, devices, graph.batch_size)
    options = with_its_zero(options, given)
    started = monotonic()
    counts = sorted({*options.counts(graph.batch_size), given.micro_batches})
    partial = (given,) if whole(given) != given else ()
    replayables = _replayables(graph, hardware, devices, counts, options, progress)
    known = strategies(
        replayables,
        lambda one: (
            one == given or (in_context(one, given) and (space is None or space.allows(one)))
        ),
        progress,
        layers="all" if space is None else space.layers,
        partial=partial,
    )
    if given not in known and given.zero:
        options, alone = with_its_shards(options, given), [given.micro_batches]
        apart = _replayables(graph, hardware, devices, alone, options, progress)
        replayables += apart
        known |= strategies(apart, lambda one: one == given, progress, partial=partial)
    if given not in known:
        raise _not_priced(given, known, replayables, progress)
    seconds, own = monotonic() - started, known[given]
    searches, [chosen] = searches_of(replayables, known.values(), [own], seconds)
    limit_bytes = chosen.search.limit_bytes
    best = best_of(known.values(), limit_bytes)
    alternatives = [_alternative(own, other, limit_bytes) for other in known.values()]
    return Pricing(
        trainer=trainer,
        parallelism=given,
        fits=chosen.fits,
        plan=replace(
            plan_document(searches, chosen, GIVEN),
            trainer=planned_trainer(
                trainer, graph, options, own.practice.parallelism, own.step.time_s
            ),
        ),
        alternatives=sorted((one for one in alternatives if len(one.changes) == 1), key=_rank),
        best=None
        if best is own or best.step.peak_bytes > limit_bytes
        else _alternative(own, best, limit_bytes),
        unread=list(unread),
    )


def price_configuration(
    graph: Graph,
    hardware: Hardware,
    gpus: int | str | Devices,
    configuration: Configuration,
    options: Options | None = None,
    *,
    file: str,
    given: Collection[str] = (),
    progress: Progress | None = None,
) -> Pricing:
    """Returns the price of a configuration in its trainer's space, as `price` does.

    What the configuration states of the step counts as an option, unless the option is one of those
    `given` by name or differs from its default. Raises `BadInput` naming `file` where it is of
    another batch, sequence or model than the graph, and for a pipeline, which `price_pipeline`
    prices.
    """
    if configuration.stages > 1:
        raise BadInput(
            f"a pipeline of {configuration.stages} stages",
            file=file,
            expected="no pipeline here; `shardwise explain GRAPH --like FILE` prices it on your "
            "own machine, without --server",
        )
    check_configuration(graph, configuration, file)
    configuration = on_hardware(configuration, hardware)
    asked = options or Options()
    options = as_configured(asked, configuration.stated, given)
    priced = price(
        graph,
        hardware,
        gpus,
        configuration.parallelism,
        options,
        trainer=configuration.trainer,
        unread=[*configuration.left_out, *configuration.unread],
        progress=progress,
    )
    warnings = differing(configuration, hardware, priced.plan.gpus)
    return replace(
        priced,
        plan=replace(priced.plan, warnings=[*warnings, *priced.plan.warnings]),
        stated=changed_in_words(asked, options, configuration.stated) or UNSET,
        left_out=configuration.left_out or UNSET,
    )


def check_configuration(graph: Graph, configuration: Configuration, file: str) -> None:
    """Raises `BadInput` where a configuration is of another model, batch or sequence than the
    graph."""
    check_model(graph, configuration.model, file)
    check_step(graph, configuration.batch, configuration.sequence_length, file)


def check_step(graph: Graph, batch: int | None, sequence: int | None, file: str) -> None:
    """Raises `BadInput` where a configuration is of another batch or sequence than the graph."""
    step = step_of(graph)
    for name, wanted, known, flag in (
        ("global batch", batch, step.batch, "--batch"),
        ("sequence length", sequence, step.seq, "--seq"),
    ):
        if wanted is not None and known is not None and wanted != known:
            raise BadInput(
                f"its {name} is {wanted:,}, that of the graph {known:,}",
                file=file,
                expected=f"a graph captured with {flag} {wanted}",
            )


def _check(given: Parallelism, gpus: int, batch: int | None) -> None:
    """Raises `BadInput` for a strategy that divides neither the devices nor the batch."""
    parts = [one for one in (given.recompute_layers, given.recompute_every) if one is not UNSET]
    own = (given.replicas, given.shards, given.tensor, given.expert, given.context)
    degrees = (*own, given.micro_batches, *parts)
    if len(parts) > 1 or (parts and given.recompute != "full"):
        raise BadInput(
            f"{given.recompute} recomputation of some layers: got {given}",
            field="parallelism.recompute",
            expected="full, of the first layers or of one in some",
        )
    if given.recompute_modules is not UNSET and given.recompute != "selective":
        raise BadInput(
            f"{given.recompute} recomputation of parts: got {given}",
            field="parallelism.recompute_modules",
            expected="recompute: selective",
        )
    if min(degrees) < 1 or given.zero not in (0, 1, 2, 3):
        raise BadInput(
            f"{text_of(given)}: got {given}", field="parallelism", expected="degrees from 1"
        )
    if given.gpus != gpus:
        raise BadInput(
            f"{text_of(given)} is for {given.gpus} GPUs, not {gpus}",
            field="gpus",
            expected=f"{given.gpus}, or degrees whose product is {gpus}",
        )
    over, least = given.data, 1
    if given.whole_experts:
        over, least = given.data * given.tensor, given.tensor
    if over % given.expert or given.expert % least:
        which = "" if given.whole_experts else " that divide samples"
        raise BadInput(
            f"experts over {given.expert} of {over} devices{which}",
            field="parallelism.expert",
            expected=f"a divisor of {over}" + (f", a multiple of {least}" if least > 1 else ""),
        )
    if given.expert > 1 and given.context > 1:
        raise BadInput(
            "expert parallelism beside context parallelism is not priced",
            field="parallelism.context",
            expected="one of the two",
        )
    if given.zero and given.sharded == 1 < given.data:
        raise BadInput(
            f"ZeRO-{given.zero} over one device",
            field="parallelism.shards",
            expected="shards over several devices, or no ZeRO",
        )
    if batch is None:
        return
    if batch % given.micro_batches:
        raise BadInput(
            f"{given.micro_batches} micro-batches do not divide the batch of {batch}",
            field="parallelism.micro_batches",
            expected=f"a divisor of {batch}",
        )
    if not shard_fits(batch // given.micro_batches, given.data):
        raise BadInput(
            f"a micro-batch of {batch // given.micro_batches} samples has fewer than {given.data} "
            "shares",
            field="parallelism.micro_batches",
            expected=f"at most {max(batch // given.data, 1)}",
        )


def with_its_zero(options: Options, given: Parallelism) -> Options:
    """Returns options under which a strategy's ZeRO stage is possible, and all recomputation."""
    return with_fields(options, zero=tuple(sorted({*options.zero, given.zero})), recompute=AUTO)


def with_its_shards(options: Options, given: Parallelism) -> Options:
    """Returns options of a search whose axes are cut where a strategy's groups of devices end, and
    nowhere else: its shards may be of any number of neighbouring devices."""
    inner = given.tensor * given.context
    units = {given.tensor, inner, given.tensor * given.expert, inner * given.shards}
    return with_fields(options, shard_units=tuple(sorted(units)), max_configurations=1)


def in_context(one: Parallelism, given: Parallelism) -> bool:
    """Returns whether a strategy divides positions as the given one, or not at all, and has no
    whole experts beside tensor parallelism."""
    alike = one.context == given.context and one.context_form == given.context_form
    return (alike or one.context == 1) and not one.whole_experts


def _replayables(
    graph: Graph,
    hardware: Hardware,
    gpus: int,
    counts: Sequence[int],
    options: Options,
    progress: Progress,
) -> list[Replayable]:
    """Returns the problems of these numbers of micro-batches, with their replayers."""
    subject, mesh = Subject.of(graph), mesh_of(hardware, gpus)
    replayables = []
    for place, count in enumerate(counts):
        go_on(progress, STAGE, place / len(counts))
        draft = Draft.of(subject, hardware, mesh, options, progress, count)
        search = draft.joined(progress)
        # Nothing is searched, so nothing is proven.
        solution = with_fields(Solution.empty(search.problem), status="heuristic")
        replayables.append(Replayable(with_fields(search, solution=solution), search.own_replayer))
    return replayables


def _not_priced(
    given: Parallelism,
    known: dict[Parallelism, Practised],
    replayables: Sequence[Replayable],
    progress: Progress,
) -> BadInput:
    """Returns the error for a strategy that the model or the mesh does not have."""
    for one in replayables:
        refusal = Practices(one.replayer.problem, progress).refusal(given)
        if refusal is not None:
            return BadInput(
                f"the model cannot be trained by {text_of(given)}: {refusal}",
                field="parallelism.shards",
                expected="a strategy without these shards, or a graph in which samples reach them",
            )
    same = {one for one in known if one.micro_batches == given.micro_batches}
    context = [one for one in same if one.tensor == given.tensor and one.context > 1]
    forms = {(one.context, one.context_form) for one in context}
    if given.context > 1 and (given.context, given.context_form) not in forms:
        return BadInput(
            f"positions are not divided by cp {given.context} ({given.context_form}) here",
            field="parallelism.context",
            expected="a degree that divides positions, and of ulysses the heads of keys and values",
        )
    tensor = sorted({one.tensor for one in same})
    if given.tensor not in tensor:
        return BadInput(
            f"the model is not split by tp {given.tensor} here",
            field="parallelism.tensor",
            expected=" or ".join(map(str, tensor)),
        )
    expert = sorted({one.expert for one in same if one.tensor == given.tensor})
    if given.expert not in expert:
        return BadInput(
            f"rows are not sent to experts over {given.expert} devices here",
            field="parallelism.expert",
            expected=" or ".join(map(str, expert)),
        )
    if given.sequence not in {one.sequence for one in same if one.tensor == given.tensor}:
        return BadInput(
            "the model has no positions to split",
            field="parallelism.sequence",
            expected="no sequence parallelism",
        )
    shards = {one.shards for one in same if one.tensor == given.tensor and one.zero == given.zero}
    return BadInput(
        f"no unit of neighbouring devices has the shards over {given.shards} devices",
        field="parallelism.shards",
        expected=" or ".join(map(str, sorted(shards))) or "another strategy",
    )


def _alternative(own: Practised, other: Practised, limit_bytes: float) -> Alternative:
    given, parallelism = own.practice.parallelism, other.practice.parallelism
    return Alternative(
        text=change_text(given, parallelism),
        changes=changes(given, parallelism),
        parallelism=parallelism,
        replayed_time_s=other.step.time_s,
        peak_bytes=round(other.step.peak_bytes),
        fits=other.step.peak_bytes <= limit_bytes,
        saves=1.0 - other.step.time_s / own.step.time_s,
    )


def _rank(one: Alternative) -> tuple[bool, float]:
    return not one.fits, one.replayed_time_s if one.fits else float(one.peak_bytes)
