"""Jobs as lists show them, and the address of the form filled in with a job's question."""

from __future__ import annotations

import datetime
import json
from typing import Any
from urllib.parse import urlencode

from service.page.forms import hours_text
from service.page.price_fields import FIELD
from service.page.units import seconds, short
from service.questions.search_options import options_document
from shardwise.answers import Options
from shardwise.pipeline.asked import DEFAULT_SCHEDULES

ACTIVE = ("queued", "running")
MOST_COUNTS = 8
"""Counts of a curve that are listed."""


def rows_of(
    jobs: list[dict[str, Any]], names: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """Returns rows of a table of jobs; `names` are graphs' names by id, where they are known."""
    return [
        {
            **job,
            "about": about(job, names or {}),
            "active": job["state"] in ACTIVE,
            "waiting": waiting(job),
        }
        for job in jobs
    ]


def waiting(job: dict[str, Any]) -> str:
    """Returns a queued job's place, what it waits for and when it is expected to start and end;
    of a running one when it is expected to end. No text where nothing is known."""
    queue = job.get("queue")
    if not queue or job["state"] not in ACTIVE:
        return ""
    ends = _until(queue["ends_at"])
    if job["state"] == "running":
        return f"expected to end {ends}" if ends else ""
    before = queue["place"] - 1
    place = f"{ordinal(queue['place'])} of {queue['of']} in the queue"
    words = [place + (f", {before} before it" if before else ""), f"waits for {queue['waits_for']}"]
    starts = _until(queue["starts_at"])
    if starts:
        words.append(f"expected to start {starts}" + (f" and to end {ends}" if ends else ""))
    return "; ".join(words)


def ordinal(number: int) -> str:
    """Returns `1st`, `2nd`, `3rd`, `11th`."""
    last = (
        "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{last}"


def _until(moment: str | None) -> str:
    """Returns how long it is until a moment: `in about 2.5 min`."""
    if moment is None:
        return ""
    left = datetime.datetime.fromisoformat(moment) - datetime.datetime.now(datetime.UTC)
    left_s = left.total_seconds()
    return f"in about {seconds(float(round(left_s)))}" if left_s >= 2 else "at once"


def graph_names(graphs: list[dict[str, Any]]) -> dict[str, str]:
    """Returns names by id."""
    return {graph["id"]: graph["name"] for graph in graphs}


def about(job: dict[str, Any], names: dict[str, str]) -> str:
    """Returns the question in a few words."""
    asked = job["question"]
    graph = names.get(asked["graph"], f"graph {short(asked['graph'], 8)}")
    if job["kind"] == "quote":
        return f"{graph} on parts of {asked['hardware']}" if "hardware" in asked else graph
    gpus = asked.get("gpus", asked.get("max_gpus"))
    if "counts" in asked:
        return f"{graph} on {_counts_text(asked['counts'])} GPUs of {asked['hardware']}"
    if "bundles" in asked:
        number = len(asked["bundles"])
        return f"{graph} on {number} bundle{'' if number == 1 else 's'} of {asked['hardware']}"
    if isinstance(gpus, str):
        return f"{graph} on {gpus} of {asked['hardware']}"
    upto = "up to " if job["kind"] == "curve" else ""
    nodes = asked.get("nodes")
    where = asked.get("hardware", "?") + (
        f" in {nodes} node{'s' if nodes > 1 else ''}" if nodes else ""
    )
    return f"{graph} on {upto}{gpus} GPU{'' if gpus == 1 else 's'} of {where}"


def _counts_text(counts: list[int]) -> str:
    """Returns `8, 16 and 32`, of many counts the first and the last."""
    if len(counts) > MOST_COUNTS:
        return f"{len(counts)} counts from {counts[0]} to {counts[-1]}"
    return " and ".join(filter(None, (", ".join(map(str, counts[:-1])), str(counts[-1]))))


def choices(job: dict[str, Any]) -> list[tuple[str, Any]]:
    """Returns the options that are not the defaults, by name."""
    usual = json.loads(json.dumps(options_document(Options())))
    options = job["question"].get("options", {})
    return [(name, value) for name, value in options.items() if value != usual.get(name)]


def form_address(job: dict[str, Any]) -> str:
    """Returns the address of the form, filled in with this question."""
    return "/?" + urlencode(form_values(job))


def form_values(job: dict[str, Any]) -> dict[str, Any]:
    """Returns the form's fields with this question, by name.

    The form prices no configurations: of those it is that of a plan.
    """
    asked, options = job["question"], dict(choices(job))
    kind = "plan" if job["kind"] == "pricing" else job["kind"]
    values: dict[str, Any] = {"kind": kind, "graph": asked["graph"]}
    if job["kind"] == "quote" and "hardware" in asked:
        values["parts"] = values["hardware"] = asked["hardware"]
        values["hardware_id"] = asked.get("hardware_id")
        values |= {f"{FIELD}{group}": usd for group, usd in asked.get("prices", {}).items()}
    elif job["kind"] != "quote":
        values["gpus"] = asked.get("gpus", asked.get("max_gpus"))
        if "counts" in asked:
            counts = ",".join(map(str, asked["counts"]))
            # One count has a comma too, which tells it from a largest one.
            values["gpus"] = counts if "," in counts else f"{counts},"
        if "bundles" in asked:
            values["gpus"] = " ".join(asked["bundles"])
        values["hardware"] = asked.get("hardware")
        values["hardware_id"] = asked.get("hardware_id")
        values["nodes"] = asked.get("nodes")
    if asked.get("point"):
        asked = {**asked, "objective": None}
    for name in (
        "objective",
        "order",
        "space",
        "steps",
        "budget_usd",
        "max_instances",
        "combine",
        "proposals",
        "seed",
    ):
        values[name] = asked.get(name)
    if asked.get("deadline_s"):
        values["deadline_h"] = hours_text(asked["deadline_s"])
    stages, schedules = asked.get("stages"), asked.get("schedules", [])
    values["stages"] = ",".join(map(str, stages)) if isinstance(stages, list) else stages
    if schedules != list(DEFAULT_SCHEDULES):
        values["schedules"] = ",".join(schedules)
    for name, value in options.items():
        if name == "pins":
            values[name] = "\n".join(value)
        elif isinstance(value, list):
            values[name] = ",".join(str(item) for item in value)
        elif isinstance(value, bool):
            values[name] = "true" if value else "false"
        elif name == "power_limit_w":
            values[name] = f"{value}W"
        elif value is not None and not isinstance(value, dict):
            values[name] = f"{value:.0f}" if name.endswith("_bytes") else value
    return {name: value for name, value in values.items() if value not in (None, "")}
