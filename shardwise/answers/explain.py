"""Why a plan is what it is: how each group is split, what it costs, what came close.

Reads a plan; needs neither graph nor solver. Groups with the same split and costs (repeated layers)
are one row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Protocol, overload

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from shardwise.answers.expected import expected_sentence
from shardwise.answers.explain_stages import explained_stages
from shardwise.answers.summary import HOST
from shardwise.cost.shares import shares_text
from shardwise.documents.common import Step, not_searched_text
from shardwise.documents.explanation import (
    ExplainedEdge,
    ExplainedGroup,
    ExplainedNeighbour,
    ExplainedNextBest,
    ExplainedOperator,
    Explanation,
    PipelineExplanation,
    Totals,
    WholeExplanation,
)
from shardwise.documents.forms import by_form
from shardwise.documents.parallelism import trainer_text
from shardwise.documents.pipeline import Pipeline
from shardwise.documents.plan import (
    COLLECTIVE_SUM,
    MORE_ROOM,
    Choice,
    Neighbour,
    NextBest,
    Plan,
    PlannedEdge,
    PlannedGroup,
)
from shardwise.documents.prediction import Mixture, Predicted, Prediction
from shardwise.documents.whole_plan import WholePlan
from shardwise.texts import counted, seconds, utilisation

MOST_PARTS = 4
"""Maximum parts of a mixed strategy that are named."""


class Axis(Protocol):
    """An axis of a mesh: its name, its size, and its level of links."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def level(self) -> str: ...


@overload
def explain(plan: WholePlan) -> WholeExplanation: ...
@overload
def explain(plan: Pipeline) -> PipelineExplanation: ...
@overload
def explain(plan: Plan) -> Explanation: ...
def explain(plan: Plan) -> Explanation:
    """Returns how each group of a plan is split and what it costs, and what its stages do where
    they are several."""
    axes, next_best = plan.stage_mesh.axes, partial(_next_best, plan=plan)
    stages = [
        folded_groups((plan.groups[group] for group in stage.groups), axes, next_best)
        for stage in plan.stages
    ]
    edges = folded_edges(plan.edges)
    return by_form(
        plan,
        lambda whole: _explained(whole, stages[0], edges),
        lambda pipeline: explained_stages(pipeline, stages, edges),
    )


def _explained(
    plan: WholePlan, groups: list[ExplainedGroup], edges: list[ExplainedEdge]
) -> WholeExplanation:
    """Returns what the step of one stage is made of."""
    totals = _totals(plan)
    return WholeExplanation(
        plan=plan.id,
        graph_name=plan.graph_name,
        hardware=plan.hardware,
        gpus=plan.gpus,
        mesh=plan.mesh,
        predicted=plan.predicted,
        groups=groups,
        edges=edges,
        totals=totals,
        text=_text(plan, groups, edges, totals),
        neighbours=_neighbours(plan),
    )


def folded_groups(
    groups: Iterable[PlannedGroup],
    axes: Sequence[Axis],
    next_best: Callable[[NextBest | None], ExplainedNextBest | None],
) -> list[ExplainedGroup]:
    """Returns groups by their splits; those with the same split and costs are one row."""
    rows: dict[tuple[object, ...], ExplainedGroup] = {}
    for group in groups:
        by_time = sorted(group.operators, key=lambda op: -op.compute_s)
        kinds = tuple(op.kind for op in by_time)
        split = choice_text(group, axes)
        costs = (
            group.parameter_bytes,
            group.activation_bytes,
            group.compute_s,
            group.communication_s,
        )
        row = rows.get((kinds, split, costs))
        if row is None:
            row = ExplainedGroup(
                name=group.name,
                kind=_short(kinds),
                repeats=0,
                split=split,
                memory_bytes=group.parameter_bytes + group.activation_bytes,
                parameter_bytes=group.parameter_bytes,
                activation_bytes=group.activation_bytes,
                compute_s=group.compute_s,
                compute_shares=group.compute_shares,
                communication_s=group.communication_s,
                operators=[
                    ExplainedOperator(op.name, op.kind, op.compute_from)
                    for op in group.operators
                    if op.compute_from
                ],
                next_best=next_best(group.next_best),
                slowest=group.slowest,
            )
        rows[kinds, split, costs] = replace(row, repeats=row.repeats + 1)
    return list(rows.values())


def _next_best(other: NextBest | None, plan: Plan) -> ExplainedNextBest | None:
    """Returns the best other split of a group in words, with everything else unchanged."""
    if other is None:
        return None
    return ExplainedNextBest(
        split=choice_text(other, plan.stage_mesh.axes),
        zero=other.zero,
        zero_axes=other.zero_axes,
        recompute=other.recompute,
        added_time_s=other.added_time_s,
        added_memory_bytes=other.added_memory_bytes,
        why_not=_why_not(other, plan),
    )


def _why_not(other: NextBest, plan: Plan) -> str:
    """Returns why a group's best other choice was not taken, also where its time is less."""
    if plan.predicted.peak_bytes + other.added_memory_bytes > plan.memory_limit_bytes:
        return "does not fit"
    if other.added_time_s > 0:
        return "slower"
    if other.added_memory_bytes > 0 and plan.objective in ("mini-memory", "turning-point"):
        return "more memory"
    if plan.overlap:
        return "not faster in the replayed step"
    return "as fast" if other.added_time_s == 0 else "within what was proven"


def choice_text(choice: Choice | NextBest | PlannedGroup, axes: Sequence[Axis]) -> str:
    """Returns a group's split, ZeRO stage and recomputation."""
    words = [split_text(choice.split, axes)]
    if choice.zero:
        sharing = prod(axis.size for axis in axes if axis.name in choice.zero_axes)
        words.append(f"ZeRO-{choice.zero}/{sharing}")
    if choice.recompute:
        words.append("run again in backward")
    if not isinstance(choice, NextBest):
        if choice.proportion is not UNSET and choice.proportion:
            words.append(f"proportion {choice.proportion}")
        if choice.gradient_sum is not UNSET and choice.gradient_sum != COLLECTIVE_SUM:
            words.append(choice.gradient_sum)
    return "; ".join(words)


def split_text(split: Mapping[str, str | None], axes: Sequence[Axis]) -> str:
    """Returns text such as `b/2 between nodes, o/8 inside a node`, or `replicated`."""
    parts: dict[tuple[str, str], int] = defaultdict(lambda: 1)
    for axis in axes:
        variable = split.get(axis.name)
        if variable is not None:
            parts[variable, axis.level] *= axis.size
    return (
        ", ".join(f"{variable}/{n} {level}" for (variable, level), n in parts.items())
        or "replicated"
    )


def _short(kinds: Sequence[str]) -> str:
    names = [kind.split(".")[1] if "." in kind else kind for kind in kinds]
    shown = list(dict.fromkeys(names))
    return "+".join(shown[:3]) + ("+…" if len(shown) > 3 else "")


def folded_edges(edges: Sequence[PlannedEdge]) -> list[ExplainedEdge]:
    """Returns the re-scheduled tensors, equal edges in one row, the longest first."""
    rows: dict[tuple[object, ...], ExplainedEdge] = {}
    for edge in edges:
        if edge.time_s == 0 and edge.kept == "one":
            continue
        forward = [_step_text(step) for step in edge.forward]
        backward = [_step_text(step) for step in edge.backward]
        key = (tuple(forward), tuple(backward), edge.kept, edge.time_s, edge.memory_bytes)
        row = rows.get(key) or ExplainedEdge(
            source=edge.source,
            target=edge.target,
            repeats=0,
            forward=forward,
            backward=backward,
            kept=edge.kept,
            memory_bytes=edge.memory_bytes,
            time_s=edge.time_s,
        )
        rows[key] = replace(row, repeats=row.repeats + 1)
    return sorted(rows.values(), key=lambda row: -row.time_s * row.repeats)


def _step_text(step: Step) -> str:
    return f"{step.operation}({'+'.join(step.axes)})"


def _totals(plan: WholePlan) -> Totals:
    """Returns the sums of all rows; they equal the plan's prediction."""
    groups, edges, fixed = plan.groups, plan.edges, plan.predicted
    return Totals(
        parameter_bytes=sum(g.parameter_bytes for g in groups),
        activation_bytes=sum(g.activation_bytes for g in groups),
        edge_bytes=sum(e.memory_bytes for e in edges),
        fixed_bytes=fixed.fixed_memory_bytes,
        memory_bytes=sum(g.parameter_bytes + g.activation_bytes for g in groups)
        + sum(e.memory_bytes for e in edges)
        + fixed.fixed_memory_bytes,
        compute_s=sum(g.compute_s for g in groups) + fixed.fixed_time_s,
        synchronisation_s=sum(g.communication_s for g in groups),
        rescheduling_s=sum(e.time_s for e in edges),
        time_s=sum(g.compute_s + g.communication_s for g in groups)
        + sum(e.time_s for e in edges)
        + fixed.fixed_time_s,
    )


def _text(
    plan: WholePlan,
    groups: Sequence[ExplainedGroup],
    edges: Sequence[ExplainedEdge],
    totals: Totals,
) -> list[str]:
    predicted = plan.predicted
    searched = not_searched_text(plan.not_searched)
    lines = [
        *([f"Searched {searched}."] if searched else []),
        *_first_words(predicted),
        *(_of_replayed if plan.overlap else _of_sums)(plan, totals),
        f"Compute time: {shares_text(predicted.compute_shares)}.",
        *_of_rounding(plan, totals),
    ]
    if plan.trainer is not UNSET:
        lines.append(f"{trainer_text(plan.trainer)}.")
    if groups:
        longest = max(groups, key=lambda row: row.all_s)
        more = longest.repeats - 1
        others = f" and {counted(more, 'group')} like it" if more else ""
        lines.append(
            f"Most time goes to {longest.slowest or longest.name}{others} "
            f"({longest.all_s / max(totals.time_s, 1e-30):.0%}), split {longest.split}."
        )
    if edges:
        worst = edges[0]
        lines.append(
            f"The most expensive re-scheduling is {worst.source} → {worst.target} "
            f"(×{worst.repeats}): {worst.repeats * worst.time_s:.4g} s."
        )
    return lines


def _of_rounding(plan: WholePlan, totals: Totals) -> list[str]:
    """Returns what rounding to 8 or 4 bits takes, where there is any."""
    operators = [op for group in plan.groups for op in group.operators]
    passes = [op.rounding_s for op in operators if op.rounding_s is not UNSET]
    if not passes:
        return []
    total_s = sum(passes)
    return [
        f"Rounding for {counted(len(passes), 'linear layer')} ({plan.precision}): {total_s:.4g} s, "
        f"{total_s / max(totals.compute_s, 1e-30):.0%} of compute."
    ]


def _of_replayed(plan: WholePlan, totals: Totals) -> list[str]:
    """Returns the step of a plan of which the replayed time was searched."""
    predicted = plan.predicted
    lines = [
        f"{plan.graph_name} on {plan.gpus} GPUs of {plan.hardware}: "
        f"{predicted.replayed_time_s:.4g} s a step, "
        f"{predicted.exposed_communication_s:.4g} s of it waiting for communication; "
        f"peak {predicted.peak_bytes / 2**30:.4g} GiB."
    ]
    if predicted.bound_by == HOST and predicted.host_s is not UNSET:
        lines.append(
            f"Host bound: launching its work takes the host {predicted.host_s:.4g} s, longer than "
            "the GPUs take for it."
        )
    lines += _of_order(plan)
    if predicted.gap is not None:
        saved = 1.0 - 1.0 / (1.0 + predicted.gap)
        of = (
            "that"
            if plan.schedule is UNSET
            else "what it takes in the program's order, in that order"
        )
        lines.append(f"Proven: no strategy that fits saves more than {saved:.1%} of {of}.")
    lines.append(f"With nothing overlapped, {_parts(totals)}.")
    return lines


def _of_order(plan: WholePlan) -> list[str]:
    """Returns what an order of execution other than the program's brings."""
    schedule, predicted = plan.schedule, plan.predicted
    if schedule is UNSET:
        return []
    changed = predicted.replayed_time_s / schedule.program_time_s - 1.0
    more = (predicted.peak_bytes - schedule.program_peak_bytes) / 2**30
    return [
        f"Operators run by upward rank, which changes the step by {changed:+.1%} from "
        f"{schedule.program_time_s:.4g} s in the program's order, and the peak by {more:+.4g} GiB."
    ]


def _of_sums(plan: WholePlan, totals: Totals) -> list[str]:
    """Returns the step of a plan of which the sum was searched."""
    predicted = plan.predicted
    return [
        f"{plan.graph_name} on {plan.gpus} GPUs of {plan.hardware}: {_parts(totals)}.",
        f"Replayed, the step peaks at {predicted.peak_bytes / 2**30:.4g} GiB and takes "
        f"{predicted.replayed_time_s:.4g} s, "
        f"{predicted.exposed_communication_s:.4g} s of it waiting for communication.",
    ]


def _parts(totals: Totals) -> str:
    return (
        f"{totals.time_s:.4g} s a step, of which {totals.compute_s:.4g} s compute, "
        f"{totals.synchronisation_s:.4g} s synchronisation, "
        f"{totals.rescheduling_s:.4g} s re-scheduling"
    )


def _neighbours(plan: WholePlan) -> list[ExplainedNeighbour] | UnsetType:
    """Returns why the plan is none of its neighbours."""
    if plan.neighbours is UNSET:
        return UNSET
    step_s = plan.predicted.replayed_time_s
    explained = []
    for neighbour in plan.neighbours:
        slower = neighbour.replayed_time_s / step_s - 1.0 if step_s else 0.0
        peak_bytes, limit_bytes = plan.predicted.peak_bytes, plan.memory_limit_bytes
        text = _neighbour_text(neighbour, slower, peak_bytes, limit_bytes)
        explained.append(ExplainedNeighbour(**asdict(neighbour), slower=slower, text=text))
    return explained


def _neighbour_text(
    neighbour: Neighbour, slower: float, peak_bytes: float, limit_bytes: float
) -> str:
    """Returns text such as `Pure FSDP: slower by 4.9% (0.4973 s, 31.2 GiB): FSDP 64`, or of more
    room `5.1 GiB more room: slower by 0.8% (0.478 s, 63.1 GiB): FSDP 64`."""
    name = neighbour.name
    if name == MORE_ROOM:
        name = f"{(peak_bytes - neighbour.peak_bytes) / 2**30:.1f} GiB more room"
    if not name.startswith(("tp ", "cp ", "ep ")):
        name = f"{name[0].upper()}{name[1:]}"
    peak = f"{neighbour.peak_bytes / 2**30:.1f}"
    if not neighbour.fits:
        limit = f"{limit_bytes / 2**30:.1f}"
        return f"{name}: does not fit (needs {peak} of {limit} GiB): {neighbour.label}"
    if round(slower, 3) == 0:
        verdict = "as fast"
    else:
        verdict = f"{'slower' if slower > 0 else 'faster'} by {abs(slower):.1%}"
    step = seconds(neighbour.replayed_time_s)
    return f"{name}: {verdict} ({step}, {peak} GiB): {neighbour.label}"


def _first_words(predicted: Prediction) -> list[str]:
    """Returns the first lines of an answer; empty for plans of earlier versions."""
    words = [strategy_text(predicted)] if predicted.label else []
    parts = predicted.mixtures or []
    if len(parts) > 1:
        words.append(f"Of it: {'; '.join(map(_mixture_text, parts[:MOST_PARTS]))}.")
    rates = []
    if predicted.model_flops_utilisation:
        rates.append(utilisation_text(predicted, "model flops utilisation"))
    rates += rate_texts(predicted)
    if predicted.bound_by:
        rates.append(f"bound by {bound_text(predicted)}")
        text = ", ".join(rates)
        words.append(f"{text[0].upper()}{text[1:]}.")
    if predicted.expected is not UNSET:
        words.append(expected_sentence(predicted.expected))
    if predicted.to_go_faster:
        words.append(predicted.to_go_faster)
    return words


def utilisation_text(predicted: Predicted, name: str = "MFU") -> str:
    """Returns how much of the GPUs' peak a step uses, in both conventions (`utilisation.py`)."""
    share, causal = predicted.model_flops_utilisation, predicted.causal_flops_utilisation
    return utilisation(share or 0.0, None if causal is UNSET else causal, name)


def strategy_text(predicted: Prediction) -> str:
    """Returns the label, and how much faster the fastest strategy is if that is another."""
    label, faster = predicted.label or "", predicted.faster
    if faster is UNSET:
        return label
    other = "mixed" if faster.label == label else faster.label
    return f"{label}; {faster.saves:.1%} faster is possible: {other}, see explain"


def _mixture_text(part: Mixture) -> str:
    return f"{part.label} {part.parameters:.0%} of parameters, {part.compute:.0%} of compute"


def rate_texts(predicted: Predicted) -> list[str]:
    """Returns tokens a second, samples where they are none of tokens; plans of earlier versions
    have neither."""
    if predicted.tokens_per_s:
        return [f"{predicted.tokens_per_s:,.0f} tokens/s"]
    if predicted.samples_per_s:
        return [f"{predicted.samples_per_s:,.1f} samples/s"]
    return []


def bound_text(predicted: Prediction) -> str:
    """Returns what bounds a step; empty for plans of earlier versions."""
    bound = predicted.bound_by or ""
    return _OF_BOUND.get(bound, bound)


_OF_BOUND = {
    "links inside a node": "the links inside a node",
    "links between nodes": "the links between nodes",
    "memory limit": "the memory limit",
}
