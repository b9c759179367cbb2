"""What a service says of errors and of its own health."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType


class Problem(msgspec.Struct, frozen=True):
    """An error (RFC 9457); `field` names the member that is wrong."""

    type: Annotated[str, Meta(pattern="^urn:shardwise:problem:")]
    title: str
    status: int
    detail: str
    request_id: str
    field: str | UnsetType = UNSET
    expected: str | UnsetType = UNSET


class Health(msgspec.Struct, frozen=True):
    """That the process answers."""

    status: str


class ReadinessChecks(msgspec.Struct, frozen=True):
    """What readiness depends on.

    `workers` are those that hold a lease; of them `workers_answered` were heard of within the last
    `answered_within_s` seconds. Releases before 0.2 do not say these two.
    """

    database: str
    writes: str
    broker: str
    workers: int
    workers_answered: int | UnsetType = UNSET
    answered_within_s: float | UnsetType = UNSET


class Readiness(msgspec.Struct, frozen=True):
    """Whether questions are taken and computed."""

    status: str
    checks: ReadinessChecks
