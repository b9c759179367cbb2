"""The curve of a trainer: for every count of GPUs the fastest of the strategies that it can run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from shardwise.advise.curve import CurveQuestion, compute_curve, curve_question
from shardwise.advise.curve_points import feasible_point, infeasible_point
from shardwise.advise.frontier import confidence
from shardwise.advise.pipeline_points import PipelinePoints
from shardwise.cost.options import Options, Progress, quiet
from shardwise.cost.pins import NoSuchAxis
from shardwise.documents.curve import Curve, CurvePoint
from shardwise.documents.questions import Devices
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware
from shardwise.search.fitting import search_fitting
from shardwise.search.search import Infeasible, Search, Subject
from shardwise.trainers.plan import answer_of, check_options
from shardwise.trainers.spaces import ANY, space_of
from shardwise.trainers.stated import with_stated


def curve_for(
    graph: Graph,
    hardware: Hardware,
    max_gpus: int | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    *,
    trainer: str,
    counts: Sequence[int] = (),
    bundles: Sequence[str] = (),
    given: Collection[str] = (),
    count_limit_s: float | None = None,
    known: Iterable[Curve] = (),
    on_point: Callable[[Curve], None] | None = None,
) -> Curve:
    """Returns the curve of the strategies of a trainer, one of `SPACES`, as `advise.curve` does.

    The step is that of the program which the trainer runs, except for options `given` by name, as
    in `shardwise.trainers.plan.plan_for`. Raises `BadInput` for an unknown trainer and for what
    trainers do not take: devices of several kinds, rules, sums.
    """
    question = trainer_question(
        graph,
        hardware,
        max_gpus,
        options,
        trainer=trainer,
        counts=counts,
        bundles=bundles,
        given=given,
    )
    return compute_curve(
        question, progress or quiet, count_limit_s=count_limit_s, known=known, on_point=on_point
    )


def trainer_question(
    graph: Graph,
    hardware: Hardware,
    max_gpus: int | None = None,
    options: Options | None = None,
    *,
    trainer: str,
    counts: Sequence[int] = (),
    bundles: Sequence[str] = (),
    given: Collection[str] = (),
) -> CurveQuestion:
    """Returns the question, to be computed in parts. Raises `BadInput` as `curve_for`."""
    options = with_stated(options or Options(), space_of(trainer).implies, given)
    question = curve_question(graph, hardware, max_gpus, options, counts=counts, bundles=bundles)
    check_curve(trainer, question.places, question.options)
    return replace(question, of_count=partial(_trainer_point, trainer), space=trainer)


def check_curve(trainer: str, places: Sequence[Devices], options: Options) -> None:
    """Raises `BadInput` for a curve that a trainer's space does not have, naming the field."""
    space_of(trainer)
    for place in places:
        if isinstance(place, str):
            raise BadInput(
                f"devices of several kinds ({place}) have no degrees that a trainer takes",
                field="space",
                expected=f"{ANY}, or devices of one kind",
            )
    check_options(options)


def _trainer_point(
    trainer: str,
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress,
    asked: PipelinePoints | None,
) -> tuple[CurvePoint, Search | None]:
    """Returns the point of the trainer's answer, as that of a plan, or why there is none."""
    search: Search | None = None
    try:
        searches = search_fitting(subject, hardware, gpus, options, progress)
        search = searches[0]
        answer = answer_of(trainer, space_of(trainer), searches, progress)
    except (Infeasible, NoSuchAxis) as reason:
        mesh = None if search is None else search.mesh
        nodes = None if mesh is None else mesh.nodes
        basis = confidence(hardware, mesh)
        return infeasible_point(gpus, nodes, basis, str(reason)), search
    chosen = answer.chosen
    return feasible_point(chosen, answer.searches, gpus, chosen.search.mesh.nodes), chosen.search
