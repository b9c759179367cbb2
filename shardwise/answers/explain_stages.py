"""Why the step of several stages is what it is: what each keeps and waits, which is the slowest,
what the hops cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from shardwise.documents.common import not_searched_text
from shardwise.documents.explanation import (
    ExplainedEdge,
    ExplainedGroup,
    ExplainedStage,
    PipelineExplanation,
)
from shardwise.documents.pipeline import Pipeline, PlannedStage, shared_scope, units_text
from shardwise.texts import counted, gib, seconds


def explained_stages(
    pipeline: Pipeline, groups: Sequence[list[ExplainedGroup]], edges: list[ExplainedEdge]
) -> PipelineExplanation:
    """Returns what each stage does, and what the step is made of, from the rows of the groups of
    each stage and of all edges.

    The pipeline has stages, of groups that it has (`check_stages`).
    """
    outer = shared_scope(pipeline.stages)
    busy = [_busy_s(pipeline, stage) for stage in pipeline.stages]
    slowest = max(range(len(busy)), key=busy.__getitem__)
    hops_s = 2 * sum(stage.hop_s or 0.0 for stage in pipeline.stages)
    stages = [
        ExplainedStage(_stage_text(number, stage, outer), busy[number], groups[number])
        for number, stage in enumerate(pipeline.stages)
    ]
    return PipelineExplanation(
        pipeline=pipeline.id,
        graph_name=pipeline.graph_name,
        hardware=pipeline.hardware,
        gpus=pipeline.gpus,
        mesh=pipeline.mesh,
        stage_mesh=pipeline.stage_mesh,
        predicted=pipeline.predicted,
        slowest_stage=slowest,
        hops_s=hops_s,
        stages=stages,
        edges=edges,
        text=_text(pipeline, busy, slowest, hops_s, outer),
    )


def _busy_s(pipeline: Pipeline, stage: PlannedStage) -> float:
    """Returns the seconds of a step in which a stage's devices do not wait."""
    return pipeline.micro_batches * (stage.forward_s + stage.backward_s) + stage.update_s


def _stage_text(number: int, stage: PlannedStage, outer: int) -> str:
    """Returns `Stage 2 (h.6 to h.8) keeps 5 micro-batches, 12.3 GiB of its 18.1 GiB peak; waits 12%
    of the step: DP 2`."""
    kept = counted(stage.kept_micro_batches, "micro-batch").replace("batchs", "batches")
    of = f"; its peak is {gib(stage.peak_bytes)} GiB"
    if stage.kept_bytes is not UNSET:
        of = f", {gib(stage.kept_bytes)} GiB of its {gib(stage.peak_bytes)} GiB peak"
    if stage.waiting_micro_batches is not UNSET:
        kept += f", weights of {stage.waiting_micro_batches} wait"
    return (
        f"Stage {number} ({units_text(stage, outer)}{_on(stage)}) keeps {kept}{of}; waits "
        f"{stage.idle:.1%} of the step: {stage.label}"
    )


def _on(stage: PlannedStage) -> str:
    """Returns `, on a100`, nothing where all devices are alike."""
    return "" if stage.group is UNSET else f", on {stage.group}"


def _rank_text(pipeline: Pipeline, busy: list[float], rank: int) -> str:
    """Returns `Rank 2 (GPUs 16 to 23) holds stages 2 and 6, whose passes and updates take 1.2 s,
    81% of the step.`"""
    devices = pipeline.stages[0].devices
    first = rank * devices
    stages = pipeline.stages
    own = [number for number, stage in enumerate(stages) if stage.first_device == first]
    gpus = f"GPUs {first} to {first + devices - 1}" if devices > 1 else f"GPU {first}"
    *others, last = map(str, own)
    taken = sum(busy[stage] for stage in own)
    return (
        f"Rank {rank} ({gpus}) holds stages {', '.join(others)} and {last}, whose passes and "
        f"updates take {seconds(taken)}, {taken / max(pipeline.predicted.step_s, 1e-30):.0%} of "
        "the step."
    )


def _text(
    pipeline: Pipeline, busy: list[float], slowest: int, hops_s: float, outer: int
) -> list[str]:
    predicted, stages = pipeline.predicted, pipeline.stages
    step_s = max(predicted.step_s, 1e-30)
    mean_s = sum(busy) / len(busy)
    each = pipeline.stages_per_rank or 1
    placed = f" on {counted(pipeline.ranks, 'rank')}" if each > 1 else ""
    searched = not_searched_text(pipeline.not_searched)
    lines = [
        *([f"Searched {searched}."] if searched else []),
        f"{pipeline.graph_name} on {pipeline.bundle or counted(pipeline.gpus, 'GPU')} of "
        f"{pipeline.hardware} in "
        f"{counted(len(stages), 'stage')}{placed}, {pipeline.schedule}, {pipeline.micro_batches} "
        f"micro-batches: {seconds(predicted.step_s)} a step; GPUs wait {predicted.idle:.1%} of it.",
        f"Stage {slowest} ({units_text(stages[slowest], outer)}{_on(stages[slowest])}) is the "
        "slowest: its passes and "
        f"update take {seconds(busy[slowest])}, {busy[slowest] / step_s:.0%} of the step and "
        f"{busy[slowest] / max(mean_s, 1e-30) - 1.0:.0%} more than the mean of all stages.",
    ]
    if each > 1:
        lines += [_rank_text(pipeline, busy, rank) for rank in range(pipeline.ranks)]
    longest = max(range(len(stages)), key=lambda number: stages[number].hop_s or 0.0)
    if stages[longest].hop_s is not None:
        lines.append(
            f"Through all stages and back a micro-batch travels {seconds(hops_s)}, "
            f"{hops_s / step_s:.1%} of the step, the longest hop from stage {longest} to stage "
            f"{longest + 1} ({seconds(stages[longest].hop_s)} each way)."
        )
    lines.append(
        f"Memory peaks in stage {predicted.peak_stage} at {gib(predicted.peak_bytes)} GiB, of "
        f"{gib(pipeline.peak_limit_bytes)} GiB that a step may use."
    )
    gap = pipeline.certificate.epsilon
    if gap is not None:
        saved = 1.0 - 1.0 / (1.0 + gap)
        lines.append(f"Proven: nothing that was asked for saves more than {saved:.1%} of the step.")
    return lines
