"""The tables of agents and launches. Times are seconds since 1970 by the database's clock."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
)
from sqlalchemy.orm import Mapped, mapped_column

from service.store.tables import Base


class Enrolment(Base):
    """A token with which `uses` agents may enrol; `token_hash` is all that is kept of it.

    `used` counts them; `used_at` is when the last did, None while there are uses left. A release
    that only knows schema 0003 sets `used_at` with the use that it admits: never too many.
    `agent_id` and `once_hash` are of the newest use (see `Agent`), as such a release left them.
    """

    __tablename__ = "enrolments"
    __table_args__ = (Index("ix_enrolments_once", "tenant_id", "made_once_hash"),)

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[float] = mapped_column(Double)
    expires_at: Mapped[float] = mapped_column(Double, index=True)
    made_once_hash: Mapped[str | None] = mapped_column(String(64))
    uses: Mapped[int] = mapped_column(Integer, server_default="1")
    used: Mapped[int] = mapped_column(Integer, server_default="0")
    used_at: Mapped[float | None] = mapped_column(Double)
    agent_id: Mapped[str | None] = mapped_column(String(64))
    once_hash: Mapped[str | None] = mapped_column(String(64))


class Agent(Base):
    """A node agent. It lives while its lease does; `state` is live, or lost once that was noticed.

    `drained` is set by the administrator, `draining` by the agent; either keeps work away.
    `token_hash` is of the token that it enrolled with, `once_hash` of the Idempotency-Key and body
    of that call, so that only an agent whose answer was lost may ask again.
    """

    __tablename__ = "agents"
    __table_args__ = (
        Index("ix_agents_listed", "tenant_id", "created_at", "id"),
        Index("ix_agents_token", "token_hash", "once_hash"),
        Index("ix_agents_swept", "state", "lease_expires_at"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(200))
    key_id: Mapped[str] = mapped_column(String(32))
    token_hash: Mapped[str | None] = mapped_column(String(64))
    once_hash: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(Double)
    seen_at: Mapped[float] = mapped_column(Double)
    lease_expires_at: Mapped[float] = mapped_column(Double)
    state: Mapped[str] = mapped_column(String(16))
    boot_id: Mapped[str] = mapped_column(String(64), default="")
    inventory: Mapped[dict[str, Any]] = mapped_column(JSON)
    inventory_hash: Mapped[str] = mapped_column(String(100), default="")
    slots: Mapped[int] = mapped_column(Integer)
    drained: Mapped[bool] = mapped_column(Boolean, default=False)
    draining: Mapped[bool] = mapped_column(Boolean, default=False)
    drain_reason: Mapped[str] = mapped_column(Text, default="")


class Launch(Base):
    """A gang of ranks that runs, or ran. `ending` is how it will end once its ranks have stopped.

    `attempt` counts placements; `placed_at` is None while there is no placement.
    `size_bytes` are those of request and plan.
    """

    __tablename__ = "launches"
    __table_args__ = (
        Index("ix_launches_listed", "tenant_id", "created_at", "id"),
        Index("ix_launches_swept", "state", "placed_at"),
        Index("ix_launches_ended", "ended_at"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    kind: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text, default="")
    ending: Mapped[str | None] = mapped_column(String(16))
    request: Mapped[dict[str, Any]] = mapped_column(JSON)
    plan: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)
    summary: Mapped[dict[str, Any]] = mapped_column(JSON)
    graph_id: Mapped[str | None] = mapped_column(String(71))
    attempt: Mapped[int] = mapped_column(Integer, default=0)
    placed_at: Mapped[float | None] = mapped_column(Double)
    rendezvous_host: Mapped[str | None] = mapped_column(String(255))
    rendezvous_port: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[float] = mapped_column(Double)
    started_at: Mapped[float | None] = mapped_column(Double)
    ended_at: Mapped[float | None] = mapped_column(Double)
    time_limit_s: Mapped[float | None] = mapped_column(Double)
    log_lines: Mapped[int] = mapped_column(BigInteger, default=0)
    log_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    log_dropped: Mapped[int] = mapped_column(BigInteger, default=0)
    key_id: Mapped[str | None] = mapped_column(String(32))
    request_id: Mapped[str] = mapped_column(String(64))
    size_bytes: Mapped[int] = mapped_column(Integer, server_default="0")


class Assignment(Base):
    """One agent's part of a launch's placement.

    `token` is the claim under which the agent may report; the row keeps it after its end, so
    that late logs and results are recognised. `heard` says that the agent has sent the token: an
    assignment whose token it has never sent may be handed out again.
    """

    __tablename__ = "assignments"
    __table_args__ = (
        Index("ix_assignments_agent", "agent_id", "state"),
        Index("ix_assignments_swept", "state", "lease_expires_at"),
        Index("uq_assignments_rank", "launch_id", "attempt", "node_rank", unique=True),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(64))
    launch_id: Mapped[str] = mapped_column(ForeignKey("launches.id"))
    attempt: Mapped[int] = mapped_column(Integer)
    agent_id: Mapped[str] = mapped_column(String(64))
    agent_name: Mapped[str] = mapped_column(String(200))
    node_rank: Mapped[int] = mapped_column(Integer)
    slots: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text, default="")
    stopping: Mapped[bool] = mapped_column(Boolean, default=False)
    token: Mapped[str | None] = mapped_column(String(32))
    heard: Mapped[bool] = mapped_column(Boolean, default=False)
    lease_expires_at: Mapped[float | None] = mapped_column(Double)
    created_at: Mapped[float] = mapped_column(Double)
    claimed_at: Mapped[float | None] = mapped_column(Double)
    ended_at: Mapped[float | None] = mapped_column(Double)
    exit_code: Mapped[int | None] = mapped_column(Integer)
    peak_rss_bytes: Mapped[float | None] = mapped_column(Double)


class Report(Base):
    """Whether a report of an agent was accepted or refused, so that repeats get the same answer."""

    __tablename__ = "reports"

    agent_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    received_at: Mapped[float] = mapped_column(Double, index=True)
    refused: Mapped[str | None] = mapped_column(Text)


class LogLine(Base):
    """A line of a rank's output; `through_bytes` counts the launch's bytes up to its end."""

    __tablename__ = "launch_logs"

    launch_id: Mapped[str] = mapped_column(ForeignKey("launches.id"), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    rank: Mapped[int] = mapped_column(Integer)
    stream: Mapped[str] = mapped_column(String(16))
    line: Mapped[int] = mapped_column(BigInteger)
    text: Mapped[str] = mapped_column(Text)
    through_bytes: Mapped[int] = mapped_column(BigInteger)


JUDGED = ACCEPTED, REJECTED = ("accepted", "rejected")


class Run(Base):
    """A measurement of a launch: the measured values, and the error of the plan.

    The errors are relative and signed: measured over predicted, less 1. `held` is why no run can
    have measured this (None: it counts); `judged` is what an administrator said of it, one of
    `JUDGED`.
    """

    __tablename__ = "runs"
    __table_args__ = (
        Index("ix_runs_listed", "tenant_id", "created_at", "id"),
        Index("ix_runs_hardware", "tenant_id", "hardware_id", "created_at"),
        Index("ix_runs_launch", "launch_id"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    launch_id: Mapped[str] = mapped_column(ForeignKey("launches.id"))
    assignment_id: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[float] = mapped_column(Double, index=True)
    graph_id: Mapped[str] = mapped_column(String(71))
    graph_name: Mapped[str] = mapped_column(Text)
    hardware_id: Mapped[str] = mapped_column(String(71))
    hardware_name: Mapped[str] = mapped_column(Text)
    device_kind: Mapped[str] = mapped_column(String(100))
    iteration_error: Mapped[float | None] = mapped_column(Double)
    compute_error: Mapped[float | None] = mapped_column(Double)
    communication_error: Mapped[float | None] = mapped_column(Double)
    peak_error: Mapped[float | None] = mapped_column(Double)
    document: Mapped[dict[str, Any]] = mapped_column(JSON)
    size_bytes: Mapped[int] = mapped_column(Integer, server_default="0")
    held: Mapped[str | None] = mapped_column(Text)
    judged: Mapped[str | None] = mapped_column(String(16))
