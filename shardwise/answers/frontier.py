"""The frontier of a graph on n GPUs, as the document `shardwise.frontier/1`."""

from __future__ import annotations

import resource
from collections.abc import Sequence

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from shardwise.answers.certificates import frontier_certificate, gap_within, left_out
from shardwise.answers.communication_basis import (
    MEASURED,
    MODELLED,
    communication_basis,
    joint_communication_basis,
)
from shardwise.answers.expected import uncompared_note
from shardwise.answers.mixed import bundle_of, place_peaks
from shardwise.answers.named_rows import Differences, named_rows
from shardwise.answers.outline import outlines
from shardwise.answers.pipeline_points import PipelinePoints
from shardwise.answers.precision_note import float32_note, recipe_note
from shardwise.answers.summary import Summaries, fields
from shardwise.answers.unaligned import unaligned_note
from shardwise.cost.options import Options, Progress, quiet
from shardwise.cost.program import assumed, program_text
from shardwise.cost.shares import Shares
from shardwise.cost.space import SearchMesh
from shardwise.documents.common import (
    Heading,
    MeshAxis,
    MeshDescription,
    OperatorName,
    PlacePeak,
    Provenance,
    SearchReport,
)
from shardwise.documents.frontier import Frontier, FrontierPoint
from shardwise.documents.pipeline_point import PipelinePoint
from shardwise.graph import Graph
from shardwise.graph.tuning import tuned
from shardwise.hardware import Devices, Hardware, Mesh, devices_of
from shardwise.hardware.power import power_note
from shardwise.pipeline.asked import DEFAULT_SCHEDULES, NO_STAGES
from shardwise.policy.proposals import proposer
from shardwise.question.question import Question
from shardwise.question.refusals import check
from shardwise.search.chosen import Chosen, axes, merge_frontiers
from shardwise.search.fitting import search_frontier
from shardwise.search.mixed.search import MixedSearch
from shardwise.search.search import Search, Subject
from shardwise.search.turning_point import turning_point
from shardwise.sharding.precision import PRECISIONS


def frontier(
    graph: Graph,
    hardware: Hardware,
    gpus: int | str | Devices,
    options: Options | None = None,
    progress: Progress | None = None,
    *,
    stages: Sequence[int] | None = NO_STAGES,
    schedules: Sequence[str] = DEFAULT_SCHEDULES,
) -> Frontier:
    """Returns every strategy that no other beats in memory and time (TensorOpt Definition 1).

    Memory is the replayed peak, time that of the replayed step; the sums of both without `overlap`.
    `gpus` is a number of devices, or of a profile with groups a bundle such as
    `v100=2,1080ti=4`. Raises `BadInput` for a count below 1 and `Infeasible` when the hardware
    cannot have that many devices.

    With numbers of pipeline `stages` (None: all that graph and devices allow) the document has
    `pipelines` too, under some of the `schedules`; then `BadInput` as for
    `shardwise.answers.pipelines.pipeline_or_plan`.
    """
    devices = devices_of(gpus, hardware)
    options = assumed(options, hardware)
    check(Question.of(options, "frontier", devices, stages=stages, schedules=schedules))
    graph = tuned(graph, options.tune)
    progress = progress or quiet
    asked = PipelinePoints.asked(graph, options, stages, schedules)
    pipelines = UNSET if asked is None else asked.frontier(hardware, devices, progress)
    searches = search_frontier(
        Subject.of(graph),
        hardware,
        devices,
        options,
        progress,
        proposer(options),
    )
    document = frontier_document(searches, progress)
    if asked is None or pipelines is UNSET:
        return document
    taken = replace(document.search, seconds=document.search.seconds + asked.seconds)
    return replace(document, pipelines=_unbeaten(pipelines, document.points), search=taken)


def _unbeaten(
    pipelines: Sequence[PipelinePoint], points: Sequence[FrontierPoint]
) -> list[PipelinePoint]:
    """Returns the pipelines that no point matches or beats in peak and replayed time."""
    return [
        pipeline
        for pipeline in pipelines
        if not any(
            point.replayed_peak_bytes <= pipeline.peak_bytes
            and point.replayed_time_s <= pipeline.step_s
            for point in points
        )
    ]


def frontier_document(searches: Sequence[Search], progress: Progress = quiet) -> Frontier:
    """Returns the frontier document of a query's searches, one per micro-batch count."""
    chosen = merge_frontiers(searches)
    summaries = Summaries(searches)
    outlined = {id(search): outlines(search) for search in searches}
    points = []
    differences = Differences()
    for point in chosen:
        summary = summaries.of(point)
        compute = point.search.compute_s(point.point)
        outline = outlined[id(point.search)][point.point]
        points.append(
            FrontierPoint(
                memory_bytes=round(point.memory_bytes),
                time_s=point.time_s,
                plan_id=point.search.plan_id(point.point),
                micro_batches=point.search.micro_batches,
                compute_s=compute,
                compute_shares=point.search.compute_shares(point.point).document(),
                communication_s=max(point.time_s - compute, 0.0),
                replayed_time_s=point.replayed_time_s,
                replayed_peak_bytes=round(point.peak_bytes),
                feasible=point.fits,
                gap=gap_within(searches, point),
                host_s=float(point.search.replayed.host_s[point.point]),
                exposed_communication_s=float(point.search.replayed.exposed_s[point.point]),
                memory=outline.memory,
                time=outline.time,
                splits=outline.splits,
                other_splits=outline.other_splits,
                places=peaks_of(point),
                differs=differences.of(summary.label, point),
                **fields(summary),
            )
        )
    memory, time = axes(chosen)
    return Frontier(
        **asdict(heading(searches[0])),
        points=points,
        turning_point=turning_point(memory, time),
        certificate=frontier_certificate(searches, chosen),
        search=search_report(searches),
        bundle=bundle_of(searches[0]),
        named=named_rows(searches, summaries, progress),
    )


def peaks_of(point: Chosen) -> list[PlacePeak] | UnsetType:
    """Returns the peaks of the places, on several kinds of devices."""
    search = point.search
    return place_peaks(search, point.point) if isinstance(search, MixedSearch) else UNSET


def heading(search: Search) -> Heading:
    """Returns the heading of every answer: the query, the mesh, the sources of its numbers."""
    subject, hardware = search.subject, search.hardware
    undescribed = [OperatorName(op.name, op.kind) for op in subject.coarsened.undescribed]
    warnings = []
    if undescribed:
        kinds = ", ".join(sorted({op.kind for op in undescribed}))
        warnings.append(f"operators without a description are replicated: {kinds}")
    wide = float32_note(subject.graph, hardware, search.options.precision)
    if wide is not None:
        warnings.append(wide)
    narrowed_to = PRECISIONS.get(search.options.precision)
    odd = unaligned_note(subject.graph, hardware.devices[0], narrowed_to)
    if odd is not None:
        warnings.append(odd)
    if len(hardware.devices) > 1 and not hardware.groups:
        warnings.append(f"of several device kinds only {hardware.devices[0].kind} is used")
    if not hardware.collectives:
        warnings.append(
            f"communication times of {hardware.name} are modelled from data sheets, not measured"
        )
    elif (basis := _communication_basis(search)) != MEASURED:
        warnings.append(f"communication times of {hardware.name}: {basis}")
    devices = [profile.devices[0] for profile in search.profiles]
    notes = (
        power_note(devices, search.options.power_limit_w),
        uncompared_note(search.profiles),
        recipe_note(search.problem.coarsened.recipes.values(), search.options),
    )
    warnings += [note for note in notes if note is not None]
    return Heading(
        graph=subject.id,
        graph_name=subject.graph.name,
        batch_size=subject.graph.batch_size,
        hardware=hardware.name,
        hardware_id=hardware.id,
        gpus=search.mesh.gpus,
        nodes=search.mesh.nodes,
        mesh=mesh_description(search.problem.context.mesh),
        optimizer=search.options.optimizer,
        precision=search.options.precision,
        overlap=search.options.overlap,
        device_memory_bytes=search.device_memory_bytes,
        memory_limit_bytes=search.limit_bytes,
        provenance=_provenance(hardware, search.profiles, _communication_basis(search)),
        undescribed_operators=undescribed,
        replicated_operators=[OperatorName(op.name, op.kind) for op in subject.coarsened.constants],
        warnings=warnings,
        not_searched=left_out([search]) or UNSET,
        program=program_text(search.options, subject.graph),
        tune=subject.graph.tuning or UNSET,
    )


def mesh_description(mesh: SearchMesh) -> MeshDescription:
    """Returns the axes of a mesh as documents have them."""
    return MeshDescription([MeshAxis(axis.name, axis.size, axis.level) for axis in mesh.axes])


def _communication_basis(search: Search) -> str:
    """Returns the sources of communication times, in words."""
    if isinstance(search, MixedSearch):
        return joint_communication_basis(search.problem.cluster)
    return communication_basis(search.hardware, search.mesh)


def provenance(hardware: Hardware, mesh: Mesh) -> Provenance:
    """Returns the provenance of the numbers on one kind of devices."""
    return _provenance(hardware, (hardware,), communication_basis(hardware, mesh))


def _provenance(hardware: Hardware, profiles: Sequence[Hardware], communication: str) -> Provenance:
    """Returns the provenance of the numbers; `profiles` are those of the device kinds."""
    bases = dict.fromkeys(_compute_basis(profile) for profile in profiles)
    return Provenance(
        profile=hardware.provenance,
        compute="; ".join(bases),
        communication=communication,
        memory="sum of kept tensors and parameter state; the peak is of the replayed step",
    )


def confidence(hardware: Hardware, mesh: Mesh | None, compute: Shares | None = None) -> str:
    """Returns the sources of an answer's times, in words.

    `mesh` and `compute` are given if the answer has them.
    """
    computed = _compute_basis(hardware) if compute is None else compute.text()
    communication = MEASURED if hardware.collectives else MODELLED
    if mesh is not None:
        communication = communication_basis(hardware, mesh)
    return f"compute: {computed}; communication: {communication}"


def confidence_of(search: Search, compute: Shares | None = None) -> str:
    """Returns the sources of the times of a search's answer, on one kind of devices or several."""
    if isinstance(search, MixedSearch):
        return _confidence_of(search.profiles, compute, _communication_basis(search))
    return confidence(search.hardware, search.mesh, compute)


def confidence_of_bundle(hardware: Hardware, bundle: Devices) -> str:
    """Returns the sources of times on a bundle without an answer."""
    communication = MEASURED if hardware.collectives else MODELLED
    profiles = [hardware.of_group(name) for name, _ in bundle.counts]
    return _confidence_of(profiles, None, communication)


def _confidence_of(profiles: Sequence[Hardware], compute: Shares | None, communication: str) -> str:
    bases = dict.fromkeys(_compute_basis(profile) for profile in profiles)
    computed = "; ".join(bases) if compute is None else compute.text()
    return f"compute: {computed}; communication: {communication}"


def _compute_basis(hardware: Hardware) -> str:
    if hardware.operator_times.known:
        return "measured operator tables, where they reach; compute_shares says how far"
    if hardware.devices[0].has_kernels:
        return "products and attention by measured kernels, the rest modelled"
    return "modelled: roofline with the profile's stated efficiency"


def search_report(searches: Sequence[Search]) -> SearchReport:
    """Returns the searches' statistics; the sizes are those of the first."""
    first = searches[0]
    costs = first.problem.costs
    return SearchReport(
        seconds=sum(float(search.solution.seconds) for search in searches),
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        method=first.solution.method,
        operators=len(first.subject.graph.operators),
        groups=len(costs),
        edges=len(first.problem.edges),
        configurations_max=max((len(c.time_s) for c in costs), default=0),
        configurations_mean=sum(len(c.time_s) for c in costs) / max(len(costs), 1),
        tofu=first.solution.report() or UNSET,
    )
