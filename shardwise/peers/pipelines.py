"""Pipelines as trainers run them: stages of equal layers with one strategy of the whole model.

    method        inside a stage                                     schedule
    megatron-3d   one dp × tp, tp on the innermost axes, with or     1F1B, interleaved
                  without sequence parallelism, and the distributed
                  optimizer (ZeRO-1) where dp is above 1
                  (Narayanan et al. 2021, §2.2 and §3)
    gpipe         samples over the devices of the stage, all its     GPipe
                  parameters on each (Huang et al. 2019, §2.2)
    zero-bubble   those of megatron-3d, in whose fork the schedules  ZB-H1, ZB-V
                  were published (Qi et al. 2024, §4)
    dualpipe      samples alone, with ZeRO-1 (DeepSeek-V3 report,    DualPipeV
                  §3.2)

each with every number of stages that divides layers and devices, every number of micro-batches from
the number of stages on, and the recomputations that the options allow. Where a schedule lets a
device have any number of stages, it has every number that divides its layers and that the
micro-batches allow (`pipeline/schedules.py`). The last two split backward, and are there where a
question names one of their schedules. Strategies are those of
`practitioners.py` on the devices of one stage, all stages alike. Their step is that of a pipeline
that is searched: each stage replayed, the schedule simulated (`search/pipelines/uniform.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from math import inf
from time import monotonic

import numpy as np

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import Options, Progress, go_on
from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput, SolverError
from shardwise.peers.answer import Answer
from shardwise.peers.evaluate import Breakdown, Piped, Point, Step
from shardwise.peers.methods import STAGE
from shardwise.peers.practices import Allowed, Practices
from shardwise.peers.practitioners import Practice, practitioners
from shardwise.pipeline.placement import Placement
from shardwise.pipeline.schedules import SCHEDULES, allows
from shardwise.replay.stages import FEWEST
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.search import HOPELESS
from shardwise.search.pipelines.searched import Searched
from shardwise.search.pipelines.uniform import UniformModel, UniformStages

MEGATRON_3D, GPIPE = "megatron-3d", "gpipe"
ZERO_BUBBLE, DUAL_PIPE = "zero-bubble", "dualpipe"
INTERLEAVED = "interleaved"
SCATTERING = ("megatron",)
"""Trainers in which devices with the same of a tensor send a part of it each to the next stage, and
gather it there (Narayanan et al. 2021, §4.1); in others each sends all of it."""


def _is_megatron(one: Parallelism) -> bool:
    return one.zero == (one.data > 1) and (not one.zero or one.replicas == 1)


def _is_gpipe(one: Parallelism) -> bool:
    return one.tensor == 1 and one.zero == 0


def _is_deepseek(one: Parallelism) -> bool:
    return one.tensor == 1 and _is_megatron(one)


@dataclass(frozen=True)
class _Method:
    title: str
    found_by: str
    schedules: tuple[str, ...]
    allowed: Allowed
    scattered: bool = False


METHODS = {
    MEGATRON_3D: _Method(
        "Megatron-style 3D",
        "stages of equal layers under 1F1B, one on a device or several interleaved, in each the "
        "same tensor and data parallelism with the distributed optimizer; every factorisation",
        ("1f1b", INTERLEAVED),
        _is_megatron,
        scattered=True,
    ),
    GPIPE: _Method(
        "GPipe-style",
        "stages of equal layers under GPipe's schedule, in each samples over its devices",
        ("gpipe",),
        _is_gpipe,
    ),
    ZERO_BUBBLE: _Method(
        "Zero Bubble",
        "stages of equal layers under schedules that split backward, one on a device or several, "
        "with the strategies of Megatron-style 3D",
        ("zb-h1", "zbv"),
        _is_megatron,
        scattered=True,
    ),
    DUAL_PIPE: _Method(
        "DualPipe-style",
        "stages of equal layers in a V under DualPipeV, in each samples over its devices with the "
        "distributed optimizer",
        ("dualpipev",),
        _is_deepseek,
    ),
}


def methods_for(schedules: Sequence[str]) -> dict[str, _Method]:
    """Returns the methods that are compared where a question names some schedules, as
    `Searched.of` reads them: those that split backward with the schedules that are named."""
    named = {Searched.of(name).name for name in schedules}
    chosen = {}
    for name, method in METHODS.items():
        own = [s for s in method.schedules if not SCHEDULES[s].splits or s in named]
        if own:
            chosen[name] = replace(method, schedules=tuple(own))
    return chosen


@dataclass(frozen=True)
class PipedPractice:
    """A strategy of the whole model in uniform stages."""

    practice: Practice
    pipeline: Pipeline


def piped_practices(
    stages: UniformStages,
    schedule: str,
    allowed: Allowed,
    progress: Progress,
    cutoff_s: float = inf,
    partial: Collection[Parallelism] = (),
    practices: Practices | None = None,
) -> Iterator[PipedPractice]:
    """Yields the allowed strategies of the whole model in stages, and those in `partial`, in which
    some blocks of each stage run again. `practices` are those of the problem, where they are known.

    Those with the smallest copies are left out where the same with the fastest fits, and what by
    sums takes `HOPELESS` times as long as `cutoff_s`. Raises as `practitioners`.
    """
    fit: set[tuple[str, str]] = set()
    problem = stages.search.problem
    known = practices or Practices(problem, progress)
    of_stages = known.in_stages(len(stages.bounds) - 1)
    for practice in practitioners(
        problem, progress, allowed=allowed, partial=partial, practices=of_stages
    ):
        go_on(progress, STAGE, 0.0)
        if practice.lean and practice.key in fit:
            continue
        if cutoff_s < inf and _summed_s(stages, schedule, practice) >= HOPELESS * cutoff_s:
            continue
        pipeline = stages.pipeline(schedule, practice.choices, practice.edge_choices)
        if pipeline.fits:
            fit.add(practice.key)
            cutoff_s = min(cutoff_s, pipeline.step_s) if cutoff_s < inf else inf
        yield PipedPractice(practice, pipeline)


def cut_for(
    model: UniformModel, costed: UniformStages, schedules: Sequence[str]
) -> Iterator[tuple[str, UniformStages]]:
    """Yields each schedule with the stages that it can run: as many on each rank as there are, or
    where it leaves that open every number that layers and micro-batches allow, of interleaved ones
    above 1."""
    sizes = {"ranks": costed.ranks, "micro_batches": costed.search.micro_batches}
    for schedule in schedules:
        only = SCHEDULES[schedule].stages_per_rank
        for each in model.stages_per_rank(costed.ranks):
            wanted = each == only if only is not None else each > 1 or schedule != INTERLEAVED
            if wanted and allows(schedule, **sizes, stages_per_rank=each):
                yield schedule, model.recut(costed, each)


def priced_in(
    stages: UniformStages, schedule: str, given: Parallelism, progress: Progress
) -> PipedPractice | None:
    """Returns a given strategy in stages, with the copies that fit; None where the options or the
    model do not have it. Raises as `practitioners`."""
    known = piped_practices(stages, schedule, lambda one: one == given, progress)
    return min(known, key=lambda one: one.pipeline.rank, default=None)


def pipeline_answers(
    model: UniformModel,
    options: Options,
    stages: Sequence[int] | None,
    schedules: Sequence[str],
    progress: Progress,
) -> Iterator[Answer]:
    """Yields the methods for some schedules, each with the best of each number of stages (None: all
    that are possible)."""
    for name, method in methods_for(schedules).items():
        started = monotonic()
        points: list[Point] = []
        notes: list[str] = []
        for count in model.counts() if stages is None else sorted(set(stages) - {1}):
            best = _best(model, method, count, options, progress)
            if isinstance(best, str):
                notes.append(best)
            else:
                points.append(piped_point(best.pipeline, _label(best)))
        yield Answer(
            name,
            method.title,
            f"{method.found_by}; each number of stages with its best strategy and micro-batches",
            tuple(points),
            reason=None if points else "; ".join(notes) or _no_stages(model),
            notes=tuple(notes) if points else (),
            seconds=monotonic() - started,
        )


def _no_stages(model: UniformModel) -> str:
    layers = len(model.layers)
    return f"no number of stages divides the {layers} layers and the devices"


def _best(
    model: UniformModel, method: _Method, stages: int, options: Options, progress: Progress
) -> PipedPractice | str:
    """Returns the best strategy of a method in this many stages, or why there is none."""
    best: PipedPractice | None = None
    reason = f"{stages} stages take at least {max(FEWEST, stages)} micro-batches"
    for batches in options.counts(model.batch):
        if batches < max(FEWEST, stages):
            continue
        try:
            costed = replace(
                model.costed(stages, batches, options, progress), scattered=method.scattered
            )
            practices = Practices(costed.search.problem, progress)
            for schedule, cut in cut_for(model, costed, method.schedules):
                cutoff_s = best.pipeline.step_s if best and best.pipeline.fits else inf
                for one in piped_practices(
                    cut, schedule, method.allowed, progress, cutoff_s, practices=practices
                ):
                    if best is None or one.pipeline.rank < best.pipeline.rank:
                        best = one
        except BadInput as error:
            return error.problem
        except SolverError as error:
            reason = str(error)
        else:
            reason = (
                f"of {stages} stages no strategy has a sample for every share of a micro-batch, "
                "or the options leave its ZeRO stage out"
            )
    return reason if best is None else best


def _label(one: PipedPractice) -> str:
    """Returns a label such as `pp4·vpp2·dp2·tp8·sp·zero-1·full recompute`."""
    p, each = one.practice.parallelism, one.pipeline.stages_per_rank
    return "·".join(
        filter(
            None,
            (
                f"pp{one.pipeline.ranks}",
                f"vpp{each}" if each > 1 else "",
                f"dp{p.data}" if p.data > 1 else "",
                f"tp{p.tensor}" if p.tensor > 1 else "",
                "sp" if p.sequence else "",
                f"zero-{p.zero}" if p.zero else "",
                f"{p.recompute} recompute" if p.recompute != "none" else "",
            ),
        )
    )


def piped_point(pipeline: Pipeline, label: str = "") -> Point:
    """Returns a pipeline as a point: sums are those of the rank that computes the longest."""
    of_stages = stage_sums(
        pipeline.search.problem,
        pipeline.units.of_group,
        pipeline.bounds,
        pipeline.choices,
        pipeline.edge_choices,
        pipeline.kept,
    )
    incoming = [k * size for k, size in zip(pipeline.kept, pipeline.incoming_bytes, strict=True)]
    of_ranks = [
        _together(
            [of_stages[s] for s in own],
            sum(incoming[s] for s in own),
            pipeline.search.problem.fixed_time_s,
        )
        for own in map(pipeline.placement.stages_of, range(pipeline.ranks))
    ]
    breakdown = max(of_ranks, key=lambda one: one.time_s)
    peaks = tuple(float(peak) for peak in pipeline.rank_peak_bytes)
    return Point(
        breakdown.memory_bytes,
        breakdown.time_s,
        breakdown,
        pipeline.choices,
        pipeline.edge_choices,
        label,
        Step(pipeline.micro_batches, max(peaks), pipeline.step_s, None),
        piped=Piped(pipeline.schedule, pipeline.idle, peaks, pipeline.stages_per_rank),
    )


def _together(stages: Sequence[Breakdown], incoming_bytes: float, fixed_s: float) -> Breakdown:
    """Returns the sums of all stages of a rank, which has what is fixed once."""
    rows = np.array([astuple(stage) for stage in stages])
    total = Breakdown(*rows.sum(axis=0).tolist())
    return replace(
        total,
        edge_bytes=total.edge_bytes + incoming_bytes,
        fixed_bytes=stages[0].fixed_bytes,
        compute_s=total.compute_s - (len(stages) - 1) * fixed_s,
    )


def _summed_s(stages: UniformStages, schedule: str, practice: Practice) -> float:
    """Returns the step by sums: that of `cuts.py`, without hops.

    With v stages on each rank, filling and draining takes a v-th of the time; the backward of
    weights may fill it.
    """
    batches, ranks, each = stages.search.micro_batches, stages.ranks, stages.stages_per_rank
    placement = Placement(ranks, each, SCHEDULES[schedule].shape)
    of_stages = stage_sums(
        stages.search.problem,
        stages.units.of_group,
        stages.bounds,
        practice.choices,
        practice.edge_choices,
        [1] * (ranks * each),
    )
    times = [one.time_s / batches for one in of_stages]
    of_ranks = [sum(times[stage] for stage in placement.stages_of(rank)) for rank in range(ranks)]
    waits = 0.0 if SCHEDULES[schedule].splits else (sum(of_ranks) - max(of_ranks)) / each
    return batches * max(of_ranks) + waits


def stage_sums(
    problem: SearchProblem,
    unit_of: Sequence[int],
    bounds: Sequence[int],
    choices: np.ndarray,
    edge_choices: np.ndarray,
    kept_by: Sequence[int],
) -> list[Breakdown]:
    """Returns the sums of each stage of a strategy, with the micro-batches that it keeps and
    without the tensors that come in."""
    stage_of = np.searchsorted(np.array(bounds), np.array(unit_of), side="right") - 1
    stages = len(bounds) - 1
    groups, edges = np.zeros((4, stages)), np.zeros((2, stages))
    for g, (cost, k) in enumerate(zip(problem.costs, choices, strict=True)):
        groups[:, stage_of[g]] += (
            cost.parameter_bytes[k],
            cost.activation_bytes[k],
            cost.compute_s[k],
            cost.communication_s[k],
        )
    for edge, alternative in zip(problem.edges, edge_choices, strict=True):
        cell = edge.table.cell(choices[edge.source], choices[edge.target])
        edges[:, stage_of[edge.target]] += (
            edge.table.memory_bytes[cell][alternative],
            edge.table.time_s[cell][alternative],
        )
    return [
        Breakdown(
            float(groups[0, s]),
            kept_by[s] * float(groups[1, s]),
            kept_by[s] * float(edges[0, s]),
            problem.fixed_memory_bytes,
            problem.fixed_time_s + float(groups[2, s]),
            float(groups[3, s]),
            float(edges[1, s]),
        )
        for s in range(stages)
    ]
