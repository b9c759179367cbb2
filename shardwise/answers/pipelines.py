"""The fastest pipeline of a graph on n GPUs, as the document `shardwise.pipeline/1`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import inf
from time import monotonic

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict
from msgspec.structs import replace as with_members

from shardwise import documents
from shardwise.answers.certificates import NOTHING, not_searched
from shardwise.answers.expected import comparable, expected
from shardwise.answers.frontier import mesh_description, search_report
from shardwise.answers.pipeline_kinds import heading_of, kind_members, staged_strategy
from shardwise.answers.pipeline_points import StageLabels, pipeline_id
from shardwise.answers.pipeline_timeline import pipeline_timeline
from shardwise.answers.plan import (
    plan_document,
    plan_only,
)
from shardwise.answers.remedies import answered
from shardwise.answers.roles import tokens
from shardwise.answers.utilisation import ideal_s, model_flops
from shardwise.cost.options import Options, Progress, quiet
from shardwise.cost.program import assumed
from shardwise.cost.space import SearchMesh
from shardwise.documents.common import Certificate
from shardwise.documents.pipeline import PipelinePrediction, PlannedStage, WithoutPipeline
from shardwise.errors import BadInput, InternalError, NotFound
from shardwise.graph import Graph
from shardwise.graph.tuning import tuned
from shardwise.hardware import Devices, Hardware, devices_of
from shardwise.pipeline.asked import DEFAULT_SCHEDULES, FASTEST
from shardwise.question.question import Question
from shardwise.question.refusals import check
from shardwise.search.chosen import Chosen, merge_frontiers, too_large
from shardwise.search.fitting import search_frontier
from shardwise.search.pipelines.pipeline import Pipeline
from shardwise.search.pipelines.rules import divided
from shardwise.search.pipelines.search import PipelineSearch
from shardwise.search.search import Infeasible, Search, Subject
from shardwise.search.turning_point import picked


def pipeline_or_plan(
    graph: Graph,
    hardware: Hardware,
    gpus: int | str | Devices,
    *,
    objective: str = FASTEST[0],
    point: str | None = None,
    stages: Sequence[int] | None = None,
    schedules: Sequence[str] = DEFAULT_SCHEDULES,
    options: Options | None = None,
    progress: Progress | None = None,
) -> documents.Plan:
    """Returns the fastest pipeline of one of these numbers of stages that fits, or what another
    `objective` picks of the frontier with pipelines, or its `point` with an id.

    `gpus` is a number of devices, or for a profile with groups a bundle such as `h100=8,a100=8`:
    then each stage has devices of one group, and every order of the groups is tried. For one stage,
    or without `stages`, the strategy without a pipeline is searched too and returned if it is as
    fast, unless a pin is about stages. Raises `Infeasible` if nothing fits, with remedies if one
    stage is allowed (`remedies.py`), `NotFound` if the frontier has no such point, and `BadInput`
    for numbers of stages that the model, the devices or pins do not allow and for the table of
    refusals (`question/refusals.py`).
    """
    options, progress = assumed(options, hardware), progress or quiet
    devices = devices_of(gpus, hardware)
    question = Question.of(
        options,
        "plan",
        devices,
        objective=objective,
        point=point,
        stages=stages,
        schedules=schedules,
    )
    check(question)
    graph = tuned(graph, options.tune)
    if not question.picks_fastest:
        return _of_frontier(graph, hardware, question, progress)
    ask = partial(_fastest, graph, hardware, stages, schedules)
    if stages is not None and 1 not in stages:
        return ask(options, devices, progress)
    # A plan without a pipeline is an answer too, and found sooner.
    again = partial(plan_only, graph, hardware, neighbours=False)
    return answered(ask, graph, options, devices, progress, again=again)


def _fastest(
    graph: Graph,
    hardware: Hardware,
    stages: Sequence[int] | None,
    schedules: Sequence[str],
    options: Options,
    devices: Devices,
    progress: Progress,
) -> documents.Plan:
    """Returns the pipeline or plan as `pipeline_or_plan`; where nothing fits, what would is not
    tried."""
    search = PipelineSearch(graph, hardware, devices, options, progress, schedules)
    asked, alone = _asked(search, stages)
    single: documents.Plan | None = None
    too_large: Infeasible | None = None
    if not alone:
        # Its step leaves most pipelines without a chance, so these are asked for afterwards.
        try:
            single = plan_only(graph, hardware, options, devices, progress)
        except Infeasible as error:
            too_large = error
    started = monotonic()
    single_s = inf if single is None else single.replayed_s
    fastest = search.fastest(asked, single_s)
    best = fastest.pipeline
    if single is None:
        seconds = monotonic() - started
        if best is None:
            raise too_large or _none_fits(search, asked)
        return pipeline_document(best, seconds, fastest.least_s, UNSET if alone else None)
    # A proof covers both, so that pipelines need none beyond that of the strategies without.
    proven_s = single.certificate.time_lower_bound_s
    least_s = 0.0 if proven_s is UNSET else min(proven_s, fastest.prove(proven_s))
    if best is None or best.step_s >= single_s:
        return single if proven_s is UNSET else _proven(single, least_s, options.epsilon)
    predicted = single.predicted
    label = "" if predicted.label is UNSET else predicted.label
    without = WithoutPipeline(label, single.micro_batches, single_s, predicted.peak_bytes)
    return pipeline_document(best, monotonic() - started, least_s, without)


def _proven(single: documents.Plan, least_s: float, epsilon: float) -> documents.Plan:
    """Returns the plan without a pipeline with what is proven of pipelines too: no strategy takes
    less than `least_s`."""
    proof = single.certificate
    if least_s == proof.time_lower_bound_s:
        return single
    gap = single.replayed_s / least_s - 1.0 if least_s > 0.0 else None
    status = proof.status if gap is not None and gap <= epsilon else "budget"
    proof = with_members(proof, epsilon=gap, status=status, time_lower_bound_s=least_s)
    return with_members(
        single, certificate=proof, predicted=with_members(single.predicted, gap=gap)
    )


def _asked(search: PipelineSearch, stages: Sequence[int] | None) -> tuple[list[int], bool]:
    """Returns the numbers of stages to search, from 2, and whether only pipelines are answers.

    Raises `BadInput` if pins leave none.
    """
    asked = search.counts() if stages is None else sorted(set(stages) - {1})
    ruled = bool(divided(search.options.pins)[0])
    if ruled and not asked:
        raise BadInput(
            "no number of stages from 2 satisfies the stage pins",
            field="pin",
            expected="pins that leave every unit a stage",
        )
    return asked, ruled or (stages is not None and 1 not in stages)


def _none_fits(search: PipelineSearch, asked: Sequence[int]) -> Infeasible:
    devices = str(search.gpus) if search.gpus.of_groups else f"{search.gpus} GPUs"
    ruled = bool(divided(search.options.pins)[0])
    return Infeasible(
        f"no pipeline of {' or '.join(map(str, asked))} stages fits on {devices}"
        + (" and satisfies the stage pins" if ruled else "")
    )


def _of_frontier(
    graph: Graph, hardware: Hardware, question: Question, progress: Progress
) -> documents.Plan:
    """Returns the point that a question names or its objective picks, of the frontier with
    pipelines (`frontier`); raises as `pipeline_or_plan`."""
    if question.devices is None:
        raise InternalError("a plan's question has no devices")
    options, point, started = question.options, question.point, monotonic()
    search = PipelineSearch(
        graph, hardware, question.devices, options, progress, question.asked_schedules
    )
    asked, alone = _asked(search, question.stages)
    made = [(one.pipeline, one.least_s) for one in search.certified(asked) if one.pipeline]
    seconds = monotonic() - started
    if point is not None:
        for pipeline, least_s in made:
            if pipeline_id(pipeline) == point:
                return pipeline_document(pipeline, seconds, least_s)
        if alone:
            raise NotFound(f"the frontier of these options has no pipeline {point[:80]}")
        return plan_only(graph, hardware, options, question.devices, progress, point=point)
    searches: list[Search] = []
    found: list[Chosen] = []
    if not alone:
        searches = search_frontier(Subject.of(graph), hardware, question.devices, options, progress)
        found = [chosen for chosen in merge_frontiers(searches) if chosen.fits]
    if not (made or found):
        raise _none_fits(search, asked) if alone else Infeasible(too_large(searches))
    peaks = [*(p.scaled_peak_bytes for p, _ in made), *(chosen.peak_bytes for chosen in found)]
    steps = [*(p.step_s for p, _ in made), *(chosen.replayed_time_s for chosen in found)]
    place = picked(question.objective, np.array(peaks), np.array(steps))
    if place < len(made):
        pipeline, least_s = made[place]
        return pipeline_document(pipeline, seconds, least_s)
    return plan_document(searches, found[place - len(made)], question.objective)


def pipeline_document(
    pipeline: Pipeline,
    seconds: float,
    least_s: float,
    without: WithoutPipeline | UnsetType | None = UNSET,
) -> documents.Pipeline:
    """Returns a pipeline as a document; `seconds` are those of its search, `least_s` is a proven
    lower bound."""
    search = pipeline.search
    strategy = staged_strategy(pipeline)
    head = with_members(
        heading_of(pipeline),
        gpus=pipeline.mesh.gpus,
        nodes=pipeline.mesh.nodes,
        mesh=mesh_description(
            SearchMesh.build(
                pipeline.mesh,
                search.options.max_configurations,
                units=search.options.shard_units,
            )
        ),
    )
    head_members = asdict(head)
    del head_members["overlap"]
    report = with_members(search_report([search]), seconds=seconds, method="pipelines")
    return documents.Pipeline(
        id=pipeline_id(pipeline),
        **head_members,
        stage_mesh=mesh_description(search.problem.context.mesh),
        micro_batches=pipeline.micro_batches,
        schedule=pipeline.schedule,
        stages=_stages(pipeline),
        predicted=_prediction(pipeline),
        certificate=_certificate(pipeline, least_s),
        groups=strategy.groups,
        edges=strategy.edges,
        search=report,
        without_pipeline=without,
        timeline=pipeline_timeline(pipeline),
        kernels=search.options.light_kernels,
        stages_per_rank=pipeline.stages_per_rank if pipeline.stages_per_rank > 1 else UNSET,
        bundle=UNSET if pipeline.kinds is None else str(pipeline.kinds.bundle),
    )


def _certificate(pipeline: Pipeline, least_s: float) -> Certificate:
    if not_searched(pipeline.search.subject):
        return NOTHING
    gap = pipeline.step_s / least_s - 1.0 if least_s > 0 else None
    proven = gap is not None and gap <= pipeline.search.options.epsilon
    return Certificate(
        exact=False,
        epsilon=gap,
        status="within_epsilon" if proven else "heuristic",
        time_lower_bound_s=least_s,
    )


def _prediction(pipeline: Pipeline) -> PipelinePrediction:
    subject, graph = pipeline.search.subject, pipeline.search.subject.graph
    ranks = range(0, pipeline.stages, pipeline.stages_per_rank)
    devices = [pipeline.search_of(rank).hardware.devices[0] for rank in ranks]

    def utilisation(computed: bool) -> float:
        """Returns the share of the step that all devices would need at their peaks."""
        flops = model_flops(subject.coarsened, subject.patterns, graph, computed=computed)
        mean = len(devices) / sum(1.0 / ideal_s(flops, device) for device in devices)
        return mean / (pipeline.mesh.gpus * pipeline.step_s)

    of_tokens, batch = tokens(graph), graph.batch_size
    return PipelinePrediction(
        step_s=pipeline.step_s,
        idle=pipeline.idle,
        peak_bytes=round(float(pipeline.peak_bytes[pipeline.peak_stage])),
        peak_stage=pipeline.peak_stage,
        samples_per_s=None if batch is None else batch / pipeline.step_s,
        tokens_per_s=of_tokens / pipeline.step_s if of_tokens else None,
        model_flops_utilisation=utilisation(computed=False),
        causal_flops_utilisation=utilisation(computed=True),
        expected=UNSET
        if pipeline.kinds is not None or not comparable(pipeline.search.options)
        else expected(
            pipeline.search.hardware,
            pipeline.step_s,
            float(pipeline.peak_bytes[pipeline.peak_stage]),
            pipeline=True,
        ),
    )


def _stages(pipeline: Pipeline) -> list[PlannedStage]:
    labels = StageLabels(pipeline)
    devices = pipeline.mesh.gpus // pipeline.ranks
    replayed = pipeline.replayed
    waiting = pipeline.waiting if replayed.splits else None
    stages = []
    for stage, (first, last) in enumerate(pairwise(pipeline.bounds)):
        groups = pipeline.units.groups_of(first, last)
        stages.append(
            PlannedStage(
                first_device=int(pipeline.rank_of[stage]) * devices,
                devices=devices,
                first_unit=pipeline.units.names[first],
                last_unit=pipeline.units.names[last - 1],
                units=last - first,
                label=labels.of(groups),
                kept_micro_batches=pipeline.kept[stage],
                forward_s=float(replayed.forward_s[stage]),
                backward_s=float(replayed.backward_s[stage]),
                update_s=float(pipeline.update_s[stage]),
                hop_s=pipeline.hops_s[stage] if stage < len(pipeline.hops_s) else None,
                idle=float(pipeline.idle_by_stage[stage]),
                peak_bytes=round(float(pipeline.peak_bytes[stage])),
                groups=groups,
                kept_bytes=round(pipeline.kept_bytes[stage]),
                weights_s=float(replayed.weights_s[stage]) if waiting else UNSET,
                waiting_micro_batches=waiting[stage] if waiting else UNSET,
                **kind_members(pipeline, stage),
            )
        )
    return stages
