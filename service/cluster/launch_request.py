"""The body of `POST /v1/launches`, `shardwise.launch/1`: the checks that need no rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from service.cluster.kinds import Host
from shardwise.documents import LAUNCH_SCHEMA, PLAN_SCHEMAS, LaunchRequest
from shardwise.errors import BadInput

BUILT_IN = ("shardwise.run", "shardwise.measure")
"""Entry points that every agent allows."""

MAX_AGENTS = 1024
MAX_RANKS = 4096
MAX_ARGUMENTS = 256
MAX_VARIABLES = 64
MAX_TEXT = 4096
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")
_ENTRY_POINT = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")


def check_launch(ask: LaunchRequest) -> None:
    """Raises BadInput with the field for what can be checked without rows."""
    _demand(
        ask.schema == LAUNCH_SCHEMA, "schema", f"unknown schema {ask.schema[:60]!r}", LAUNCH_SCHEMA
    )
    both = ask.plan is not None and ask.plan_id is not None
    _demand(not both, "plan_id", "a plan and the id of one", "one of them")
    planned = ask.plan is not None or ask.plan_id is not None
    if ask.kind == "measure":
        _demand(not planned, "plan", "given for a measurement", "no plan; `hardware`, `operators`")
    else:
        for name in ("hardware", "operators"):
            given = getattr(ask, name) is not None
            _demand(not given, name, "given for a run", "kind `measure`")
    entry = entry_point_of(ask)
    if entry == "shardwise.run":
        _demand(planned, "plan", "missing", "a plan document, or `plan_id`")
    good = _ENTRY_POINT.match(entry) is not None
    _demand(good, "entry_point", f"{entry[:60]!r}", "a name of the agents' allow-list")
    _check_texts(ask)
    _check_counts(ask)
    if ask.plan is not None:
        check_plan(ask.plan)


def entry_point_of(ask: LaunchRequest) -> str:
    """Returns the requested entry point, or the default of the kind."""
    return ask.entry_point or f"shardwise.{ask.kind}"


def ranks_of(ask: LaunchRequest, gpus: int | None) -> int:
    """Returns the ranks on each agent. Raises BadInput if they do not match the plan's GPUs."""
    count = ask.agents if isinstance(ask.agents, int) else len(ask.agents)
    ranks = ask.ranks_per_agent
    if ranks is None:
        if gpus is None:
            return 1
        _demand(gpus % count == 0, "agents", f"{count} for {gpus} GPUs", "a divisor of the GPUs")
        ranks = gpus // count
    if gpus is not None and ranks * count != gpus:
        raise BadInput(
            f"{count} agents of {ranks} ranks",
            field="ranks_per_agent",
            expected=f"the plan's {gpus} GPUs in all",
        )
    _demand(ranks <= MAX_RANKS, "ranks_per_agent", f"{ranks}", f"1 to {MAX_RANKS}")
    return ranks


def check_hosts(ask: LaunchRequest, hosts: Sequence[Host]) -> None:
    """Raises BadInput for what a launch may not say of the hosts of a plan on several kinds.

    The plan says how many hosts there are, of which kind, and with how many ranks.
    """
    count = ask.agents if isinstance(ask.agents, int) else len(ask.agents)
    # 1 is also what a request has that does not say how many.
    fits = count == len(hosts) or ask.agents == 1
    told = f"{len(hosts)}, or their ids in the order of the plan's nodes"
    _demand(fits, "agents", f"{count}", told)
    for name in ("ranks_per_agent", "device_kind"):
        _demand(getattr(ask, name) is None, name, "given", "nothing: the plan's nodes say it")


def check_plan(plan: dict[str, Any]) -> None:
    """Raises BadInput unless the document can be the plan or the pipeline of a launch."""
    schema = plan.get("schema")
    known = schema in PLAN_SCHEMAS
    told = " or ".join(PLAN_SCHEMAS)
    _demand(known, "plan.schema", f"unknown schema {schema!r}"[:80], told)
    for name in ("id", "graph", "hardware"):
        good = isinstance(plan.get(name), str) and len(plan[name]) <= 500
        _demand(good, f"plan.{name}", "missing or invalid", "a string, at most 500 long")
    gpus = plan.get("gpus")
    good = isinstance(gpus, int) and not isinstance(gpus, bool) and 1 <= gpus <= 10**6
    _demand(good, "plan.gpus", f"{gpus!r}"[:40], "a whole number from 1")
    _demand(
        "bundle" not in plan,
        "plan.bundle",
        "stages on several kinds of devices",
        "devices of one kind",
    )
    good = isinstance(plan.get("predicted"), dict)
    _demand(good, "plan.predicted", "missing or not an object", "an object")


def _check_texts(ask: LaunchRequest) -> None:
    _demand(
        len(ask.arguments) <= MAX_ARGUMENTS,
        "arguments",
        f"{len(ask.arguments)}",
        f"at most {MAX_ARGUMENTS}",
    )
    _demand(
        len(ask.environment) <= MAX_VARIABLES,
        "environment",
        f"{len(ask.environment)}",
        f"at most {MAX_VARIABLES}",
    )
    for i, text in enumerate(ask.arguments):
        size = f"{len(text)} characters"
        _demand(len(text) <= MAX_TEXT, f"arguments[{i}]", size, f"at most {MAX_TEXT}")
    for name, value in ask.environment.items():
        field = f"environment.{name[:60]}"
        good = _VARIABLE.match(name) is not None
        _demand(good, field, "not a variable name", "letters, digits and _")
        _demand(len(value) <= MAX_TEXT, field, f"{len(value)} characters", f"at most {MAX_TEXT}")
    for name in ("hardware", "operators", "plan_id", "device_kind"):
        value = getattr(ask, name)
        good = value is None or 1 <= len(value) <= 200
        _demand(good, name, "empty or too long", "1 to 200 characters")


def _check_counts(ask: LaunchRequest) -> None:
    if isinstance(ask.agents, int):
        good = 1 <= ask.agents <= MAX_AGENTS
        _demand(good, "agents", f"{ask.agents}", f"1 to {MAX_AGENTS}, or a list of ids")
    else:
        good = 1 <= len(set(ask.agents)) == len(ask.agents) <= MAX_AGENTS
        _demand(good, "agents", f"{len(ask.agents)} ids", f"1 to {MAX_AGENTS} different ids")
    ranks = ask.ranks_per_agent
    good = ranks is None or 1 <= ranks <= MAX_RANKS
    _demand(good, "ranks_per_agent", f"{ranks}", f"1 to {MAX_RANKS}")
    good = ask.master_port == 0 or 1024 <= ask.master_port <= 65535
    _demand(good, "master_port", f"{ask.master_port}", "0 (the service chooses) or 1024 to 65535")
    for name, most in (("memory_limit_bytes", 2.0**60), ("time_limit_s", 10.0**9)):
        value = getattr(ask, name)
        good = value is None or 0 < value <= most
        _demand(good, name, f"{value}", f"above 0, at most {most:g}")


def _demand(holds: bool, field: str, problem: str, expected: str) -> None:
    if not holds:
        raise BadInput(problem, field=field, expected=expected)
