"""plan --stages: one page of a pipeline."""

from __future__ import annotations

from msgspec import UNSET

from shardwise.answers.expected import peak_range, step_range
from shardwise.answers.explain import utilisation_text
from shardwise.cli.output import note, say, table
from shardwise.documents import Pipeline, PipelineExplanation
from shardwise.documents.common import not_searched_text
from shardwise.documents.pipeline import PlannedStage, shared_scope, units_text
from shardwise.texts import counted, gib, seconds

MOST_ROWS = 24


def pipeline_page(pipeline: Pipeline) -> None:
    """Prints a pipeline's figures and stages, and its comparison with no pipeline."""
    predicted = pipeline.predicted
    batch = (
        "" if pipeline.batch_size is None else f", {counted(pipeline.batch_size, 'sample')} a step"
    )
    gpus = pipeline.bundle or f"{pipeline.gpus} GPUs"
    say(f"{pipeline.graph_name} on {gpus} of {pipeline.hardware}{batch}")
    searched = not_searched_text(pipeline.not_searched)
    if searched:
        say(f"searched   {searched}")
    say(
        f"pipeline   {_stages(pipeline)}, {pipeline.schedule}, "
        f"{pipeline.micro_batches} micro-batches"
    )
    if pipeline.program:
        say(f"program    {pipeline.program}")
    rates = [utilisation_text(predicted)]
    if predicted.tokens_per_s:
        rates.insert(0, f"{predicted.tokens_per_s:,.0f} tokens/s")
    say(
        f"step       {seconds(predicted.step_s)}{step_range(predicted.expected)}; "
        f"GPUs idle {predicted.idle:.1%} of it; " + "; ".join(rates)
    )
    say(
        f"memory     peak {gib(predicted.peak_bytes)} GiB{peak_range(predicted.expected)} per GPU, "
        "in stage "
        f"{predicted.peak_stage}, of {gib(pipeline.peak_limit_bytes)} GiB that a step may use"
    )
    if not searched:
        say(f"proven     {_proof(pipeline)}")
    say(f"compared   {_compared(pipeline)}")
    stages_table(pipeline)
    note("note: forward, backward and hop are those of one micro-batch")


def _stages(pipeline: Pipeline) -> str:
    """Returns `4 stages of 2 GPUs`, or `8 stages, 2 on each of 4 times 2 GPUs`."""
    stages, gpus = len(pipeline.stages), counted(pipeline.stages[0].devices, "GPU")
    if pipeline.stages_per_rank is UNSET:
        return f"{stages} stages of {gpus}"
    return f"{stages} stages, {pipeline.stages_per_rank} on each of {pipeline.ranks} times {gpus}"


def stages_table(pipeline: Pipeline) -> None:
    """Prints each stage with its figures."""
    outer, kinds = shared_scope(pipeline.stages), pipeline.bundle is not UNSET
    table(
        "stages",
        (
            "",
            *(["on"] if kinds else []),
            "units",
            "strategy",
            "keeps",
            "forward",
            "backward",
            "update",
            "hop",
            "idle",
            "peak GiB",
        ),
        [_row(number, stage, outer) for number, stage in enumerate(pipeline.stages)],
    )


def explained_pipeline_page(document: PipelineExplanation) -> None:
    """Prints the parts of a pipeline's step, stage by stage, and the groups that take most."""
    for line in document.text:
        say(line)
    say("")
    for stage in document.stages:
        say(stage.text)
    say("")
    rows = [(number, g) for number, stage in enumerate(document.stages) for g in stage.groups]
    rows.sort(key=lambda row: -(row[1].compute_s + row[1].communication_s) * row[1].repeats)
    table(
        f"groups by time, {min(len(rows), MOST_ROWS)} of {len(rows)}",
        ("stage", "group", "×", "split", "GiB", "compute", "comm."),
        [
            (
                number,
                g.slowest or g.name,
                g.repeats,
                g.split,
                gib(g.memory_bytes),
                seconds(g.compute_s),
                seconds(g.communication_s),
            )
            for number, g in rows[:MOST_ROWS]
        ],
    )


def _proof(pipeline: Pipeline) -> str:
    """Returns the proof about the step."""
    gap = pipeline.certificate.epsilon
    if gap is None:
        return "nothing: a faster strategy may exist"
    return f"no pipeline that was asked for saves more than {1 - 1 / (1 + gap):.1%} of the step"


def _compared(pipeline: Pipeline) -> str:
    """Returns the comparison with the best step without a pipeline."""
    single = pipeline.without_pipeline
    if single is UNSET:
        return (
            "with nothing: --stages auto, or 1 among the numbers, also searches without, unless a "
            "pin is about stages"
        )
    if single is None:
        return "without a pipeline nothing fits"
    gain = 1.0 - pipeline.predicted.step_s / single.step_s
    return (
        f"{gain:.1%} shorter than without a pipeline: {seconds(single.step_s)}, "
        f"{gib(single.peak_bytes)} GiB ({single.label})"
    )


def _row(number: int, stage: PlannedStage, outer: int) -> tuple[object, ...]:
    """Returns a stage's row; unit names are without their first `outer` letters."""
    return (
        number,
        *([] if stage.group is UNSET else [stage.group]),
        units_text(stage, outer),
        stage.label,
        stage.kept_micro_batches,
        seconds(stage.forward_s),
        seconds(stage.backward_s),
        seconds(stage.update_s),
        "-" if stage.hop_s is None else seconds(stage.hop_s),
        f"{stage.idle:.1%}",
        gib(stage.peak_bytes),
    )
