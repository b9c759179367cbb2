"""What a service says of jobs, watched curves, allocations and quotas. Moments are ISO 8601."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from shardwise.documents.curve import Curve, CurvePoint
from shardwise.documents.problems import Problem

JobKind = Literal["frontier", "curve", "plan", "pricing", "quote", "compare"]
JobActive = Literal["queued", "running"]
JobEnded = Literal["done", "failed", "cancelled"]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]
WaitReason = Literal[
    "running", "slot", "own-jobs", "own-priority", "other-tenants", "max-running", "worker"
]
"""What a job waits for."""


class QueuePlace(msgspec.Struct, frozen=True):
    """Where a job is in the queue, and when it is expected to start and to end."""

    place: int | None
    of: int
    code: WaitReason
    waits_for: str | None
    starts_at: str | None
    ends_at: str | None


class JobError(msgspec.Struct, frozen=True):
    """Why a job failed."""

    type: str
    title: str
    detail: str


class Job(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.job/1"):
    """A question that is being computed or was; `progress` is the fraction done.

    `so_far` is the curve as far as it is known, of one that is being computed; in the events of its
    stream `points` are those that have become known since the event before.
    """

    id: str
    kind: JobKind
    state: JobState
    stage: str
    progress: float
    question: dict[str, Any]
    content_id: str
    error: JobError | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    location: str
    attempts: int | UnsetType = UNSET
    cancel_requested: bool | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    result: dict[str, Any] | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    queue: QueuePlace | UnsetType | None = UNSET
    so_far: Curve | UnsetType = UNSET
    points: list[CurvePoint] | UnsetType = UNSET


class JobPage(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.page/1"):
    """A page of jobs; `next` is the cursor of the next one."""

    items: list[Job]
    next: str | None


class Event(msgspec.Struct, frozen=True):
    """An event of a job's stream; `data` is the job as JSON."""

    id: str
    event: Literal["progress", "done", "failed", "cancelled"]
    data: Annotated[
        str,
        Meta(
            extra_json_schema={
                "contentMediaType": "application/json",
                "contentSchema": {"$ref": "#/components/schemas/Job"},
            }
        ),
    ]


class Pending(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.pending/1"):
    """The jobs that an answer waits for."""

    waiting_for: list[Job]


class CurveItem(msgspec.Struct, frozen=True):
    """The state of one curve of many: with its `result`, the `job` that computes it, or why it was
    refused or failed."""

    state: JobState
    etag: str | UnsetType = UNSET
    result: Curve | UnsetType = UNSET
    job: Job | UnsetType = UNSET
    so_far: Curve | UnsetType = UNSET
    error: Problem | UnsetType = UNSET


class Curves(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.curves/1"):
    """Many curves, in the order of their questions."""

    items: list[CurveItem]


def curves_of(curves: Iterable[Curve]) -> Curves:
    """Returns curves that are computed as one document."""
    return Curves([CurveItem("done", result=curve) for curve in curves])


class AllocatedJob(msgspec.Struct, frozen=True):
    """What one job gets; `gpus` is 0 if it waits.

    `share_of_alone` is its rate over that with all GPUs to itself.
    """

    name: str
    gpus: int
    time_s: float | None
    samples_per_s: float
    share_of_alone: float
    weight: float
    meets_deadline: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class Allocation(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.allocation/1"):
    """How GPUs are shared among jobs."""

    objective: str
    gpus: int
    gpus_used: int
    samples_per_s: float
    smallest_share: float | None
    deadlines_met: int
    jobs: list[AllocatedJob]


class Watch(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.watch/1"):
    """A curve that the service keeps known.

    Of one over several kinds of devices there are the `bundles`, and `max_gpus` is the most devices
    of one.
    """

    name: str
    graph: str
    hardware: str
    max_gpus: int
    created_at: str
    job: Job | UnsetType = UNSET
    bundles: list[str] | UnsetType = UNSET


class WatchPage(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.page/1"):
    """All watched curves."""

    items: list[Watch]
    next: str | None


class QuotaUse(msgspec.Struct, frozen=True):
    """How much of a quota is used."""

    used: int
    limit: int
    what: str


class Usage(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.usage/1"):
    """What a tenant has used of each quota, by the setting's name."""

    quotas: dict[str, QuotaUse]
    day_ends_at: str
