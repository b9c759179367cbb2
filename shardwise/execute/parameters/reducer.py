"""Sums gradients while backward is still running (Li et al. 2020, §3.2.3).

Each leaf that the graph differentiates calls `arrive` once per backward pass. A full bucket is
reduced asynchronously, and buckets always in the same order, so that all ranks call the same
collectives in the same order; once the next one is on its way, the bucket's whole gradients are
freed. What is left is reduced when the pass ends, before `backward` returns. After the first step,
buckets are ordered as gradients arrived on the first rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.autograd import Variable

from shardwise.errors import InternalError
from shardwise.execute.parameters.bucket import Bucket, Slot, buckets_of
from shardwise.execute.rank_mesh import RankMesh

BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
"""The values of DistributedDataParallel."""
LONE_BYTES = {"cpu": 2**20}
LONE_BYTES_ELSEWHERE = 2**24
"""From this size on, a collective is about as fast alone, and a copy (on CPUs also new memory)
costs more than a call.
"""


class Reducer:
    """Sums the gradients of `slots` (in the order of the forward pass).

    A step has `micro_batches` backward passes; gradients are complete after the last. `after` is
    called at the end of each pass. The ranks of `mesh`, by default all, have the same slots.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        *,
        micro_batches: int,
        after: Callable[[], None],
        mesh: RankMesh | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        first_bucket_bytes: int = FIRST_BUCKET_BYTES,
    ) -> None:
        kinds = {slot.parameter.device.type for slot in slots}
        lone = min((LONE_BYTES.get(k, LONE_BYTES_ELSEWHERE) for k in kinds), default=0)
        self._limits = (min(first_bucket_bytes, bucket_bytes), bucket_bytes, lone)
        self._micro_batches = micro_batches
        self._after = after
        self._mesh = mesh
        self._slots = list(slots)
        self._places = {slot: number for number, slot in enumerate(slots)}
        self._seen: list[Slot] = []
        self._learning = True
        self._task = -1
        """The autograd pass under way, or -1."""
        self._joined = False
        """Whether passes within that one are a part of it."""
        self._pass = 0
        self._last = False
        self._next = 0
        self._arrange(self._slots[::-1])

    @property
    def buckets(self) -> Sequence[Bucket]:
        """The buckets in the order in which they are reduced."""
        return self._buckets

    def _arrange(self, slots: Sequence[Slot]) -> None:
        self._buckets = buckets_of(slots, *self._limits)
        self._ordered = [bucket for bucket in self._buckets if bucket.in_order]

    def hook(self, slot: Slot) -> Callable[[torch.Tensor], None]:
        """Returns a hook for `register_post_accumulate_grad_hook` of the slot's leaf."""
        task_of = torch._C._current_graph_task_id

        def arrive(leaf: torch.Tensor) -> None:
            gradient, leaf.grad = leaf.grad, None
            if not self._joined and task_of() != self._task:
                self._open(task_of())
            if gradient is None:
                raise InternalError(f"backward left no gradient of {slot.placement.name}")
            bucket = slot.bucket
            bucket.take(slot, gradient)
            if self._learning:
                self._seen.append(slot)
            if not bucket.waiting:
                self._advance()

        return arrive

    def begin(self, number: int) -> None:
        """Sets the number of the next backward pass in its step, from 0; else it is counted."""
        self._pass = number

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Makes passes that run inside a part of the one that is under way, which ends later."""
        self._open(torch._C._current_graph_task_id())
        self._joined = True
        try:
            yield
        finally:
            self._joined = False

    def _open(self, task: int) -> None:
        if self._task != -1:
            # The previous pass ended in an error: its callback never came.
            for bucket in self._buckets:
                bucket.abandon()
            self._pass, self._seen = 0, []
        self._task = task
        self._last = self._pass == self._micro_batches - 1
        self._next = 0
        for bucket in self._buckets:
            bucket.begin(self._pass == 0)
        Variable._execution_engine.queue_callback(self._close)

    def _advance(self) -> None:
        while self._next < len(self._ordered) and not self._ordered[self._next].waiting:
            self._ordered[self._next].launch(self._last)
            if self._next:
                self._ordered[self._next - 1].release()
            self._next += 1

    def _close(self) -> None:
        with torch.no_grad():
            self._finish()
        self._after()
        self._task = -1
        self._pass = (self._pass + 1) % self._micro_batches
        if self._learning and self._pass == 0:
            self._learn()

    def _finish(self) -> None:
        for bucket in self._ordered[self._next :]:
            bucket.launch(self._last)
        for bucket in self._ordered:
            bucket.release()
        for bucket in self._ordered:
            bucket.settle(self._last)
        for bucket in self._buckets:
            bucket.deliver(self._last)

    def _learn(self) -> None:
        """Orders buckets by arrival; those that never arrived come last."""
        order = list(dict.fromkeys(self._places[slot] for slot in self._seen))
        order += [number for number in reversed(range(len(self._slots))) if number not in order]
        self._learning, self._seen = False, []
        if self._ordered:
            shared = [order]
            src = 0 if self._mesh is None else self._mesh.world_rank(0)
            group = None if self._mesh is None else self._mesh.program_group
            dist.broadcast_object_list(shared, src=src, group=group)
            order = shared[0]
        self._arrange([self._slots[number] for number in order])
