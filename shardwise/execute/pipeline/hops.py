"""Transfers between a rank and its counterparts in the stages before and behind.

Every rank sends its share of a tensor to the rank at its place in the other stage. Transfers are
asynchronous, and each is its own message (never `batch_isend_irecv`, which hangs on gloo:
pytorch#132644). Transports do not all say whether what was sent has come, other than by waiting. So
it is kept until something arrives that the other side sent after it had asked for it, and that was
not sent during the last action: then there is nothing left to wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from shardwise.errors import InternalError
from shardwise.execute.communication import CommunicationClock
from shardwise.execute.pipeline.boundary import Boundary
from shardwise.execute.pipeline.lost import RankLost, timed_out
from shardwise.pipeline.lists import Transfer

Message = tuple[Any, torch.Tensor]
"""Torch's handle of what is under way, and its memory."""


@dataclass
class _Asked:
    """What one transfer will bring."""

    transfer: Transfer
    messages: list[Message]
    tensors: dict[str, torch.Tensor]


@dataclass(frozen=True)
class _Sent:
    """A message of a transfer, sent after the first `actions` actions of this step."""

    transfer: Transfer
    actions: int
    message: Message


@dataclass
class Hops:
    """This rank's transfers over its cuts.

    `over` are by cut, of all cuts, the tensors that go over it, `counterparts` by stage the ranks
    at this one's place. `waited_s` counts the seconds for which this rank has waited for others.
    """

    over: Sequence[Sequence[Boundary]]
    counterparts: Sequence[int]
    device: torch.device
    waited_s: float = 0.0
    _sent: dict[int, deque[_Sent]] = field(default_factory=dict)
    """By rank."""
    _actions: int = 0
    _asked: dict[tuple[int, bool, int], _Asked] = field(default_factory=dict)
    """By stage, direction and micro-batch."""

    def of(self, transfer: Transfer) -> list[Boundary]:
        """Returns the tensors of a transfer: all over its cut, or those that have gradients."""
        over = self.over[transfer.cut]
        return [b for b in over if transfer.is_forward or b.differentiable]

    def send(self, transfer: Transfer, tensors: Mapping[str, torch.Tensor]) -> None:
        """Begins to send the tensors, by name; they must not be written until the step ends."""
        to = self.counterparts[transfer.target]
        for number, boundary in enumerate(self.of(transfer)):
            tensor = tensors[boundary.name].detach().contiguous()
            if tensor.shape != boundary.shape or tensor.dtype != boundary.dtype:
                raise InternalError(
                    f"{boundary.name} is {tensor.dtype} {[*tensor.shape]}, not {boundary}"
                )
            if tensor.numel():
                work = dist.isend(_bytes(tensor), to, tag=self._tag(transfer, number))
                sent = self._sent.setdefault(to, deque())
                sent.append(_Sent(transfer, self._actions, (work, tensor)))

    def ask(self, transfer: Transfer) -> None:
        """Begins to receive."""
        tensors: dict[str, torch.Tensor] = {}
        messages: list[Message] = []
        for number, boundary in enumerate(self.of(transfer)):
            tensor = torch.empty(boundary.shape, dtype=boundary.dtype, device=self.device)
            tensors[boundary.name] = tensor
            if tensor.numel():
                source = self.counterparts[transfer.source]
                work = dist.irecv(_bytes(tensor), source, tag=self._tag(transfer, number))
                messages.append((work, tensor))
        key = (transfer.target, transfer.is_forward, transfer.micro_batch)
        self._asked[key] = _Asked(transfer, messages, tensors)

    def got(self, stage: int, forward: bool, micro_batch: int) -> dict[str, torch.Tensor]:
        """Returns what a micro-batch's transfer brought a stage, by name; waits for it.

        Nothing, if none was asked for. Raises `RankLost` if it does not come in time.
        """
        self._actions += 1
        asked = self._asked.pop((stage, forward, micro_batch), None)
        if asked is None:
            return {}
        with self._waiting(f"{asked.transfer}", asked.transfer.source):
            for work, _ in asked.messages:
                work.wait()
        self._let_go(asked.transfer)
        return asked.tensors

    def _let_go(self, come: Transfer) -> None:
        """Lets go of what the other side had asked for before it sent this."""
        sent = self._sent.get(self.counterparts[come.source], deque())
        with self._waiting("a message", come.source):
            # Two ranks begin the transfers between them in the order of their numbers.
            while (
                sent
                and sent[0].transfer.number < come.number
                and sent[0].actions < self._actions - 1
            ):
                sent.popleft().message[0].wait()

    def finish(self) -> None:
        """Waits until all that was sent has come."""
        for sent in self._sent.values():
            while sent:
                with self._waiting("a message", sent[0].transfer.target):
                    sent.popleft().message[0].wait()
        self._actions = 0

    def forget(self) -> None:
        """Forgets what is under way, after an error."""
        self._sent.clear()
        self._asked.clear()
        self._actions = 0

    @contextmanager
    def _waiting(self, what: str, stage: int) -> Iterator[None]:
        """Counts the seconds inside; raises `RankLost` where the time-out ends them."""
        began = perf_counter()
        try:
            yield
        except RuntimeError as error:
            if timed_out(error):
                rank = self.counterparts[stage]
                raise RankLost(
                    f"rank {rank} (stage {stage}) did not exchange {what} in time"
                ) from error
            raise
        waited = perf_counter() - began
        self.waited_s += waited
        clock = CommunicationClock.running
        if clock is not None:
            clock.waited_s += waited

    def _tag(self, transfer: Transfer, number: int) -> int:
        return transfer.number * max(map(len, self.over)) + number


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor's memory as bytes: transports do not know all dtypes."""
    return tensor.view(-1).view(torch.uint8)
