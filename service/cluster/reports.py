"""Requests of agents: enrolments, heartbeats, reports; checked before any row is touched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from service.cluster.gangs import REPORTED
from service.cluster.heartbeat import Heartbeat, HeldAssignment
from service.cluster.inventory import check_inventory
from shardwise.errors import BadInput
from shardwise.validation import convert

MAX_JOBS = 4096
MAX_LINES = 10_000
MAX_DOCUMENT_BYTES = 4 * 2**20
_UUID = re.compile(r"^[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}$")
_BOOT = re.compile(r"^[A-Za-z0-9._-]{1,64}$")


class TokenRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/agents/tokens`."""

    name: str = ""
    expires_s: float = 3600.0
    uses: int = 1


class EnrolRequest(msgspec.Struct):
    """`POST /v1/agents`. The token is the credential: no key is needed."""

    token: str
    inventory: dict[str, Any]
    name: str = ""


class JobHeld(msgspec.Struct):
    """An assignment that the agent has."""

    assignment: str
    token: str
    state: str = ""
    pid: int | None = None


class HeartbeatRequest(msgspec.Struct):
    """`POST /v1/agents/{id}/heartbeat`."""

    boot_id: str
    inventory_hash: str
    inventory: dict[str, Any] | None = None
    jobs: list[JobHeld] = []
    draining: bool = False
    reason: str | None = None


class DrainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/agents/{id}/drain`, whose body may be empty."""

    reason: str = ""


class ReportsRequest(msgspec.Struct):
    """`POST /v1/agents/{id}/reports`."""

    reports: list[dict[str, Any]]


class _Head(msgspec.Struct):
    id: str
    assignment: str
    token: str
    kind: Literal["state", "log", "result"]
    at_s: float | None = None


class StateReport(_Head):
    """The state of an assignment."""

    state: str = ""
    reason: str | None = None
    exit_code: int | None = None
    peak_rss_bytes: float | None = None


class LogReport(_Head):
    """Lines of a rank's output; `dropped` is how many the agent itself had to leave out."""

    lines: list[str] = []
    rank: int = 0
    stream: str = "stdout"
    first_line: int = 0
    dropped: int = 0


class ResultReport(_Head):
    """A document that a rank wrote."""

    name: str = ""
    document: dict[str, Any] = {}


Report = StateReport | LogReport | ResultReport
_KINDS: dict[str, type[Report]] = {
    "state": StateReport,
    "log": LogReport,
    "result": ResultReport,
}


@dataclass(frozen=True)
class Unread:
    """A report that is refused because only its id can be read."""

    id: str
    reason: str


def beat_of(ask: HeartbeatRequest) -> Heartbeat:
    """Returns the heartbeat. Raises BadInput with the field if it is invalid."""
    if not _BOOT.match(ask.boot_id):
        raise BadInput(
            f"got {ask.boot_id[:60]!r}", field="boot_id", expected="1 to 64 of A-Za-z0-9._-"
        )
    if not 1 <= len(ask.inventory_hash) <= 100:
        raise BadInput("too long, or empty", field="inventory_hash", expected="1 to 100 characters")
    if len(ask.jobs) > MAX_JOBS:
        raise BadInput(f"got {len(ask.jobs)}", field="jobs", expected=f"at most {MAX_JOBS}")
    if ask.inventory is not None:
        check_inventory(ask.inventory)
    jobs = [HeldAssignment(job.assignment[:80], job.token[:80]) for job in ask.jobs]
    return Heartbeat(
        ask.boot_id, ask.inventory_hash, jobs, ask.draining, ask.reason or "", ask.inventory
    )


def reports_of(ask: ReportsRequest, most: int) -> list[Report | Unread]:
    """Returns the reports in their order; one that cannot be read is refused by its id.

    Raises BadInput for too many, or for one without an id to refuse it by.
    """
    if len(ask.reports) > most:
        raise BadInput(f"got {len(ask.reports)}", field="reports", expected=f"at most {most}")
    reports: list[Report | Unread] = []
    for i, document in enumerate(ask.reports):
        report_id = document.get("id")
        if not isinstance(report_id, str) or not _UUID.match(report_id):
            raise BadInput("no id", field=f"reports[{i}].id", expected="a UUID")
        try:
            reports.append(_report(document))
        except BadInput as error:
            reports.append(Unread(report_id, str(error)[:300]))
    return reports


def _report(document: dict[str, Any]) -> Report:
    kind = document.get("kind")
    shape = _KINDS.get(kind) if isinstance(kind, str) else None
    if shape is None:
        raise BadInput(f"{kind!r}"[:60], field="kind", expected=", ".join(_KINDS))
    report = convert(document, shape)
    if isinstance(report, StateReport):
        peak = report.peak_rss_bytes
        code = report.exit_code
        _demand(report.state in REPORTED, "state", f"{report.state[:40]!r}", ", ".join(REPORTED))
        _demand(peak is None or 0 <= peak < 2**63, "peak_rss_bytes", f"{peak}", "bytes")
        _demand(code is None or abs(code) < 2**31, "exit_code", f"{code}", "an exit status")
    elif isinstance(report, LogReport):
        counts = f"at most {MAX_LINES}"
        _demand(len(report.lines) <= MAX_LINES, "lines", f"{len(report.lines)}", counts)
        _demand(0 <= report.rank < 2**20, "rank", f"{report.rank}", "a rank")
        _demand(1 <= len(report.stream) <= 16, "stream", "empty or too long", "1 to 16 characters")
        _demand(0 <= report.first_line < 2**62, "first_line", f"{report.first_line}", "a number")
        _demand(0 <= report.dropped < 2**53, "dropped", f"{report.dropped}", "a count")
    else:
        size = len(msgspec.json.encode(report.document))
        _demand(size <= MAX_DOCUMENT_BYTES, "document", f"{size} bytes", f"{MAX_DOCUMENT_BYTES}")
        _demand(1 <= len(report.name) <= 200, "name", "too long, or empty", "1 to 200 characters")
    return report


def _demand(holds: bool, field: str, problem: str, expected: str) -> None:
    if not holds:
        raise BadInput(problem, field=field, expected=expected)
