"""The curve: the shortest iteration time for every GPU count, or for every bundle of devices
(TensorOpt §4.1, Profiling)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from shardwise.answers.bundle_curve import bundle_part
from shardwise.answers.count_limit import TooLong
from shardwise.answers.counts import Counts
from shardwise.answers.curve_assembly import (
    assembled,
    computing_order,
    gpus_of,
    parts_of,
)
from shardwise.answers.curve_points import (
    curve_of_point,
    feasible_point,
    infeasible_point,
    least_bytes,
)
from shardwise.answers.frontier import confidence
from shardwise.answers.pipeline_points import FastestPipelines, PipelinePoints
from shardwise.answers.ranges import ranges_that_do_not_fit
from shardwise.answers.simplest import simplest
from shardwise.cost.options import Options, Progress, quiet
from shardwise.cost.pins import NoSuchAxis
from shardwise.cost.program import assumed
from shardwise.documents.curve import Curve, CurvePoint, fits, missing_texts
from shardwise.documents.pipeline_point import PipelinePoint
from shardwise.documents.questions import Gpus
from shardwise.errors import BadInput, Cancelled
from shardwise.graph import Graph
from shardwise.graph.tuning import tuned
from shardwise.hardware import (
    USUAL,
    Devices,
    GroupPrice,
    Hardware,
    group_prices,
    parse_bundles,
    read_offers,
    usual_bundles,
)
from shardwise.hardware.groups import groups_in_words
from shardwise.pipeline.asked import DEFAULT_SCHEDULES, NO_STAGES
from shardwise.question.question import Question
from shardwise.question.refusals import check
from shardwise.search.chosen import fastest, too_large
from shardwise.search.fitting import search_fitting
from shardwise.search.search import Infeasible, Search, Subject

_PER_COUNT = ("gpus", "nodes", "mesh")
"""Heading members specific to one number of GPUs."""

STOPPED = "stopped"
"""The reason for counts missing because the caller cancelled."""

CountSearch = Callable[
    [Subject, Hardware, int, Options, Progress, FastestPipelines | None, float],
    tuple[CurvePoint, Search | None],
]
"""Returns the point of a count, and its search; the point is empty if nothing beats the given
seconds."""


def curve(
    graph: Graph,
    hardware: Hardware,
    max_gpus: int | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    *,
    counts: Sequence[int] = (),
    bundles: Sequence[str | Devices] = (),
    stages: Sequence[int] | None = NO_STAGES,
    schedules: Sequence[str] = DEFAULT_SCHEDULES,
    count_limit_s: float | None = None,
    known: Iterable[Curve] = (),
    on_point: Callable[[Curve], None] | None = None,
    processes: int = 1,
) -> Curve:
    """Returns one point per GPU count from 1 to `max_gpus`, for each of `counts`, or of a profile
    with groups of devices one per bundle.

    `bundles` are texts such as `v100=2,1080ti=4`; `usual` stands for each group alone, the fastest
    groups together and everything. Their points are ordered by their number of devices. Raises
    `BadInput`, which names the field, unless there is one of largest count, counts and bundles, as
    the profile takes it.

    Where fewer devices are faster, a count's point is that of the fewer ones, and `idle` says how
    many have nothing to do.

    `peak_bytes` and `replayed_time_s` are of the replayed step, `memory_bytes` and `time_s` what
    the search adds up; `samples_per_s` goes by the time that ranks. A count on which nothing fits
    has `feasible` false and its reason. `best_gpus` and `best_time_s` name the fastest count up to
    this one. `compute_shares` says which fractions of the compute time (the sum's) were measured,
    interpolated, modelled; `confidence` says so in words, for communication too.

    With numbers of pipeline `stages` (None: all that graph and devices allow) each count has the
    fastest pipeline of those that it allows, under some of the `schedules`, where it is faster than
    every strategy without one or none of these fits; so has each bundle, with stages of one group
    each. Then `BadInput` is raised for numbers above the largest count or the devices of every
    bundle too, and as for `shardwise.answers.pipelines.pipeline_or_plan`.

    Powers of two are computed first, then the counts between. `on_point` gets the curve of each
    count alone when it is known. Counts of the `known` curves, which must have been computed for
    the same graph, profile and options, are not computed again; `BadInput` for another graph or
    profile. A count that takes more than `count_limit_s` seconds is `missing`, and the next one is
    computed. Where a curve takes long, several `processes` compute counts at a time. Raises
    `Cancelled` if `progress` returns False before any count is known; later the others are missing.
    """
    question = curve_question(
        graph,
        hardware,
        max_gpus,
        options,
        counts=counts,
        bundles=bundles,
        stages=stages,
        schedules=schedules,
    )
    return compute_curve(
        question,
        progress or quiet,
        count_limit_s=count_limit_s,
        known=known,
        on_point=on_point,
        processes=processes,
    )


def curve_question(
    graph: Graph,
    hardware: Hardware,
    max_gpus: int | None = None,
    options: Options | None = None,
    *,
    counts: Sequence[int] = (),
    bundles: Sequence[str | Devices] = (),
    stages: Sequence[int] | None = NO_STAGES,
    schedules: Sequence[str] = DEFAULT_SCHEDULES,
) -> CurveQuestion:
    """Returns the query of a curve, to be computed in parts. Raises `BadInput` as `curve`."""
    options = assumed(options, hardware)
    graph = tuned(graph, options.tune)
    places = places_of_curve(hardware, max_gpus, counts, bundles)
    several_kinds = bool(hardware.groups)
    question = Question.of(
        options, "curve", several_kinds=several_kinds, stages=stages, schedules=schedules
    )
    check(question)
    pipelines = PipelinePoints.asked(graph, options, stages, schedules)
    if pipelines is not None:
        check_stages_of_curve(stages, max(map(gpus_of, places)))
    return CurveQuestion(graph, hardware, options, places, bool(counts), pipelines, curve_point)


@dataclass(frozen=True)
class CurveQuestion:
    """A curve query, whose parts are computed in any order.

    `places` are the counts or the bundles; `named`: the query lists its counts; `of_count` searches
    one count; `space` names a trainer if its strategies are searched.
    """

    graph: Graph
    hardware: Hardware
    options: Options
    places: Sequence[Gpus]
    named: bool
    pipelines: FastestPipelines | None
    of_count: CountSearch
    space: str | UnsetType = UNSET

    def part(self, place: Gpus, progress: Progress = quiet, cutoff_s: float = inf) -> Curve:
        """Returns the curve of one count or bundle. A count proven no faster than `cutoff_s` may be
        empty."""
        before_s = 0.0 if self.pipelines is None else self.pipelines.seconds
        if isinstance(place, str):
            part = bundle_part(
                self.subject,
                self.hardware,
                place,
                self.options,
                progress,
                self.pipelines,
                self.prices,
            )
        else:
            part = self._part_of_count(place, progress, cutoff_s)
        if self.pipelines is None:
            return part
        seconds = part.search.seconds + self.pipelines.seconds - before_s
        return replace(part, search=replace(part.search, seconds=seconds))

    def assembled(
        self, parts: Mapping[Gpus, Curve], missing: Mapping[Gpus, str] | None = None
    ) -> Curve:
        """Returns the curve of the known parts."""
        return assembled(self.places, parts, missing, named=self.named)

    @cached_property
    def subject(self) -> Subject:
        """The graph's subject, read once for all parts."""
        return Subject.of(self.graph)

    @cached_property
    def prices(self) -> Mapping[str, GroupPrice]:
        """The shipped offers' prices of each group's devices, read once for all parts."""
        return group_prices(self.hardware, read_offers())

    def _part_of_count(self, gpus: int, progress: Progress, cutoff_s: float) -> Curve:
        point, search = self.of_count(
            self.subject, self.hardware, gpus, self.options, progress, self.pipelines, cutoff_s
        )
        ranges = ranges_that_do_not_fit([point], limit_bytes(self.hardware, self.options))
        return replace(curve_of_point(point, search, _PER_COUNT, ranges), space=self.space)


def compute_curve(
    question: CurveQuestion,
    progress: Progress,
    *,
    count_limit_s: float | None = None,
    known: Iterable[Curve] = (),
    on_point: Callable[[Curve], None] | None = None,
    processes: int = 1,
) -> Curve:
    """Returns the curve of a query, as `curve` does."""
    parts = _known_parts(question, known)
    missing: dict[Gpus, str] = {}
    waiting = [place for place in computing_order(question.places) if place not in parts]
    counts = Counts(question, waiting, parts, count_limit_s)
    try:
        for place, part in counts.each(progress, processes):
            if isinstance(part, TooLong):
                missing[place] = str(part)
                continue
            parts[place] = part
            if on_point is not None:
                on_point(part)
    except Cancelled:
        if not parts:
            raise
        left = [place for place in waiting if place not in parts]
        return question.assembled(parts, dict.fromkeys(left, STOPPED) | missing)
    return question.assembled(parts, missing)


def _known_parts(question: CurveQuestion, known: Iterable[Curve]) -> dict[Gpus, Curve]:
    """Returns the parts of these curves that the query needs."""
    asked = set(question.places)
    parts: dict[Gpus, Curve] = {}
    for number, of in enumerate(known):
        for name, own in (("graph", question.subject.id), ("hardware_id", question.hardware.id)):
            if getattr(of, name) not in (UNSET, own):
                raise BadInput(
                    f"a curve of another {name.removesuffix('_id')}",
                    field=f"known[{number}]",
                    expected="curves of the same question",
                )
        parts |= {place: part for place, part in parts_of(of) if place in asked}
    return parts


def require_some_fit(curve: Curve) -> None:
    """Raises `Infeasible` with the first reasons if a curve has no count that fits."""
    if not any(fits(point) for point in curve.points):
        reasons = [run.reason for run in curve.does_not_fit or ()]
        reasons += missing_texts(curve)
        raise Infeasible(f"nothing fits: {'; '.join(reasons[:3])}")


def places_of_curve(
    hardware: Hardware,
    max_gpus: int | None,
    counts: Sequence[int],
    bundles: Sequence[str | Devices],
) -> Sequence[Gpus]:
    """Returns the counts or the bundles' texts of a curve, each once, ascending.

    Raises `BadInput` for counts on a profile with groups, which lists them, for bundles on one
    without, for neither, for both a largest count and counts, and for a count below 1.
    """
    if hardware.groups:
        if max_gpus is not None or counts:
            most = max_gpus if max_gpus is not None else max(counts)
            raise BadInput(
                f"{most} devices of an unspecified group",
                field="counts" if max_gpus is None else "max_gpus",
                expected=f"bundles, such as {usual_bundles(hardware)[-1]}, or {USUAL} for each "
                "group alone, the fastest together and everything; groups: "
                + groups_in_words(hardware.groups),
            )
        return tuple(str(bundle) for bundle in parse_bundles(bundles, hardware))
    if bundles:
        raise BadInput(
            f"{hardware.name} has no groups of devices", field="bundles", expected="max_gpus"
        )
    if counts:
        if max_gpus is not None:
            raise BadInput(
                f"both max_gpus {max_gpus} and counts", field="counts", expected="one of them"
            )
        if min(counts) < 1:
            raise BadInput(f"{min(counts)} GPUs", field="counts", expected="whole numbers from 1")
        return tuple(sorted(set(counts)))
    if max_gpus is None or max_gpus < 1:
        raise BadInput(
            "missing" if max_gpus is None else f"{max_gpus} GPUs",
            field="max_gpus",
            expected="a whole number from 1",
        )
    return range(1, max_gpus + 1)


def check_stages_of_curve(stages: Sequence[int] | None, max_gpus: int) -> None:
    """Raises `BadInput` for more stages than any count of a curve has devices."""
    if stages is not None and max(stages, default=1) > max_gpus:
        raise BadInput(
            f"{max(stages)} stages of up to {max_gpus} devices",
            field="stages",
            expected=f"1 to {max_gpus}",
        )


def limit_bytes(hardware: Hardware, options: Options) -> float:
    """Returns the memory limit of one device."""
    return options.limit_for(hardware.devices[0].memory_bytes)


def curve_point(
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress = quiet,
    asked: FastestPipelines | None = None,
    cutoff_s: float = inf,
) -> tuple[CurvePoint, Search | None]:
    """Returns the shortest time on `gpus` devices, or why there is none, and the search. May be
    empty if proven no faster than `cutoff_s`.

    As in a plan it is that of the simplest strategy within epsilon of the fastest, unless the
    options say otherwise. The point has a pipeline if `asked` finds one that is faster than every
    strategy without, or if nothing else fits.
    """
    options = assumed(options, hardware)
    try:
        searches = search_fitting(
            subject, hardware, Devices.alike(gpus), options, progress, cutoff_s=cutoff_s
        )
    except (Infeasible, NoSuchAxis) as reason:
        return infeasible_point(gpus, None, confidence(hardware, None), str(reason)), None
    mesh = searches[0].mesh
    chosen = fastest(searches)
    if chosen is None:
        point = infeasible_point(gpus, mesh.nodes, confidence(hardware, mesh), too_large(searches))
        point = replace(point, least_bytes=least_bytes(searches))
    elif chosen.ranking_s >= cutoff_s:  # nobody takes it, so that its simplest is not sought
        point = feasible_point(chosen, searches, gpus, mesh.nodes)
    else:
        cutoff_s = chosen.ranking_s
        answer = simplest(searches, chosen, progress)
        chosen = answer.chosen
        point = feasible_point(chosen, answer.searches, gpus, mesh.nodes)
    if asked is not None:
        point = with_pipeline(
            point, asked.fastest(hardware, Devices.alike(gpus), progress, cutoff_s)
        )
    return point, searches[0] if chosen is None else chosen.search


def with_pipeline(point: CurvePoint, pipeline: PipelinePoint | None) -> CurvePoint:
    """Returns a count's point with its pipeline, if one is faster or is the only one that fits; if
    nothing fits, the reason mentions pipelines."""
    if pipeline is not None:
        return replace(point, pipeline=pipeline)
    if point.feasible:
        return point
    return replace(point, reason=f"{point.reason}; no pipeline that was asked for fits either")
