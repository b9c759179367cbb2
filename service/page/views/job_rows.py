"""Jobs as lists show them, and the address of the form filled in with a job's question."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from service.page.price_fields import FIELD
from service.page.units import short
from service.questions.search_options import options_document
from shardwise.advise import Options

ACTIVE = ("queued", "running")


def rows_of(
    jobs: list[dict[str, Any]], names: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """Returns rows of a table of jobs; `names` are graphs' names by id, where they are known."""
    return [
        {**job, "about": about(job, names or {}), "active": job["state"] in ACTIVE} for job in jobs
    ]


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


def choices(job: dict[str, Any]) -> list[tuple[str, Any]]:
    """Returns the options that are not the defaults, by name."""
    usual = json.loads(json.dumps(options_document(Options())))
    options = job["question"].get("options", {})
    return [(name, value) for name, value in options.items() if value != usual.get(name)]


def form_address(job: dict[str, Any]) -> str:
    """Returns the address of the form, filled in with this question."""
    asked, options = job["question"], dict(choices(job))
    values: dict[str, Any] = {"kind": job["kind"], "graph": asked["graph"]}
    if job["kind"] == "quote" and "hardware" in asked:
        values["parts"] = values["hardware"] = asked["hardware"]
        values["hardware_id"] = asked.get("hardware_id")
        values |= {f"{FIELD}{group}": usd for group, usd in asked.get("prices", {}).items()}
    elif job["kind"] != "quote":
        values["gpus"] = asked.get("gpus", asked.get("max_gpus"))
        if "bundles" in asked:
            values["gpus"] = " ".join(asked["bundles"])
        values["hardware"] = asked.get("hardware")
        values["hardware_id"] = asked.get("hardware_id")
        values["nodes"] = asked.get("nodes")
    if asked.get("point"):
        asked = {**asked, "objective": None}
    for name in ("objective", "steps", "budget_usd", "max_instances", "combine"):
        values[name] = asked.get(name)
    if asked.get("deadline_s"):
        values["deadline_h"] = f"{asked['deadline_s'] / 3600:g}"
    for name, value in options.items():
        if name == "pins":
            values[name] = "\n".join(value)
        elif isinstance(value, list):
            values[name] = ",".join(str(item) for item in value)
        elif isinstance(value, bool):
            values[name] = "true" if value else "false"
        elif value is not None and not isinstance(value, dict):
            values[name] = f"{value:.0f}" if name.endswith("_bytes") else value
    return "/?" + urlencode({k: value for k, value in values.items() if value not in (None, "")})
