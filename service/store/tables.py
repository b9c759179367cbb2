"""The tables. Times are seconds since 1970 by the database's clock, sizes are bytes."""

from __future__ import annotations

from typing import Any, get_args

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    false,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from shardwise.documents.jobs import JobActive, JobEnded, JobState

ACTIVE = get_args(JobActive)
ENDED = get_args(JobEnded)
STATES = get_args(JobState)
_TOOK = text("took_s IS NOT NULL")
_WANTED = text("state IN ('queued', 'running', 'done') AND NOT cancel_requested")


class Base(DeclarativeBase):
    """Named constraints, so that both databases can be migrated."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Tenant(Base):
    """The owner of graphs, profiles, questions and keys. `limits` overrides settings.

    `deleting_at`: its deletion was requested, and the sweeper removes its rows; `deleting_for` is
    the tenant whose audit records that the last one is gone.
    """

    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_at: Mapped[float] = mapped_column(Double)
    limits: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    deleting_at: Mapped[float | None] = mapped_column(Double)
    deleting_for: Mapped[str | None] = mapped_column(String(64))


class Key(Base):
    """An API key: its public id and the hash of its secret. `scopes` is comma-separated.

    `agent_id`: the one agent whose key it is; such a key only allows that agent's own calls.
    `created_by` is the key that created it, `replaces` the key that it was rotated from; both are
    None for keys created on the shell. `once_hash` is of the Idempotency-Key and request that
    created it. The sweeper sets `revoked_at` of an expired key to its expiry, because releases
    before schema 0007 check nothing else.
    """

    __tablename__ = "keys"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(200))
    secret_hash: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[str] = mapped_column(String(100))
    rate_per_s: Mapped[float | None] = mapped_column(Double)
    created_at: Mapped[float] = mapped_column(Double)
    revoked_at: Mapped[float | None] = mapped_column(Double)
    agent_id: Mapped[str | None] = mapped_column(String(64))
    expires_at: Mapped[float | None] = mapped_column(Double)
    last_used_at: Mapped[float | None] = mapped_column(Double)
    created_by: Mapped[str | None] = mapped_column(String(32))
    replaces: Mapped[str | None] = mapped_column(String(32))
    once_hash: Mapped[str | None] = mapped_column(String(64))


class LoginSession(Base):
    """A person's login at the page, in one tenant. `id` is the hash of the cookie.

    `subject` is the provider's id of the person; `groups` are those of the provider's groups that a
    rule names, from which the tenants and scopes follow each time (service/login/rules.py).
    """

    __tablename__ = "sessions"
    __table_args__ = (Index("ix_sessions_subject", "subject", "created_at"),)

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    subject: Mapped[str] = mapped_column(String(255))
    name: Mapped[str] = mapped_column(String(100))
    groups: Mapped[list[str]] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(Double)
    expires_at: Mapped[float] = mapped_column(Double, index=True)


class GraphBlob(Base):
    """The canonical JSON of a graph, zlib-compressed, stored once for all owners."""

    __tablename__ = "graph_blobs"

    id: Mapped[str] = mapped_column(String(71), primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)


class OwnedGraph(Base):
    """A tenant's ownership of a graph, with the summary for lists."""

    __tablename__ = "graphs"
    __table_args__ = (Index("ix_graphs_listed", "tenant_id", "created_at", "graph_id"),)

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    graph_id: Mapped[str] = mapped_column(
        ForeignKey("graph_blobs.id"), primary_key=True, index=True
    )
    created_at: Mapped[float] = mapped_column(Double)
    name: Mapped[str] = mapped_column(Text)
    size_bytes: Mapped[int] = mapped_column(Integer)
    summary: Mapped[dict[str, Any]] = mapped_column(JSON)


class HardwareProfile(Base):
    """A profile that a tenant has; built-in ones are not rows.

    Profiles of one name are its versions, counted from 1 in the order in which they came.
    `previous_id` is the profile that a refit started from, `origin` how it was created:
    uploaded, measured or refit. `summary` is what lists show of it; rows of a release that only
    knows schema 0005 have neither it nor a size until retention fills them in.
    """

    __tablename__ = "hardware"
    __table_args__ = (Index("ix_hardware_listed", "tenant_id", "created_at", "hardware_id"),)

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    hardware_id: Mapped[str] = mapped_column(String(71), primary_key=True)
    created_at: Mapped[float] = mapped_column(Double)
    name: Mapped[str] = mapped_column(Text)
    document: Mapped[dict[str, Any]] = mapped_column(JSON)
    version: Mapped[int] = mapped_column(Integer, server_default="1")
    previous_id: Mapped[str | None] = mapped_column(String(71))
    size_bytes: Mapped[int] = mapped_column(Integer, server_default="0")
    summary: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    origin: Mapped[str | None] = mapped_column(String(16))


class QuestionBlob(Base):
    """A large part of questions (a profile, a table of offers), zlib-compressed JSON, stored once
    for all jobs that refer to it."""

    __tablename__ = "question_blobs"

    id: Mapped[str] = mapped_column(String(71), primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)


class AcceptedBytes(Base):
    """Bytes of bodies that a tenant has stored on a day, counted in days since 1970."""

    __tablename__ = "accepted_bytes"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    day: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    size_bytes: Mapped[int] = mapped_column(BigInteger)


class Job(Base):
    """A question that is to be computed, or was.

    `content_id` names the question (questions/question.py); of one tenant's jobs with the same
    content id at most one is queued, running or done and not to be cancelled: that index is the
    single flight.
    `lease_token` is the claim under which a worker may write; `rung_at` is when it was last
    rung for. `blob_id` is the blob that the question refers to, if it does (question_blobs.py).
    `priority`, `cost_s` and `turn_s` decide the order among a tenant's own jobs
    (questions/fair_order.py): `cost_s` is the estimate of the solve, `turn_s` the time from which
    on it counts as due. `model_s` is the estimate before its correction by past jobs, `size` the
    features by which they are compared (questions/job_size.py); `took_s` is the time that this job
    took. Its worker claimed it at `claimed_at`, and its `progress` is that of `progress_at`.
    `gave_way`: it has left a slot for short jobs once, and does not again.
    Of its `attempts` those are `forgiven` after which a curve came to know another count: they do
    not make the job hopeless.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index(
            "uq_jobs_single_flight",
            "tenant_id",
            "content_id",
            unique=True,
            sqlite_where=_WANTED,
            postgresql_where=_WANTED,
        ),
        Index("ix_jobs_listed", "tenant_id", "created_at", "id"),
        Index("ix_jobs_swept", "state", "rung_at"),
        Index("ix_jobs_graph", "tenant_id", "graph_id"),
        Index("ix_jobs_content", "tenant_id", "content_id"),
        Index("ix_jobs_ended", "tenant_id", "ended_at"),
        Index("ix_jobs_fair", "state", "tenant_id", "priority", "turn_s", "id"),
        Index(
            "ix_jobs_took",
            "tenant_id",
            "kind",
            "ended_at",
            sqlite_where=_TOOK,
            postgresql_where=_TOOK,
        ),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    kind: Mapped[str] = mapped_column(String(16))
    content_id: Mapped[str] = mapped_column(String(71))
    graph_id: Mapped[str] = mapped_column(String(71))
    question: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[str] = mapped_column(String(16))
    stage: Mapped[str] = mapped_column(Text, default="")
    progress: Mapped[float] = mapped_column(Double, default=0.0)
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    cancel_requested: Mapped[bool] = mapped_column(Boolean, default=False)
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    lease_token: Mapped[str | None] = mapped_column(String(32))
    lease_expires_at: Mapped[float | None] = mapped_column(Double)
    rung_at: Mapped[float] = mapped_column(Double)
    created_at: Mapped[float] = mapped_column(Double)
    started_at: Mapped[float | None] = mapped_column(Double)
    ended_at: Mapped[float | None] = mapped_column(Double)
    key_id: Mapped[str | None] = mapped_column(String(32))
    request_id: Mapped[str] = mapped_column(String(64))
    trace: Mapped[str | None] = mapped_column(String(64))
    blob_id: Mapped[str | None] = mapped_column(String(71), index=True)
    priority: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    cost_s: Mapped[float] = mapped_column(Double, default=5.0, server_default="5")
    turn_s: Mapped[float] = mapped_column(Double, default=0.0, server_default="0")
    model_s: Mapped[float | None] = mapped_column(Double)
    took_s: Mapped[float | None] = mapped_column(Double)
    size: Mapped[dict[str, float | str] | None] = mapped_column(JSON(none_as_null=True))
    claimed_at: Mapped[float | None] = mapped_column(Double)
    progress_at: Mapped[float | None] = mapped_column(Double)
    gave_way: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    forgiven: Mapped[int] = mapped_column(Integer, default=0, server_default="0")


class Attained(Base):
    """The service that a tenant has had: seconds of solving, over its weight.

    It is not a column of `tenants`: every claim writes it, and must not wait for a transaction that
    has locked that row to count what the tenant stores.
    """

    __tablename__ = "attained"

    tenant_id: Mapped[str] = mapped_column(
        ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True
    )
    virtual_s: Mapped[float] = mapped_column(Double)


class Result(Base):
    """The answer to a question, as the bytes that are sent. `answer_id`: a plan's own id."""

    __tablename__ = "results"
    __table_args__ = (
        Index("ix_results_answer", "tenant_id", "answer_id"),
        Index("ix_results_made", "tenant_id", "created_at"),
    )

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    content_id: Mapped[str] = mapped_column(String(71), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    graph_id: Mapped[str] = mapped_column(String(71))
    answer_id: Mapped[str | None] = mapped_column(String(71))
    created_at: Mapped[float] = mapped_column(Double)
    content: Mapped[bytes] = mapped_column(LargeBinary)
    etag: Mapped[str] = mapped_column(String(80))
    size_bytes: Mapped[int] = mapped_column(Integer, server_default="0")


class CurvePoint(Base):
    """A count of GPUs, or a bundle of devices, of a tenant's curves.

    `point_id` names it with all that it depends on (questions/curves.py). `content` is the curve of
    it alone, None until that is known. While a job computes it, `job_id` and `lease_token` are that
    job's: the lease holds as long as the job's own. `attempts` counts how often it was begun;
    `reason` says why the last attempt ended without it. `changed_at` is when it was begun or became
    known.
    """

    __tablename__ = "curve_points"
    __table_args__ = (
        Index("ix_curve_points_changed", "tenant_id", "changed_at"),
        Index("ix_curve_points_graph", "tenant_id", "graph_id"),
    )

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    point_id: Mapped[str] = mapped_column(String(71), primary_key=True)
    graph_id: Mapped[str] = mapped_column(String(71))
    changed_at: Mapped[float] = mapped_column(Double)
    content: Mapped[bytes | None] = mapped_column(LargeBinary)
    size_bytes: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    attempts: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    reason: Mapped[str | None] = mapped_column(Text)
    job_id: Mapped[str | None] = mapped_column(String(64))
    lease_token: Mapped[str | None] = mapped_column(String(32))


class Idempotency(Base):
    """An Idempotency-Key with the answer that it got; a repeat gets the same.

    `reference` says where the large members of the answer are, which `content` leaves out
    (service/edge/idempotency.py).
    """

    __tablename__ = "idempotency"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request_hash: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(Double, index=True)
    status: Mapped[int] = mapped_column(Integer)
    headers: Mapped[dict[str, str]] = mapped_column(JSON)
    content: Mapped[bytes] = mapped_column(LargeBinary)
    reference: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class Audit(Base):
    """The audit: every request that stores, starts, cancels or deletes something.

    `actor` names the person, if one signed in; else `key_id` names the key.
    """

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_listed", "tenant_id", "at", "id"),)

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    at: Mapped[float] = mapped_column(Double, index=True)
    tenant_id: Mapped[str] = mapped_column(String(64))
    key_id: Mapped[str | None] = mapped_column(String(32))
    request_id: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(100))
    target: Mapped[str] = mapped_column(Text)
    status: Mapped[int] = mapped_column(Integer)
    actor: Mapped[str | None] = mapped_column(Text)


class WorkerRow(Base):
    """A worker process that lives, or did until `seen_at`.

    `by_reference`: it reads questions that refer to a blob, which older releases do not.
    """

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    host: Mapped[str] = mapped_column(Text)
    pid: Mapped[int] = mapped_column(Integer)
    slots: Mapped[int] = mapped_column(Integer)
    started_at: Mapped[float] = mapped_column(Double)
    seen_at: Mapped[float] = mapped_column(Double)
    by_reference: Mapped[bool] = mapped_column(Boolean, server_default=false())


class Watch(Base):
    """A curve whose points are metrics, under a name; it goes with its graph."""

    __tablename__ = "watches"
    __table_args__ = (
        ForeignKeyConstraint(
            ["tenant_id", "graph_id"],
            ["graphs.tenant_id", "graphs.graph_id"],
            name="fk_watches_tenant_id_graphs",
            ondelete="CASCADE",
        ),
    )

    tenant_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    created_at: Mapped[float] = mapped_column(Double)
    content_id: Mapped[str] = mapped_column(String(71))
    graph_id: Mapped[str] = mapped_column(String(71))
    hardware: Mapped[str] = mapped_column(String(100))
    max_gpus: Mapped[int] = mapped_column(Integer)
    bundles: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """For a curve over several kinds, whose `max_gpus` is the largest bundle's number of
    devices."""


class SchemaFloor(Base):
    """One row: releases that know this revision work on the schema, even if it is newer.

    A migration that only adds leaves it; one that removes or changes sets it to its own.
    """

    __tablename__ = "schema_floor"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    revision: Mapped[str] = mapped_column(String(32))
