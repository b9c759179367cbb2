"""Mini-parallelism with prices: the fewest GPUs a job fits on, offers ranked by price.

TensorOpt §4.1 (Mini-parallelism). One offer is a number of instances of one kind; its price for
the job is usd_per_hour · instances · time · steps / 3600.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from shardwise.answers.certificates import not_searched
from shardwise.answers.combined_offers import Known, Points, combined_rows
from shardwise.answers.curve import limit_bytes
from shardwise.answers.curve_points import point_progress
from shardwise.answers.pipeline_points import PipelinePoints
from shardwise.answers.profile_quote import profile_quote
from shardwise.answers.quote_rows import Terms, offer_row, over_budget, price_of, rank_of
from shardwise.answers.ranges import range_text, ranges_that_do_not_fit
from shardwise.answers.side_by_side import Parts
from shardwise.cost.options import Options, Progress, go_on, quiet
from shardwise.cost.program import assumed, program_text
from shardwise.cost.units import require_units
from shardwise.documents.curve import CurvePoint, DoesNotFit, fits
from shardwise.documents.quote import NO_PROFILE, Combinations, NotOffered, OfferRow, Quote
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.graph.tuning import tuned
from shardwise.hardware import Hardware, Offer
from shardwise.hardware import offers as known_offers
from shardwise.hardware.power import at_limit
from shardwise.pipeline.asked import DEFAULT_SCHEDULES, NO_STAGES
from shardwise.question.question import Question
from shardwise.question.refusals import check
from shardwise.search.search import Subject


def quote(
    graph: Graph,
    offers: Sequence[Offer],
    *,
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    steps: int | None = None,
    max_instances: int = 16,
    combine: int = 1,
    hardware: Hardware | None = None,
    prices: Mapping[str, float] | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
    today: datetime.date | None = None,
    stages: Sequence[int] | None = NO_STAGES,
    schedules: Sequence[str] = DEFAULT_SCHEDULES,
    processes: int = 1,
) -> Quote:
    """Returns the offers on which the job fits, cheapest first.

    For every offer the instance counts 1, 2, 4, … up to `max_instances` are tried, and the counts
    between the last that is too small and the first that fits. Offers are ranked by the price of
    the whole job when `steps` is given, else by the price of a million samples (of an hour, when
    the batch size is unknown). `budget_usd` leaves out what costs more; `deadline_s` is for all
    steps and marks each offer.

    With `combine` offers of up to that many kinds may be taken together (`combined_offers.py`).
    With `hardware`, a profile with groups, its parts are quoted instead (`profile_quote.py`), at
    `prices` in USD per hour of one device by group. Raises `BadInput` that names the field for a
    `combine` out of range and for `hardware` and `prices` that do not go together.

    With numbers of pipeline `stages` (None: all that graph and devices allow) each row is that of
    the fastest pipeline under some of the `schedules` where it is faster than every strategy
    without one, or none of these fits; its `pipeline` says so. On several kinds of devices each
    stage has devices of one. Then `BadInput` is raised as for
    `shardwise.answers.pipelines.pipeline_or_plan` too.

    A long quote of offers is searched by up to `processes` processes.
    """
    options, progress = options or Options(), progress or quiet
    graph = tuned(graph, options.tune)
    subject = Subject.of(graph)
    today = today or known_offers.current_day()
    terms = Terms(options, graph.batch_size, steps, deadline_s, today)
    check_kinds(combine, hardware, prices)
    several_kinds = hardware is not None or combine > 1
    question = Question.of(
        options, "quote", several_kinds=several_kinds, stages=stages, schedules=schedules
    )
    check(question)
    asked = PipelinePoints.asked(graph, options, stages, schedules)
    if hardware is not None:
        given = prices or {}
        return profile_quote(subject, hardware, offers, given, terms, budget_usd, progress, asked)
    rows: list[OfferRow] = []
    left_out: list[NotOffered] = []
    refusals = [_refused(offer, options) for offer in offers]
    powered = [offer for offer, refused in zip(offers, refusals, strict=True) if refused is None]
    searches, known = OfferSearches(subject, options, max_instances, asked), Known({}, asked)
    for _, points in searches.each(powered, progress, processes):
        known.points |= points
    for offer, refused in zip(offers, refusals, strict=True):
        if offer.hardware is None:
            left_out.append(_not_offered(offer, f"{NO_PROFILE}{offer.gpu_kind}"))
            continue
        if refused is not None:
            left_out.append(_not_offered(offer, refused))
            continue
        fitting, tried = searches.instances(offer, known, quiet)
        rows += [offer_row(offer, instances, point, terms) for instances, point in fitting]
        if not fitting:
            ranges = ranges_that_do_not_fit(tried, limit_bytes(offer.profile(), options))
            reason = "; ".join(range_text(of) for of in ranges)
            left_out.append(_not_offered(offer, reason, ranges))
    combinations: Combinations | UnsetType = UNSET
    if combine > 1:
        combined, combinations = combined_rows(
            subject, powered, rows, known, terms, combine, max_instances, progress
        )
        rows += combined
    if budget_usd is not None:
        left_out += [over_budget(row, budget_usd) for row in rows if price_of(row) > budget_usd]
        rows = [row for row in rows if price_of(row) <= budget_usd]
    rows.sort(key=lambda row: rank_of(row, options.overlap))
    return Quote(
        graph=subject.id,
        graph_name=graph.name,
        batch_size=graph.batch_size,
        steps=steps,
        deadline_s=deadline_s,
        budget_usd=budget_usd,
        offers=rows,
        not_offered=left_out,
        minimum_gpus=min((row.gpus for row in rows), default=None),
        stale=any(row.stale for row in rows),
        overlap=options.overlap,
        combinations=combinations,
        not_searched=not_searched(subject) or UNSET,
        program=_program(offers, options, graph),
    )


def _program(offers: Sequence[Offer], options: Options, graph: Graph) -> str | UnsetType:
    """Returns the program of the steps on offers; unset if it differs between them."""
    profiles = {offer.hardware: offer.profile() for offer in offers if offer.hardware is not None}
    texts = {program_text(assumed(options, profile), graph) for profile in profiles.values()}
    return texts.pop() if len(texts) == 1 else UNSET


def require_steps(steps: int | None, deadline_s: float | None, budget_usd: float | None) -> None:
    """Raises `BadInput` for a deadline or a budget without the steps of the whole job."""
    if steps is None and (deadline_s is not None or budget_usd is not None):
        raise BadInput(
            "a deadline or a budget needs the steps of the whole job",
            field="steps",
            expected="a number of steps",
        )


MOST_KINDS = 3
"""Maximum kinds of instances in one offer."""


def check_kinds(
    combine: int, hardware: Hardware | None, prices: Mapping[str, float] | None
) -> None:
    """Raises `BadInput` that names the field for what does not say devices of several kinds."""
    if not 1 <= combine <= MOST_KINDS:
        raise BadInput(f"got {combine}", field="combine", expected=f"1 to {MOST_KINDS} kinds")
    if hardware is None and prices:
        raise BadInput(
            "prices by group need a profile with groups", field="prices", expected="hardware"
        )
    if hardware is not None and not hardware.groups:
        raise BadInput(
            f"{hardware.name} has no groups of devices",
            field="hardware",
            expected="a profile with groups, or none: offers name their own",
        )
    if hardware is not None and combine > 1:
        raise BadInput(
            "offers are not combined when a profile is quoted", field="combine", expected="1"
        )


@dataclass(frozen=True)
class OfferSearches:
    """The searches of a quote, on the machines of its offers."""

    subject: Subject
    options: Options
    max_instances: int
    pipelines: PipelinePoints | None

    def each(
        self, offers: Sequence[Offer], progress: Progress, processes: int
    ) -> Iterator[tuple[Offer, Points]]:
        """Yields an offer of each machine with the machine's points, as `side_by_side.Parts.each`
        does. Raises `Cancelled` when `progress` returns False."""
        first: dict[str, Offer] = {}
        for offer in offers:
            if offer.hardware is not None:
                first.setdefault(offer.profile().id, offer)
        machines, begun = list(first.values()), list[Offer]()

        def here(offer: Offer) -> Points:
            one = point_progress(progress, _name(offer), len(begun), len(machines))
            begun.append(offer)
            return self(offer, one)

        def look(last: Offer) -> None:
            if last not in begun:
                begun.append(last)
            go_on(progress, _name(last), (len(begun) - 1) / len(machines))

        yield from Parts(here, self, look).each(machines, processes)

    def __call__(self, offer: Offer, progress: Progress = quiet) -> Points:
        """Returns the points of an offer's machine that `instances` needs."""
        known = Known({}, self.pipelines)
        self.instances(offer, known, progress)
        return known.points

    def instances(
        self, offer: Offer, known: Known, progress: Progress
    ) -> tuple[list[tuple[int, CurvePoint]], list[CurvePoint]]:
        """Returns the instance counts worth offering (the fewest that fits, then doublings).

        If there is none, the points that were tried. Adds to `known` what it has to search. Raises
        `Cancelled` when `progress` returns False.
        """

        def at(instances: int) -> CurvePoint:
            return known.point(self.subject, offer, instances, self.options, progress)

        smallest, most = 1, self.max_instances
        while smallest <= most and not fits(at(smallest)):
            smallest *= 2
        if smallest > most:
            return [], [at(2**power) for power in range(smallest.bit_length() - 1)]
        for fewer in range(smallest // 2 + 1, smallest):
            if fits(at(fewer)):
                smallest = fewer
                break
        counts = [smallest]
        while len(counts) < 3 and counts[-1] * 2 <= most:
            counts.append(counts[-1] * 2)
        return [(n, at(n)) for n in counts if fits(at(n))], []


def _name(offer: Offer) -> str:
    return f"{offer.provider} {offer.instance_type}"


def _refused(offer: Offer, options: Options) -> str | None:
    """Returns why an offer's GPUs do not support the options' power limit or precision, or None."""
    if offer.hardware is None:
        return None
    try:
        at_limit(offer.profile(), options.power_limit_w)
    except BadInput as error:
        return f"{error.problem}; it takes {error.expected}"
    try:
        require_units(offer.profile().devices, options)
    except BadInput as error:
        return error.problem
    return None


def _not_offered(
    offer: Offer, reason: str, ranges: list[DoesNotFit] | UnsetType = UNSET
) -> NotOffered:
    return NotOffered(offer.provider, offer.instance_type, offer.region, reason, ranges)
