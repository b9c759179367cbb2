"""The curve: the shortest iteration time for every GPU count, or for every bundle of devices
(TensorOpt §4.1, Profiling)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from shardwise.advise.bundle_curve import bundle_curve
from shardwise.advise.curve_points import (
    SearchesOfCurve,
    feasible_point,
    infeasible_point,
    least_bytes,
    point_progress,
)
from shardwise.advise.frontier import confidence
from shardwise.advise.pipeline_points import PipelinePoints
from shardwise.advise.ranges import ranges_that_do_not_fit
from shardwise.cost.options import Options, Progress, quiet
from shardwise.cost.pins import NoSuchAxis
from shardwise.documents.curve import Curve, CurvePoint, CurveSearch, fastest_s, fits
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import USUAL, Bundle, Hardware, parse_bundles, usual_bundles
from shardwise.hardware.groups import groups_in_words
from shardwise.pipeline.asked import DEFAULT_SCHEDULES, NO_STAGES
from shardwise.search.chosen import fastest, too_large
from shardwise.search.fitting import search_fitting
from shardwise.search.pipelines.searched import check_of_kinds
from shardwise.search.search import Infeasible, Search, Subject

_PER_COUNT = ("gpus", "nodes", "mesh")
"""Members of a heading that hold for one number of GPUs only."""


def curve(
    graph: Graph,
    hardware: Hardware,
    max_gpus: int | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    *,
    bundles: Sequence[str | Bundle] = (),
    stages: Sequence[int] | None = NO_STAGES,
    schedules: Sequence[str] = DEFAULT_SCHEDULES,
) -> Curve:
    """Returns one point per GPU count from 1 to `max_gpus`, or of a profile with groups of devices
    one per bundle.

    `bundles` are texts such as `v100=2,1080ti=4`; `usual` stands for each group alone, the fastest
    groups together and everything. Their points are ordered by their number of devices. Raises
    `BadInput`, which names the field, unless there is either a count or bundles, whichever the
    profile takes.

    `peak_bytes` and `replayed_time_s` are of the replayed step, `memory_bytes` and `time_s` what
    the search adds up; `samples_per_s` goes by the time that ranks. A count on which nothing fits
    has `feasible` false and its reason. `best_gpus` and `best_time_s` name the fastest count up to
    this one: an awkward count (a large prime) can be slower than a smaller one.
    `compute_shares` says which fractions of the compute time (the sum's) were measured,
    interpolated, modelled; `confidence` says so in words, for communication too.

    With numbers of pipeline `stages` (None: all that graph and devices allow) each count has the
    fastest pipeline of those that it allows, under some of the `schedules`, where it is faster than
    every strategy without one or none of these fits; so has each bundle, with stages of one group
    each. Then `BadInput` is raised for numbers above `max_gpus` or the devices of every bundle too,
    and as for `shardwise.advise.pipelines.pipeline_or_plan`.
    """
    options, progress = options or Options(), progress or quiet
    asked = PipelinePoints.asked(graph, options, stages, schedules)
    most_gpus = count_of_curve(hardware, max_gpus, bundles)
    if most_gpus is None:
        if asked is not None:
            check_of_kinds(schedules)
            most = max(bundle.gpus for bundle in parse_bundles(bundles, hardware))
            check_stages_of_curve(stages, most)
        return bundle_curve(graph, hardware, bundles, options, progress, asked)
    check_stages_of_curve(stages, most_gpus)
    subject = Subject.of(graph)
    points: list[CurvePoint] = []
    searches = SearchesOfCurve(_PER_COUNT)
    best: tuple[int, float] | None = None
    for gpus in range(1, most_gpus + 1):
        one = point_progress(progress, f"{gpus} of {most_gpus} GPUs", gpus - 1, most_gpus)
        point, search = curve_point(subject, hardware, gpus, options, one, asked)
        searches.add(search)
        ranked = ranking_time(point, options)
        if ranked is not None and (best is None or ranked < best[1]):
            best = (gpus, ranked)
        best_gpus, best_time_s = best or (None, None)
        points.append(replace(point, best_gpus=best_gpus, best_time_s=best_time_s))
    return Curve(
        **searches.head,
        max_gpus=most_gpus,
        points=points,
        search=CurveSearch(searches.seconds + (0.0 if asked is None else asked.seconds)),
        does_not_fit=ranges_that_do_not_fit(points, limit_bytes(hardware, options)),
    )


def require_some_fit(curve: Curve) -> None:
    """Raises `Infeasible` with the first reasons if a curve has no count that fits."""
    if not any(fits(point) for point in curve.points):
        reasons = [run.reason for run in curve.does_not_fit or ()]
        raise Infeasible(f"nothing fits: {'; '.join(reasons[:3])}")


def count_of_curve(
    hardware: Hardware, max_gpus: int | None, bundles: Sequence[str | Bundle]
) -> int | None:
    """Returns the largest count of a curve over counts of like devices; None of one over bundles.

    Raises `BadInput` for a largest count on a profile with groups, which lists them, for bundles on
    one without, for neither and for a count below 1.
    """
    if hardware.groups:
        if max_gpus is not None:
            raise BadInput(
                f"{max_gpus} devices, of which group is not said",
                field="max_gpus",
                expected=f"bundles, such as {usual_bundles(hardware)[-1]}, or {USUAL} for each "
                "group alone, the fastest together and everything; groups: "
                + groups_in_words(hardware.groups),
            )
        return None
    if bundles:
        raise BadInput(
            f"{hardware.name} has no groups of devices", field="bundles", expected="max_gpus"
        )
    if max_gpus is None or max_gpus < 1:
        raise BadInput(
            "missing" if max_gpus is None else f"{max_gpus} GPUs",
            field="max_gpus",
            expected="a whole number from 1",
        )
    return max_gpus


def check_stages_of_curve(stages: Sequence[int] | None, max_gpus: int) -> None:
    """Raises `BadInput` for more stages than any count of a curve has devices."""
    if stages is not None and max(stages, default=1) > max_gpus:
        raise BadInput(
            f"{max(stages)} stages of up to {max_gpus} devices",
            field="stages",
            expected=f"1 to {max_gpus}",
        )


def limit_bytes(hardware: Hardware, options: Options) -> float:
    """Returns what one device may use."""
    return options.limit_for(hardware.devices[0].memory_bytes)


def ranking_time(point: CurvePoint, options: Options) -> float | None:
    """Returns the time in seconds that ranks the point of a curve; None where nothing fits."""
    return fastest_s(point, options.overlap)


def curve_point(
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress = quiet,
    asked: PipelinePoints | None = None,
) -> tuple[CurvePoint, Search | None]:
    """Returns the shortest time on `gpus` devices, or why there is none, and the search.

    The point has a pipeline where `asked` finds one that is faster, or where nothing else fits.
    """
    try:
        searches = search_fitting(subject, hardware, gpus, options, progress)
    except (Infeasible, NoSuchAxis) as reason:
        return infeasible_point(gpus, None, confidence(hardware, None), str(reason)), None
    mesh = searches[0].mesh
    chosen = fastest(searches)
    if chosen is None:
        point = infeasible_point(gpus, mesh.nodes, confidence(hardware, mesh), too_large(searches))
        point = replace(point, least_bytes=least_bytes(searches))
    else:
        point = feasible_point(chosen, searches, gpus, mesh.nodes)
    if asked is not None:
        pipeline = asked.fastest(hardware, gpus, progress, ranking_time(point, options))
        if pipeline is not None:
            point = replace(point, pipeline=pipeline)
        elif chosen is None:
            neither = f"{point.reason}; no pipeline that was asked for fits either"
            point = replace(point, reason=neither)
    return point, searches[0] if chosen is None else chosen.search
