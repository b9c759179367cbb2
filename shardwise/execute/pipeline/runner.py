"""Runs the list of one stage: forwards and backwards of its micro-batches, and what goes between.

Tensors that come in are leaves of the stage's own autograd graph. Backward begins from what the
stage made for others, with the gradients that come back, or from the loss; then the gradients of
the leaves go to the stage before. Of what was sent only its place in the graph is kept, not its
memory, and a gradient that came back is freed by the first that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shardwise.errors import ShardwiseError
from shardwise.execute.pipeline.boundary import Boundary
from shardwise.execute.pipeline.hops import Hops
from shardwise.execute.stage import Stage
from shardwise.pipeline.actions import Action, Kind
from shardwise.pipeline.lists import Item, Transfer

Forward = Callable[[int, Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]
"""Runs a stage's program on a micro-batch, given what came in; returns what it made, by name."""

Begin = Callable[[int], None]
"""Told before each backward how many there were in this step."""


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


class Runner:
    """Runs a stage; `before` and `behind` are what goes over its two cuts, `loss` is the name of
    what the last stage returns, None for others."""

    def __init__(
        self,
        stage: Stage,
        before: Sequence[Boundary],
        behind: Sequence[Boundary],
        hops: Hops,
        loss: str | None,
        forward: Forward,
        begin: Begin,
    ) -> None:
        self._stage = stage
        self._before = before
        self._behind = behind
        self._hops = hops
        self._loss = loss
        self._forward = forward
        self._begin = begin
        self._kept: dict[int, _Kept] = {}
        self._outbox: dict[tuple[bool, int], Mapping[str, torch.Tensor]] = {}

    def run(self, items: Sequence[Item], parts: int) -> torch.Tensor | None:
        """Runs a list; returns the mean loss of `parts` micro-batches on the last stage, else None.

        Without gradients the list has forwards only.
        """
        self._kept.clear()
        self._outbox.clear()
        total: torch.Tensor | None = None
        backwards = 0
        try:
            for item in items:
                if item.transfer is not None:
                    self._transfer(item.transfer)
                    continue
                assert item.action is not None
                if item.action.kind is Kind.FORWARD:
                    loss = self._run_forward(item.action, parts)
                    if loss is not None:
                        total = loss if total is None else total + loss
                else:
                    self._begin(backwards)
                    backwards += 1
                    self._run_backward(item.action)
            self._hops.finish()
        except BaseException:
            self._hops.forget()
            raise
        return total

    def _transfer(self, transfer: Transfer) -> None:
        if transfer.target == self._stage.number:
            self._hops.ask(transfer)
        else:
            made = self._outbox.pop((transfer.is_forward, transfer.micro_batch))
            self._hops.send(transfer, made)

    def _run_forward(self, action: Action, parts: int) -> torch.Tensor | None:
        came = self._hops.got(True, action.micro_batch)
        trains = torch.is_grad_enabled()
        for boundary in self._before:
            came[boundary.name].requires_grad_(trains and boundary.differentiable)
        made = self._forward(action.micro_batch, came)
        kept = _Kept({b.name: came[b.name] for b in self._before if b.differentiable})
        sent = {b.name: made[b.name] if b.name in made else came[b.name] for b in self._behind}
        if sent:
            self._outbox[True, action.micro_batch] = {n: t.detach() for n, t in sent.items()}
        for boundary in self._behind:
            if sent[boundary.name].requires_grad and not boundary.differentiable:
                raise ShardwiseError(f"{boundary.name} has a gradient, but none is sent back")
        kept.names = tuple(n for n, t in sent.items() if t.requires_grad and n in made)
        if kept.names:
            kept.begin = _Begin.apply(kept.gradients, *(sent[name] for name in kept.names))
        loss = None
        if self._loss is not None:
            part = made[self._loss] / parts
            loss = part.detach()
            if trains:
                kept.loss = part
        if trains:
            self._kept[action.micro_batch] = kept
        return loss

    def _run_backward(self, action: Action) -> None:
        kept = self._kept.pop(action.micro_batch)
        came_back = self._hops.got(False, action.micro_batch)
        kept.gradients += [came_back.pop(name) for name in kept.names]
        roots = [t for t in (kept.begin, kept.loss) if t is not None and t.requires_grad]
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
        kept.begin = kept.loss = None
        back: dict[str, torch.Tensor] = {}
        for boundary in self._before:
            if boundary.differentiable:
                own = kept.came[boundary.name].grad
                passed = came_back.get(boundary.name)
                back[boundary.name] = _sum(own, passed, kept.came[boundary.name])
        if back:
            self._outbox[False, action.micro_batch] = back


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
