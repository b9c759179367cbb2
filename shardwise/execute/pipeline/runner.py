"""Runs the list of one rank: forwards and backwards of its stages, and what goes between.

Received tensors are leaves of the stage's own autograd graph. Backward starts from the tensors that
the stage sent, with the gradients that come back, or from the loss; the leaves' gradients then go
to the previous stage. A sent tensor keeps its place in the graph but not its memory, and a received
gradient is freed by its first reader. Neighbouring stages on one rank pass tensors without a copy.
A split backward leaves the weight gradients to a later action (`local/deferred.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shardwise.errors import ShardwiseError
from shardwise.execute.local.waiting import Deferral, Waiting
from shardwise.execute.pipeline.boundary import Boundary
from shardwise.execute.pipeline.hops import Hops
from shardwise.execute.stage import Stage
from shardwise.pipeline.actions import Action, Kind
from shardwise.pipeline.lists import Item, Transfer

Forward = Callable[[int, Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]
"""Runs a stage's program on a micro-batch, given what came in; returns what it made, by name."""

Begin = Callable[[int], None]
"""Told before each backward of a stage how many of it there were in this step."""


RunWeights = Callable[[list[Waiting], int], None]
"""Runs W of a micro-batch: what waits, and how many there were before in this step."""


@dataclass
class _Kept:
    """What backward of a micro-batch needs: what came in with a gradient, and where it begins.

    `begin` hands out the gradients of what was sent, those of `names`, once they are in
    `gradients`.
    """

    came: Mapping[str, torch.Tensor]
    names: tuple[str, ...] = ()
    gradients: list[torch.Tensor] = field(default_factory=list)
    begin: torch.Tensor | None = None
    loss: torch.Tensor | None = None


@dataclass(frozen=True)
class Chunk:
    """One of a rank's stages; `before` and `behind` are what goes over its two cuts, `loss` is the
    name of what the last stage returns, None for others."""

    stage: Stage
    before: Sequence[Boundary]
    behind: Sequence[Boundary]
    loss: str | None
    forward: Forward
    begin: Begin
    weights: RunWeights | None = None


_Turn = tuple[int, bool, int]
"""A stage, whether it runs forward, and a micro-batch."""


class Runner:
    """Runs the stages of a rank; `deferral` is there where backward is split."""

    def __init__(
        self, chunks: Sequence[Chunk], hops: Hops, deferral: Deferral | None = None
    ) -> None:
        self._chunks = {chunk.stage.number: chunk for chunk in chunks}
        self._hops = hops
        self._deferral = deferral
        self._waiting: dict[tuple[int, int], list[Waiting]] = {}
        self._weights: Counter[int] = Counter()
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._backwards: Counter[int] = Counter()
        self._outbox: dict[_Turn, Mapping[str, torch.Tensor]] = {}
        self._here: dict[_Turn, Mapping[str, torch.Tensor]] = {}

    def run(self, items: Sequence[Item], parts: int) -> torch.Tensor | None:
        """Runs a list; returns the mean loss of `parts` micro-batches on the rank of the last
        stage, else None.

        Without gradients the list has forwards only.
        """
        self._forget()
        total: torch.Tensor | None = None
        try:
            for item in items:
                if isinstance(item, Transfer):
                    self._transfer(item)
                    continue
                if item.kind is Kind.FORWARD:
                    loss = self._run_forward(item, parts)
                    if loss is not None:
                        total = loss if total is None else total + loss
                if item.kind in (Kind.BACKWARD, Kind.INPUTS):
                    self._run_backward(item)
                if item.kind in (Kind.BACKWARD, Kind.WEIGHTS):
                    self._run_weights(item)
            self._hops.finish()
        except BaseException:
            self._hops.forget()
            raise
        return total

    def _forget(self) -> None:
        """Forgets what a step that failed has left."""
        for left in (self._kept, self._backwards, self._outbox, self._here, self._waiting):
            left.clear()
        self._weights.clear()

    def _transfer(self, transfer: Transfer) -> None:
        if transfer.target in self._chunks:
            self._hops.ask(transfer)
        else:
            key = (transfer.source, transfer.is_forward, transfer.micro_batch)
            self._hops.send(transfer, self._outbox.pop(key))

    def _hand_on(
        self, source: int, target: int, micro_batch: int, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        """Leaves tensors for a neighbour: here if this rank has it, else to be sent."""
        forward = source < target
        if target in self._chunks:
            self._here[target, forward, micro_batch] = tensors
        else:
            self._outbox[source, forward, micro_batch] = tensors

    def _got(self, stage: int, forward: bool, micro_batch: int) -> dict[str, torch.Tensor]:
        """Returns what a neighbour has made for a stage."""
        came = self._hops.got(stage, forward, micro_batch)
        came.update(self._here.pop((stage, forward, micro_batch), {}))
        return came

    def _run_forward(self, action: Action, parts: int) -> torch.Tensor | None:
        chunk, number = self._chunks[action.stage], action.stage
        came = self._got(number, True, action.micro_batch)
        trains = torch.is_grad_enabled()
        for boundary in chunk.before:
            came[boundary.name].requires_grad_(trains and boundary.differentiable)
        if self._deferral is not None and trains:
            self._waiting[number, action.micro_batch] = self._deferral.begin()
        made = chunk.forward(action.micro_batch, came)
        kept = _Kept({b.name: came[b.name] for b in chunk.before if b.differentiable})
        sent = {b.name: made[b.name] if b.name in made else came[b.name] for b in chunk.behind}
        if sent:
            detached = {n: t.detach() for n, t in sent.items()}
            self._hand_on(number, number + 1, action.micro_batch, detached)
        for boundary in chunk.behind:
            if sent[boundary.name].requires_grad and not boundary.differentiable:
                raise ShardwiseError(f"{boundary.name} has a gradient, but none is sent back")
        kept.names = tuple(n for n, t in sent.items() if t.requires_grad and n in made)
        if kept.names:
            kept.begin = _Begin.apply(kept.gradients, *(sent[name] for name in kept.names))
        loss = None
        if chunk.loss is not None:
            part = made[chunk.loss] / parts
            loss = part.detach()
            if trains:
                kept.loss = part
        if trains:
            self._kept[number, action.micro_batch] = kept
        return loss

    def _run_backward(self, action: Action) -> None:
        chunk, number = self._chunks[action.stage], action.stage
        chunk.begin(self._backwards[number])
        self._backwards[number] += 1
        kept = self._kept.pop((number, action.micro_batch))
        came_back = self._got(number, False, action.micro_batch)
        kept.gradients += [came_back.pop(name) for name in kept.names]
        roots = [t for t in (kept.begin, kept.loss) if t is not None and t.requires_grad]
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
        kept.begin = kept.loss = None
        back: dict[str, torch.Tensor] = {}
        for boundary in chunk.before:
            if boundary.differentiable:
                own = kept.came[boundary.name].grad
                passed = came_back.get(boundary.name)
                back[boundary.name] = _sum(own, passed, kept.came[boundary.name])
        if back:
            self._hand_on(number, number - 1, action.micro_batch, back)

    def _run_weights(self, action: Action) -> None:
        chunk, number = self._chunks[action.stage], action.stage
        if chunk.weights is None:
            return
        waiting = self._waiting.pop((number, action.micro_batch))
        chunk.weights(waiting, self._weights[number])
        self._weights[number] += 1


class _Begin(torch.autograd.Function):  # type: ignore[misc]
    """Where backward of what was sent begins: it hands out `gradients`, and keeps none of them."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor], *sent: torch.Tensor) -> torch.Tensor:
        ctx.handed_out = gradients
        return sent[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        gradients = tuple(ctx.handed_out)
        ctx.handed_out.clear()
        return None, *gradients


def _sum(own: torch.Tensor | None, passed: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """Returns the gradient of a tensor that this stage and those behind it have read."""
    if own is None:
        return torch.zeros_like(like) if passed is None else passed
    return own if passed is None else own + passed
