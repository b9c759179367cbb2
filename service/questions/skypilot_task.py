"""SkyPilot's requests: a task as YAML, what it asks of Shardwise, and the changed task.

A task asks by its environment (`envs`), or by its `resources.labels` with the same names in lower
case, which clouds then see too:

    envs: {SHARDWISE_GRAPH: shipped:gpt2, SHARDWISE_STEPS: "100000"}

With `SHARDWISE_HARDWARE` the count comes from the curve on that hardware, otherwise from the
cheapest offer (`POST /v1/quotes`). SkyPilot sends and expects JSON whose strings are YAML, itself
sent as one JSON string (sky/admin_policy.py, `RestfulAdminPolicy`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from service.base.json_body import read_json
from service.base.yaml_text import dump_mapping
from shardwise.errors import BadInput
from shardwise.schedulers.counts import Count
from shardwise.schedulers.skypilot import resources as resources_of
from shardwise.validation import convert

MARK = "SHARDWISE_"
ASKS = ("GRAPH", "HARDWARE", "MAX_GPUS", "EFFICIENCY", "STEPS", "DEADLINE_S", "BUDGET_USD")
NAMES = tuple(MARK + name for name in ASKS)
LONGEST = 500
"""Characters of one value that a task gives us."""

Read = Callable[[str, str], dict[Any, Any]]
"""Returns the mapping of a YAML text; the second argument is the field that errors name."""

UNTOUCHED = ("exec",)
"""Requests that run on a cluster as it is."""

CHOSEN_HERE = ("accelerators", "instance_type", "accelerator_args")
ALTERNATIVES = ("any_of", "ordered")


class UserRequest(msgspec.Struct):
    """The members of `sky.admin_policy._UserRequestBody` that are read."""

    task: str
    skypilot_config: str = ""
    request_name: str = ""


@dataclass(frozen=True)
class Asked:
    """A task's request to Shardwise; `task` is its parsed YAML."""

    task: dict[Any, Any]
    graph: str
    hardware: str | None
    max_gpus: int | None
    efficiency: float
    steps: int | None
    deadline_s: float | None
    budget_usd: float | None


def user_request(body: bytes, max_depth: int) -> UserRequest:
    """Returns the request of a body: an object, or as SkyPilot sends it, a string that is one."""
    value = read_json(body, max_depth)
    if isinstance(value, str):
        value = read_json(value.encode("utf-8", "surrogatepass"), max_depth)
    if not isinstance(value, dict):
        raise BadInput("not a request of SkyPilot", expected="the JSON of a UserRequest")
    return convert(value, UserRequest)


def asked(request: UserRequest, read: Read) -> Asked | None:
    """Returns the task's request, parsed by `read`, or None without one.

    Raises `BadInput` naming the field.
    """
    text = request.task
    if request.request_name in UNTOUCHED or MARK.lower() not in text.lower():
        return None  # not even parsed: YAML is read only where it is needed
    task = read(text, "task")
    given = _given(task)
    if f"{MARK}GRAPH" not in given:
        if given:
            raise BadInput("missing", field=f"{MARK}GRAPH", expected="a graph's id or shipped:NAME")
        return None
    resources = task.get("resources") or {}
    for name in ALTERNATIVES:
        if name in resources:
            raise BadInput(
                "got alternatives", field=f"task.resources.{name}",
                expected=f"none with {MARK}GRAPH, which chooses the resources",
            )  # fmt: skip
    return Asked(
        task,
        given[f"{MARK}GRAPH"],
        given.get(f"{MARK}HARDWARE"),
        _number(given, f"{MARK}MAX_GPUS", int),
        _number(given, f"{MARK}EFFICIENCY", float) or 0.0,
        _number(given, f"{MARK}STEPS", int),
        _number(given, f"{MARK}DEADLINE_S", float),
        _number(given, f"{MARK}BUDGET_USD", float),
    )


def changed(ask: Asked, gpu_type: str, count: Count, *, spot: bool = False) -> str:
    """Returns the task's YAML with the count; its other resources are kept."""
    task = dict(ask.task)
    resources = dict(task.get("resources") or {})
    for name in CHOSEN_HERE:
        resources.pop(name, None)
    resources |= resources_of(gpu_type, [count])
    if spot:
        resources["use_spot"] = True
    task["resources"] = resources
    task["num_nodes"] = count.nodes
    return dump_mapping(task)


def mutated(request: UserRequest, task: str) -> str:
    """Returns `sky.admin_policy._MutatedUserRequestBody`, which is sent as one JSON string."""
    document = {"task": task, "skypilot_config": request.skypilot_config}
    return msgspec.json.encode(document).decode()


def _given(task: dict[Any, Any]) -> dict[str, str]:
    """Returns the values of labels and environment; the environment wins."""
    resources = task.get("resources")
    labels = resources.get("labels") if isinstance(resources, dict) else None
    given: dict[str, str] = {}
    if resources is not None and not isinstance(resources, dict):
        raise BadInput("not a mapping", field="task.resources", expected="a mapping")
    for where, names in (("task.resources.labels", labels), ("task.envs", task.get("envs"))):
        if names is None:
            continue
        if not isinstance(names, dict):
            raise BadInput("not a mapping", field=where, expected="a mapping")
        for name, value in names.items():
            upper = str(name).upper()
            if upper.startswith(MARK) and value is not None:
                if upper not in NAMES:
                    raise BadInput("unknown", field=f"{where}.{str(name)[:80]}",
                                   expected=", ".join(NAMES))  # fmt: skip
                given[upper] = _text(value, f"{where}.{name}")
    return given


def _text(value: Any, field: str) -> str:
    """Returns a value that we are given as text; lists and mappings are not read."""
    if isinstance(value, list | dict):
        kind = "a list" if isinstance(value, list) else "a mapping"
        raise BadInput(kind, field=field, expected="a text or a number")
    text = str(value)
    if len(text) > LONGEST:
        raise BadInput(f"{len(text)} characters", field=field, expected=f"at most {LONGEST}")
    return text


def _number(given: dict[str, str], name: str, kind: type) -> Any:
    text = given.get(name)
    if text is None:
        return None
    try:
        value = kind(text) if len(text) < 30 else None
    except ValueError:
        value = None
    if value is None or not 0 < value < float("inf"):
        what = "a whole number from 1" if kind is int else "a number above 0"
        raise BadInput(f"got {text[:40]!r}", field=name, expected=what)
    return value
