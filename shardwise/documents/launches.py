"""What a service says of agents, launches and accuracy. Moments are ISO 8601."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

AgentState = Literal["live", "drained", "lost"]
LaunchEnded = Literal["done", "failed", "stopped", "lost"]
LaunchState = Literal["queued", "starting", "running", "done", "failed", "stopped", "lost"]
AssignmentState = Literal["waiting", "assigned", "running", "done", "failed", "stopped", "lost"]


class EnrolmentToken(
    msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.enrolment-token/1"
):
    """A token with which agents enrol; it is shown once."""

    token: str
    name: str
    uses: int
    expires_at: str


class Enrolled(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.enrolled/1"):
    """A new agent's id and key, shown once, and how often it is to report."""

    id: str
    key: str
    lease_s: float
    heartbeat_s: float


class AgentJob(msgspec.Struct, frozen=True):
    """An assignment that an agent has."""

    assignment: str
    launch: str
    state: AssignmentState


class Agent(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.agent/1"):
    """An agent, what it has, and what runs on it."""

    id: str
    name: str
    state: AgentState
    drained: bool
    draining: bool
    reason: str
    slots: int
    slots_free: int
    jobs: list[AgentJob]
    inventory: dict[str, Any]
    created_at: str
    seen_at: str
    location: str


class AgentPage(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.page/1"):
    """A page of agents; `next` is the cursor of the next one."""

    items: list[Agent]
    next: str | None


class Heartbeat(msgspec.Struct, frozen=True):
    """What an agent is to do: which assignments to stop, and whether to send its inventory."""

    lease_s: float
    stop: list[str]
    inventory_wanted: bool


class Rendezvous(msgspec.Struct, frozen=True):
    """Where the ranks of a launch meet."""

    id: str
    host: str
    port: int


class Assignment(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.assignment/1"):
    """One agent's part of a launch."""

    id: str
    launch: str
    token: str
    kind: str
    entry_point: str
    arguments: list[str]
    environment: dict[str, Any]
    plan: dict[str, Any] | None
    graph: dict[str, Any] | None
    hardware: str | None
    nodes: int
    node_rank: int
    ranks_per_node: int
    first_rank: int
    rendezvous: Rendezvous
    memory_limit_bytes: float | None
    time_limit_s: float | None
    lease_s: float


class NextAssignment(msgspec.Struct, frozen=True):
    """The next assignment of an agent, null when there is none."""

    assignment: Assignment | None


class RefusedReport(msgspec.Struct, frozen=True):
    """A report that was not taken, and why."""

    id: str
    reason: str


class ReportsTaken(msgspec.Struct, frozen=True):
    """What became of an agent's reports."""

    accepted: list[str]
    refused: list[RefusedReport]


class Meeting(msgspec.Struct, frozen=True):
    """The host and the port at which the ranks of a launch meet."""

    host: str
    port: int


class OutputKept(msgspec.Struct, frozen=True):
    """How much of a launch's output is stored."""

    lines: int
    bytes: int
    dropped: int


class LaunchPart(msgspec.Struct, frozen=True):
    """One agent's part of a launch as it went."""

    id: str
    agent: str
    node_rank: int
    state: AssignmentState
    agent_name: str | UnsetType = UNSET
    ranks: int | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    stopping: bool | UnsetType = UNSET
    exit_code: int | UnsetType | None = UNSET
    peak_rss_bytes: float | UnsetType | None = UNSET
    claimed_at: str | UnsetType | None = UNSET
    ended_at: str | UnsetType | None = UNSET


class Launch(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.launch/1"):
    """A run or a measurement on agents."""

    id: str
    kind: str
    state: LaunchState
    reason: str
    ending: LaunchEnded | None
    request: dict[str, Any]
    summary: dict[str, Any]
    attempt: int
    rendezvous: Meeting | None
    log: OutputKept
    created_at: str
    started_at: str | None
    ended_at: str | None
    request_id: str
    location: str
    assignments: list[LaunchPart] | UnsetType = UNSET
    runs: list[dict[str, Any]] | UnsetType = UNSET


class LaunchPage(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.page/1"):
    """A page of launches; `next` is the cursor of the next one."""

    items: list[Launch]
    next: str | None


class LaunchEvent(msgspec.Struct, frozen=True):
    """An event of a launch's stream; `data` is the launch as JSON."""

    id: str
    event: Literal["progress", "done", "failed", "stopped", "lost"]
    data: Annotated[
        str,
        Meta(
            extra_json_schema={
                "contentMediaType": "application/json",
                "contentSchema": {"$ref": "#/components/schemas/Launch"},
            }
        ),
    ]


class LogLine(msgspec.Struct, frozen=True):
    """A line of a rank's output."""

    number: int
    rank: int
    stream: str
    line: int
    text: str


class LaunchLog(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.log/1"):
    """Lines of a launch's output; `next` is the number after which to ask on."""

    launch: str
    state: LaunchState
    lines: list[LogLine]
    next: int
    more: bool
    dropped: int


class PredictionErrors(msgspec.Struct, frozen=True):
    """Measured over predicted, minus 1; null where one of them is not known."""

    iteration: float | None
    compute: float | None
    communication: float | None
    peak: float | None


class RunErrors(msgspec.Struct, frozen=True):
    """How far the predictions of one run were off."""

    id: str
    launch: str
    errors: PredictionErrors
    name: str | UnsetType = UNSET
    graph: str | UnsetType = UNSET
    graph_name: str | UnsetType = UNSET
    hardware: str | UnsetType = UNSET
    hardware_name: str | UnsetType = UNSET
    device_kind: str | UnsetType = UNSET
    held: str | UnsetType | None = UNSET
    """Why it did not count until an administrator accepted it, if it was held."""
    judged: Literal["accepted", "rejected"] | UnsetType | None = UNSET
    created_at: str | UnsetType = UNSET


class AccuracyGroup(msgspec.Struct, frozen=True):
    """The runs of one graph on one profile, and their median absolute errors."""

    graph: str
    graph_name: str
    hardware: str
    hardware_name: str
    count: int
    median_absolute_error: PredictionErrors
    last_runs: list[RunErrors]


class Accuracy(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.accuracy/1"):
    """How far predictions were off, by graph and profile."""

    runs: int
    most_runs: int
    items: list[AccuracyGroup]
    held: list[RunErrors] | UnsetType = UNSET
    """The newest runs that do not count until an administrator accepts them."""
