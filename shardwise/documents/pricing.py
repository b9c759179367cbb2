"""`shardwise.pricing/1`: what a given strategy of the whole model takes, and what to change."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from shardwise.documents.parallelism import Parallelism
from shardwise.documents.whole_plan import WholePlan


class Alternative(msgspec.Struct, frozen=True):
    """Another strategy: what differs in words, and its replayed step.

    `saves` is the part of the given strategy's step that it saves, negative where it is slower.
    `changes` are the fields that differ, such as `micro-batches` or `tensor parallelism`.
    """

    text: str
    changes: list[str]
    parallelism: Parallelism
    replayed_time_s: float
    peak_bytes: int
    fits: bool
    saves: float


class Pricing(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.pricing/1"):
    """A given strategy as a plan, which may not fit, and alternatives in its trainer's space.

    `trainer` is `any` for all strategies of the whole model. `alternatives` differ in one field:
    those that fit first, by their time, then by their peak. `best` is the fastest that fits of
    those that differ in any number of fields, null where none fits or where it is the given one.
    `unread` is what its configuration says that was not read, `stated` which options of the step
    it set, such as `gradients float32`. `left_out` are those lines of `unread` that change memory
    or time in the trainer: whether the strategy fits is then about another configuration.
    """

    trainer: str
    parallelism: Parallelism
    fits: bool
    plan: WholePlan
    alternatives: list[Alternative]
    best: Alternative | None
    unread: list[str]
    stated: list[str] | UnsetType = UNSET
    left_out: list[str] | UnsetType = UNSET
