"""Pictures of answers as bars: where a plan's step goes, what offers cost."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from shardwise.answers.explain import explain
from shardwise.documents import Explanation, Quote, WholePlan
from shardwise.documents.quote import prices_dated, step_s
from shardwise.pictures.figure import BLUE, GREEN, ORANGE, Picture
from shardwise.pictures.gantt import draw_gantt, draw_memory

MOST_BARS = 12
LONGEST_NAME = 44


def plan_picture(plan: WholePlan) -> Picture:
    """Returns the replayed step over time (`gantt.py`), and the groups that take most of it.

    Of the groups computation is beside communication. Groups that are split and cost alike are one
    bar, of all of them together, in milliseconds. Plans of earlier versions have the groups alone.
    """
    explanation = explain(plan)
    title = f"{plan.graph_name} on {plan.gpus} GPUs of {plan.hardware}"
    timeline = plan.timeline
    if timeline is UNSET or not timeline.lanes:
        picture, axes = Picture.of_panels(f"{title}: what takes longest")
        axes.set_title(picture.title, fontsize=10)
        _draw_groups(picture, axes, explanation)
        return picture
    picture = Picture(f"{title}: a step", (9, 9.5), layout="constrained")
    lanes, memory, groups = picture.figure.subplots(
        3, 1, height_ratios=(0.5 + 0.45 * len(timeline.lanes), 1.3, 4)
    )
    lanes.set_title(picture.title, fontsize=10)
    draw_gantt(picture, lanes, timeline)
    draw_memory(memory, timeline, plan.memory_limit_bytes)
    groups.set_title("What takes longest", fontsize=10)
    _draw_groups(picture, groups, explanation)
    return picture


def _draw_groups(picture: Picture, axes: Any, explanation: Explanation) -> None:
    groups = [group for _, group in explanation.rows[:MOST_BARS]][::-1]
    compute, communication = (
        [group.repeats * getattr(group, name) * 1e3 for group in groups]
        for name in ("compute_s", "communication_s")
    )
    places = range(len(groups))
    axes.barh(places, compute, color=GREEN, label="compute")
    axes.barh(places, communication, left=compute, color=ORANGE, label="communication")
    axes.set_yticks(
        list(places), [_short(f"{g.repeats} × {g.slowest or g.name}") for g in groups], fontsize=8
    )
    axes.set_xlabel("milliseconds of a step, before anything overlaps")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3, axis="x")
    picture.show_texts(
        axes,
        (
            (compute[i] + communication[i], float(i), f"{group.name}: {group.split}")
            for i, group in enumerate(groups)
        ),
    )


def quote_picture(quote: Quote) -> Picture:
    """Returns the cheapest offers by what a million samples cost, with the time of a step.

    Where a quote has no price of samples it is that of an hour.
    """
    offers = quote.offers[:MOST_BARS][::-1]
    samples = [offer.usd_per_million_samples for offer in offers]
    by_sample = [price for price in samples if price is not UNSET]
    prices = by_sample if len(by_sample) == len(offers) else [o.usd_per_hour for o in offers]
    picture, axes = Picture.of_panels(f"{quote.graph_name}: the cheapest offers on which it fits")
    places = range(len(offers))
    axes.barh(places, prices, color=BLUE)
    names = [
        f"{_short(f'{o.instances} × {o.instance_type}')}\n{o.provider} {o.region}"
        f"{', spot' if o.spot else ''}"
        for o in offers
    ]
    axes.set_yticks(list(places), names, fontsize=7)
    unit = "USD for a million samples" if prices is by_sample else "USD per hour"
    axes.set_xlabel(f"{unit}. {prices_dated(offers)}" if offers else unit)
    axes.set_title(picture.title, fontsize=10)
    axes.grid(alpha=0.3, axis="x")
    for place, offer in zip(places, offers, strict=True):
        axes.annotate(
            f" {step_s(offer, quote.overlap):.3g} s a step", (prices[place], place), va="center",
            fontsize=8,
        )  # fmt: skip
    axes.margins(x=0.25)
    return picture


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
