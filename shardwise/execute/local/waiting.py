"""What operators leave to the backward pass of weights, W, and how that is run (`deferred.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import GradientEdge


@dataclass(frozen=True)
class Waiting:
    """What one operator leaves to W: where gradients go, and how they are made."""

    edges: Sequence[GradientEdge]
    gradients: Callable[[], Sequence[torch.Tensor]]


@dataclass
class Deferral:
    """Notes what waits for W; `waiting` is that of the micro-batch whose forward runs."""

    waiting: list[Waiting] = field(default_factory=list)

    def begin(self) -> list[Waiting]:
        """Begins the forward of a micro-batch; returns the list that its backward fills."""
        self.waiting = []
        return self.waiting


def run_waiting(waiting: list[Waiting]) -> None:
    """Makes the gradients that wait and hands them to autograd, one operator after another; those
    of operators with a parameter in common together, so that each parameter gets one."""
    together = _together(waiting)
    waiting.clear()
    together.reverse()
    while together:
        edges: list[GradientEdge] = []
        gradients: list[torch.Tensor] = []
        for one in together.pop():
            edges += one.edges
            with torch.no_grad():
                gradients += one.gradients()
        torch.autograd.backward(edges, gradients)


def _together(waiting: Sequence[Waiting]) -> list[list[Waiting]]:
    """Returns what waits in lists that have no parameter in common."""
    lists: list[list[Waiting]] = []
    of: dict[int, list[Waiting]] = {}
    for one in waiting:
        leaves = {leaf for edge in one.edges for leaf in _leaves(edge.node)}
        mine, *others = {id(of[leaf]): of[leaf] for leaf in leaves if leaf in of}.values() or [[]]
        if not mine:
            lists.append(mine)
        for other in others:
            mine += other
            other.clear()
            of.update({leaf: mine for leaf, owner in of.items() if owner is other})
        mine.append(one)
        of.update(dict.fromkeys(leaves, mine))
    return [members for members in lists if members]


def _leaves(node: Any) -> set[int]:
    """Returns the leaves that a node's gradient reaches, by identity."""
    leaves: set[int] = set()
    nodes = [node]
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        nodes += [following for following, _ in node.next_functions if following is not None]
    return leaves
