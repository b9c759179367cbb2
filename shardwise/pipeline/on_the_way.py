"""What a stage holds while its actions run: micro-batches, and tensors that are on the way.

A rank asks for a tensor an action before it needs it (`lists.py`), so it has memory for it while
that action runs, and for a gradient until the backward pass that reads it has run. What it has sent
may be on its way until it has made the next of its kind, or its next backward pass has run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from shardwise.pipeline.actions import Kind
from shardwise.pipeline.lists import Item, lists_of
from shardwise.pipeline.schedules import schedule


class Held(NamedTuple):
    """What a stage holds while one action runs.

    `kept` micro-batches, each with what came in for it; of single micro-batches `before` tensors or
    gradients that cross the cut before the stage, and `behind` that cross the one behind it.
    """

    kept: int
    before: int
    behind: int

    def of(self, kept_bytes: float, before_bytes: float, behind_bytes: float) -> float:
        """Returns the bytes of it, from those that a micro-batch keeps beside what came in, and
        those that cross the two cuts for one."""
        own = self.kept * kept_bytes
        return own + (self.kept + self.before) * before_bytes + self.behind * behind_bytes


@lru_cache(maxsize=256)
def on_the_way(name: str, stages: int, micro_batches: int) -> tuple[tuple[Held, ...], ...]:
    """Returns for each stage of a schedule with one stage per rank what it holds while its actions
    run: all that no other exceeds."""
    made = schedule(name, ranks=stages, micro_batches=micro_batches)
    lists = lists_of(made, [True] * (stages - 1), [True] * (stages - 1))
    return tuple(_most(stage, items) for stage, items in enumerate(lists))


def _most(stage: int, items: Sequence[Item]) -> tuple[Held, ...]:
    kept = before = behind = 0
    sent: set[Kind] = set()
    seen: set[Held] = set()
    for item in items:
        if item.transfer is not None:
            forward = item.transfer.is_forward
            if item.transfer.source == stage:
                sent.add(Kind.FORWARD if forward else Kind.BACKWARD)
            elif forward:
                before += 1
            else:
                behind += 1
            continue
        assert item.action is not None
        forward = item.action.kind is Kind.FORWARD
        if forward:
            kept += 1
            before -= stage > 0
        seen.add(Held(kept, before + (Kind.BACKWARD in sent), behind + (Kind.FORWARD in sent)))
        if not forward:
            kept -= 1
            behind = max(behind - 1, 0)
            sent.clear()
        sent.discard(item.action.kind)
    return tuple(sorted(held for held in seen if not any(_exceeds(it, held) for it in seen)))


def _exceeds(one: Held, other: Held) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))
