"""Questions: what a request asks, its content id, and the answer that the library gives.

A question is plain JSON with everything that the answer depends on except the graph's content:
kind, graph id, hardware document, parameters, options. Its content id is the SHA-256 of that with
the solver's version; the same id has the same answer.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from service.questions.comparisons import compared
from service.questions.curves import content_id, curve_question_of, places_member
from service.questions.fair_order import PRIORITIES
from service.questions.offers import offers_from_csv
from service.questions.pipelines import (
    StagedRequest,
    arguments_of,
    counts_of,
    is_staged,
    staged,
    staged_beside,
)
from service.questions.search_options import options_document, options_from_document
from service.questions.trainers import check_pricing, priced
from shardwise import answers as advice
from shardwise import documents, validation
from shardwise.answers import Infeasible, Options
from shardwise.answers.curve import check_stages_of_curve, compute_curve, places_of_curve
from shardwise.answers.curve_assembly import gpus_of as gpus_in
from shardwise.answers.profile_quote import require_prices
from shardwise.answers.quote import check_kinds, require_steps
from shardwise.cost.named_options import of_request, options_from_request
from shardwise.cost.options import Progress
from shardwise.documents import (
    CompareRequest,
    CurveRequest,
    FrontierRequest,
    Gpus,
    PlanRequest,
    PricingRequest,
    QuoteRequest,
)
from shardwise.documents.jobs import JobKind
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import (
    Devices,
    Hardware,
    devices_of,
    hardware_document,
    hardware_from_document,
)
from shardwise.hardware import offers as known_offers
from shardwise.hardware.power import at_limit
from shardwise.pipeline.asked import ANY, FASTEST
from shardwise.question.question import Question as Asked
from shardwise.question.question import QuestionKind, staged_arguments
from shardwise.question.refusals import check
from shardwise.search.pipelines.searched import check_schedules
from shardwise.solve import solve
from shardwise.trainers.spaces import space_of

KINDS = tuple(documents.QUESTIONS)
_PLAN_ID = re.compile(r"^sha256:[0-9a-f]{64}$")
INFEASIBLE_SCHEMA = documents.schema_of(documents.Infeasible)

Answer = (
    documents.Frontier
    | documents.Curve
    | documents.Plan
    | documents.Pricing
    | documents.Quote
    | documents.Comparison
    | documents.Infeasible
)


@dataclass(frozen=True)
class Limits:
    """The most that one question may ask for."""

    max_gpus: int
    max_curve_gpus: int


@dataclass(frozen=True)
class Question:
    """A checked question; `document` goes into the job's row and to the worker.

    `priority` is among the tenant's own jobs; it is not part of the question.
    """

    kind: str
    graph_id: str
    document: dict[str, Any]
    priority: int = 0

    @property
    def content_id(self) -> str:
        """The id of the question and of its answer."""
        return content_id(self.document)


def frontier_question(
    ask: FrontierRequest, graph_id: str, hardware: Hardware, limits: Limits
) -> Question:
    """Raises BadInput with the field."""
    gpus = _devices(ask.gpus, hardware, limits)
    options = options_from_request(ask.options)
    _check(options, "frontier", ask, gpus)
    more = staged_beside(ask, limits.max_gpus)
    return _question("frontier", graph_id, hardware, options, ask.priority, gpus=gpus.asked, **more)


def curve_question(
    ask: CurveRequest,
    graph_id: str,
    hardware: Hardware,
    limits: Limits,
    options: Options | None = None,
) -> Question:
    """Raises BadInput with the field; `options` replace the request's."""
    chosen = options_from_request(ask.options) if options is None else options
    _check(chosen, "curve", ask, several_kinds=bool(hardware.groups), space=ask.space)
    more = staged_beside(ask, limits.max_gpus)
    places = _places(ask, hardware, limits)
    if more:
        check_stages_of_curve(counts_of(more), max(map(gpus_in, places)))
    if ask.space != ANY:
        space_of(ask.space)
        more["space"] = ask.space
    asked = places_member(places, named=bool(ask.counts))
    return _question("curve", graph_id, hardware, chosen, ask.priority, **asked, **more)


def _places(ask: CurveRequest, hardware: Hardware, limits: Limits) -> Sequence[Gpus]:
    """Returns the counts or the bundles of a curve. Raises BadInput with the field."""
    if ask.max_gpus is not None and not hardware.groups:
        _count(ask.max_gpus, "max_gpus", limits.max_curve_gpus)
    places = places_of_curve(hardware, ask.max_gpus, ask.counts, ask.bundles)
    if ask.max_gpus is None:
        for place in places:
            _count(gpus_in(place), "bundles" if ask.bundles else "counts", limits.max_gpus)
    return places


def plan_question(ask: PlanRequest, graph_id: str, hardware: Hardware, limits: Limits) -> Question:
    """Raises BadInput with the field."""
    gpus = _devices(ask.gpus, hardware, limits)
    options = options_from_request(ask.options)
    asked = {
        "objective": ask.objective,
        "point": ask.point,
        "space": ask.space,
        "order": ask.order,
    }
    _check(options, "plan", ask, gpus, **asked)
    picked: dict[str, Any] = {"objective": ask.objective}
    if ask.point is not None:
        if not _PLAN_ID.match(ask.point):
            raise BadInput(f"got {ask.point[:80]!r}", field="point", expected="a point's plan_id")
        picked = {"objective": "point", "point": ask.point}
    if ask.order is not None:
        picked["order"] = ask.order
    if ask.space != ANY:
        space_of(ask.space)
        picked["space"] = ask.space
    if is_staged(ask):
        picked |= staged(ask, limits.max_gpus)
    return _question("plan", graph_id, hardware, options, ask.priority, gpus=gpus.asked, **picked)


def _check(
    options: Options,
    kind: QuestionKind,
    ask: StagedRequest,
    devices: Devices | None = None,
    **members: Any,
) -> None:
    """Raises `BadInput`, naming the member of the request, for what is in the table of refusals and
    for schedules that are not searched."""
    if ask.schedules:
        check_schedules(ask.schedules)
    staged_members = staged_arguments(ask.stages, ask.schedules)
    check(Asked.of(options, kind, devices, **members, **staged_members), requested=True)


def pricing_question(
    ask: PricingRequest, graph_id: str, hardware: Hardware, limits: Limits
) -> Question:
    """Raises BadInput with the field."""
    gpus = _devices(ask.gpus, hardware, limits)
    options = options_from_request(ask.options)
    check_pricing(ask, hardware, options)
    text, file = ask.configuration, ask.file
    return _question(
        "pricing", graph_id, hardware, options, ask.priority,
        gpus=gpus.asked, configuration=text, file=file,
    )  # fmt: skip


def quote_question(
    ask: QuoteRequest, graph_id: str, limits: Limits, hardware: Hardware | None = None
) -> Question:
    """Raises BadInput with the field. The day is part of the question: prices change.

    `hardware` is the profile that the request names, if it names one.
    """
    check_kinds(ask.combine, hardware, ask.prices)
    for name in ("deadline_s", "budget_usd"):
        value = getattr(ask, name)
        if value is not None and not 0 < value < float("inf"):
            raise BadInput(f"got {value}", field=name, expected="a finite number above 0")
    require_steps(ask.steps, ask.deadline_s, ask.budget_usd)
    if ask.steps is not None:
        _count(ask.steps, "steps", 10**12)
    _count(ask.max_instances, "max_instances", limits.max_gpus)
    offers = offers_from_csv(ask.offers_csv)
    options = options_from_request(ask.options)
    several: dict[str, Any] = {"combine": ask.combine} if ask.combine > 1 else {}
    _check(options, "quote", ask, several_kinds=hardware is not None or ask.combine > 1)
    more = staged_beside(ask, limits.max_gpus)
    if hardware is not None:
        require_prices(hardware, offers, ask.prices)
        several["prices"] = ask.prices
    for offer in offers:
        if offer.gpus_per_instance * ask.max_instances > limits.max_gpus:
            raise BadInput(
                f"{ask.max_instances} × {offer.instance_type} are more than {limits.max_gpus} GPUs",
                field="max_instances",
                expected=f"at most {limits.max_gpus // offer.gpus_per_instance}",
            )
    return _question(
        "quote",
        graph_id,
        hardware,
        options,
        ask.priority,
        offers=[msgspec.to_builtins(offer) for offer in offers],
        steps=ask.steps,
        deadline_s=ask.deadline_s,
        budget_usd=ask.budget_usd,
        max_instances=ask.max_instances,
        today=known_offers.current_day().isoformat(),
        **several,
        **more,
    )


def compare_question(
    ask: CompareRequest, graph_id: str, hardware: Hardware, limits: Limits
) -> Question:
    """Raises BadInput with the field."""
    gpus = _devices(ask.gpus, hardware, limits)
    options = options_from_request(ask.options)
    _check(options, "compare", ask, gpus)
    more = staged_beside(ask, limits.max_gpus)
    return _question(
        "compare", graph_id, hardware, options, ask.priority,
        gpus=gpus.asked, proposals=ask.proposals, seed=ask.seed, **more,
    )  # fmt: skip


def answer(document: dict[str, Any], graph: Graph, progress: Progress, threads: int = 0) -> Answer:
    """Returns the answer to a question's document; infeasible is an answer too.

    Raises what the library raises: BadInput, SolverError, Cancelled.
    """
    options = options_from_document(document["options"], threads)
    try:
        return _ANSWERS[document["kind"]](document, graph, options, progress)
    except Infeasible as reason:
        return documents.Infeasible(
            graph=document["graph"],
            graph_name=graph.name,
            hardware=document["hardware"]["name"],
            gpus=gpus_of(document),
            feasible=False,
            reason=str(reason),
            bundle=bundle if isinstance(bundle := document.get("gpus"), str) else UNSET,
        )


def gpus_of(document: Mapping[str, Any]) -> int | None:
    """Returns how many devices a question's document takes, of all groups; None if it names no
    number."""
    gpus = document.get("gpus")
    if isinstance(gpus, str):
        return Devices.parse(gpus, _hardware(document)).gpus
    return gpus


def _frontier(
    q: dict[str, Any], graph: Graph, options: Options, progress: Progress
) -> documents.Frontier:
    return advice.frontier(graph, _hardware(q), q["gpus"], options, progress, **arguments_of(q))


def _curve(
    q: dict[str, Any], graph: Graph, options: Options, progress: Progress
) -> documents.Curve:
    return compute_curve(curve_question_of(q, graph, options), progress)


def _plan(q: dict[str, Any], graph: Graph, options: Options, progress: Progress) -> documents.Plan:
    return solve(
        graph,
        _hardware(q),
        q["gpus"],
        objective=FASTEST[0] if "point" in q else q.get("objective", FASTEST[0]),
        point=q.get("point"),
        order=q.get("order"),
        space=q.get("space", ANY),
        options=options,
        progress=progress,
        **arguments_of(q),
    )


def _pricing(
    q: dict[str, Any], graph: Graph, options: Options, progress: Progress
) -> documents.Pricing:
    return priced(q, graph, _hardware(q), options, progress)


def _quote(
    q: dict[str, Any], graph: Graph, options: Options, progress: Progress
) -> documents.Quote:
    from shardwise.hardware import Offer

    return advice.quote(
        graph,
        [validation.convert(offer, Offer) for offer in q["offers"]],
        deadline_s=q["deadline_s"],
        budget_usd=q["budget_usd"],
        steps=q["steps"],
        max_instances=q["max_instances"],
        combine=q.get("combine", 1),
        hardware=_hardware(q) if "hardware" in q else None,
        prices=q.get("prices"),
        options=options,
        progress=progress,
        today=datetime.date.fromisoformat(q["today"]),
        **arguments_of(q),
    )


def _compare(
    q: dict[str, Any], graph: Graph, options: Options, progress: Progress
) -> documents.Comparison:
    return compared(q, graph, _hardware(q), options, progress)


_ANSWERS: Mapping[str, Callable[[dict[str, Any], Graph, Options, Progress], Answer]] = {
    "frontier": _frontier,
    "curve": _curve,
    "plan": _plan,
    "pricing": _pricing,
    "quote": _quote,
    "compare": _compare,
}


def _hardware(document: Mapping[str, Any]) -> Hardware:
    return hardware_from_document(document["hardware"])


def _question(
    kind: JobKind,
    graph_id: str,
    hardware: Hardware | None,
    options: dict[str, Any] | Options,
    priority: int,
    **parameters: Any,
) -> Question:
    lowest, highest = PRIORITIES
    if not lowest <= priority <= highest:
        raise BadInput(f"got {priority}", field="priority", expected=f"{lowest} to {highest}")
    if not isinstance(options, Options):
        options = options_from_request(options)
    _check_power(hardware, options)
    document: dict[str, Any] = {
        "kind": kind,
        "graph": graph_id,
        **parameters,
        "options": options_document(options),
    }
    if hardware is not None:
        document["hardware"] = hardware_document(hardware)
        document["hardware_id"] = hardware.id
    return Question(kind, graph_id, document, priority)


def _check_power(hardware: Hardware | None, options: Options) -> None:
    """Raises `BadInput`, which names the option, for a power limit that the devices do not have; of
    several kinds of devices the search says it of those that it takes."""
    if hardware is None or hardware.groups:
        return
    try:
        at_limit(hardware, options.power_limit_w)
    except BadInput as error:
        raise of_request(error) from None


def _devices(gpus: Gpus, hardware: Hardware, limits: Limits) -> Devices:
    """Returns the devices that are asked for. Raises `BadInput`, which names the field."""
    if isinstance(gpus, str) and not hardware.groups and "=" not in gpus:
        raise BadInput(f"got the text {gpus[:40]!r}", field="gpus", expected="a number")
    devices = devices_of(gpus, hardware)
    _count(devices.gpus, "gpus", limits.max_gpus)
    return devices


def _count(value: int, field: str, most: int) -> None:
    if not 1 <= value <= most:
        raise BadInput(f"got {value}", field=field, expected=f"a whole number from 1 to {most}")
