"""The shapes of agents' and launches' answers as JSON Schema, and examples of requests."""

from __future__ import annotations

from typing import Any

from service.gang import ASSIGNMENT_STATES, LAUNCH_ENDED, LAUNCH_STATES
from service.shapes import (
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    WHOLE,
    Shape,
    maybe,
    of,
    page,
    ref,
    schema,
    several,
)
from service.store.agents import AGENT_STATES

_ERRORS = of(
    iteration=maybe(NUMBER),
    compute=maybe(NUMBER),
    communication=maybe(NUMBER),
    peak=maybe(NUMBER),
)
_LAUNCH_STATE: Shape = {"type": "string", "enum": list(LAUNCH_STATES)}
_ASSIGNMENT_STATE: Shape = {"type": "string", "enum": list(ASSIGNMENT_STATES)}

LAUNCH_SHAPES: dict[str, Shape] = {
    "EnrolmentToken": of(
        schema=schema("enrolment-token"), token=TEXT, name=TEXT, uses=WHOLE, expires_at=TEXT,
    ),
    "Enrolled": of(
        schema=schema("enrolled"), id=TEXT, key=TEXT, lease_s=NUMBER, heartbeat_s=NUMBER,
    ),
    "Agent": of(
        schema=schema("agent"), id=TEXT, name=TEXT,
        state={"type": "string", "enum": list(AGENT_STATES)}, drained=FLAG, draining=FLAG,
        reason=TEXT, slots=WHOLE, slots_free=WHOLE,
        jobs=several(of(assignment=TEXT, launch=TEXT, state=_ASSIGNMENT_STATE)),
        inventory=OBJECT, created_at=TEXT, seen_at=TEXT, location=TEXT,
    ),
    "AgentPage": page("Agent"),
    "Heartbeat": of(lease_s=NUMBER, stop=several(TEXT), inventory_wanted=FLAG),
    "Assignment": of(
        schema=schema("assignment"), id=TEXT, launch=TEXT, token=TEXT, kind=TEXT,
        entry_point=TEXT, arguments=several(TEXT), environment=OBJECT, plan=maybe(OBJECT),
        graph=maybe(OBJECT), hardware=maybe(TEXT), nodes=WHOLE, node_rank=WHOLE,
        ranks_per_node=WHOLE, rendezvous=of(id=TEXT, host=TEXT, port=WHOLE),
        memory_limit_bytes=maybe(NUMBER), time_limit_s=maybe(NUMBER), lease_s=NUMBER,
    ),
    "NextAssignment": of(assignment=maybe(ref("Assignment"))),
    "ReportsTaken": of(
        accepted=several(TEXT), refused=several(of(id=TEXT, reason=TEXT)),
    ),
    "Launch": of(
        "schema", "id", "kind", "state", "reason", "ending", "request", "summary", "attempt",
        "rendezvous", "log", "created_at", "started_at", "ended_at", "request_id", "location",
        schema=schema("launch"), id=TEXT, kind=TEXT, state=_LAUNCH_STATE, reason=TEXT,
        ending=maybe({"type": "string", "enum": list(LAUNCH_ENDED)}), request=OBJECT,
        summary=OBJECT, attempt=WHOLE, rendezvous=maybe(of(host=TEXT, port=WHOLE)),
        log=of(lines=WHOLE, bytes=WHOLE, dropped=WHOLE), created_at=TEXT,
        started_at=maybe(TEXT), ended_at=maybe(TEXT), request_id=TEXT, location=TEXT,
        assignments=several(
            of("id", "agent", "node_rank", "state", id=TEXT, agent=TEXT, agent_name=TEXT,
               node_rank=WHOLE, ranks=WHOLE, state=_ASSIGNMENT_STATE, reason=TEXT, stopping=FLAG,
               exit_code=maybe(WHOLE), peak_rss_bytes=maybe(NUMBER), claimed_at=maybe(TEXT),
               ended_at=maybe(TEXT))
        ),
        runs=several(OBJECT),
    ),
    "LaunchPage": page("Launch"),
    "LaunchEvent": of(
        id=TEXT, event={"type": "string", "enum": ["progress", *LAUNCH_ENDED]},
        data={**TEXT, "contentMediaType": "application/json", "contentSchema": ref("Launch")},
    ),
    "LaunchLog": of(
        schema=schema("log"), launch=TEXT, state=_LAUNCH_STATE,
        lines=several(of(number=WHOLE, rank=WHOLE, stream=TEXT, line=WHOLE, text=TEXT)),
        next=WHOLE, more=FLAG, dropped=WHOLE,
    ),
    "Accuracy": of(
        schema=schema("accuracy"), runs=WHOLE, most_runs=WHOLE,
        items=several(
            of(graph=TEXT, graph_name=TEXT, hardware=TEXT, hardware_name=TEXT, count=WHOLE,
               median_absolute_error=_ERRORS,
               last_runs=several(
                   of("id", "launch", "errors", id=TEXT, launch=TEXT, name=TEXT, graph=TEXT,
                      graph_name=TEXT, hardware=TEXT, hardware_name=TEXT, device_kind=TEXT,
                      errors=_ERRORS, created_at=TEXT)
               ))
        ),
    ),
    "HardwareVersion": of(
        schema=schema("hardware-summary"), id=TEXT, name=TEXT, builtin=FLAG, provenance=TEXT,
        device=TEXT, gpus_per_node=WHOLE, memory_bytes=NUMBER, max_nodes=WHOLE, measured=FLAG,
        created_at=maybe(TEXT), version=WHOLE, previous_id=maybe(TEXT),
    ),
    "Refitted": of(
        "schema", "id", "name", "version", "previous_id", "runs",
        schema=schema("hardware-summary"), id=TEXT, name=TEXT, version=WHOLE,
        previous_id=maybe(TEXT), runs=WHOLE,
    ),
}  # fmt: skip
LAUNCH_SHAPES["HardwareVersionPage"] = of(
    "schema", "items", "next",
    schema=schema("page"), items=several(ref("HardwareVersion")), next=maybe(TEXT),
    builtin=several(ref("HardwareSummary")),
)  # fmt: skip

LAUNCH_EXAMPLES: dict[str, Any] = {
    "TokenRequest": {"name": "nodes", "expires_s": 3600.0, "uses": 8},
    "EnrolRequest": {
        "token": "swe_0000000000000000000000000000000000000000000",
        "name": "node-17",
        "inventory": {
            "schema": "shardwise.inventory/1",
            "host": "node-17",
            "cpus": 2,
            "memory_bytes": 8e9,
            "addresses": ["10.0.0.17"],
            "devices": [],
            "cpu_only": True,
            "entry_points": [{"name": "train", "description": "our training script"}],
            "slots": 2,
        },
    },
    "HeartbeatRequest": {
        "boot_id": "0f8fad5b",
        "inventory_hash": "sha256:00",
        "jobs": [],
        "draining": False,
    },
    "DrainRequest": {"reason": "new drivers"},
    "ReportsRequest": {
        "reports": [
            {
                "id": "7c9e6679-7425-40de-944b-e07fc1f90ae7",
                "assignment": "asn_0",
                "token": "0",
                "kind": "state",
                "state": "running",
            }
        ]
    },
    "LaunchRequest": {
        "kind": "measure",
        "agents": 2,
        "ranks_per_agent": 1,
        "hardware": "my-cluster",
        "time_limit_s": 600.0,
    },
    "RefitRequest": {},
}
