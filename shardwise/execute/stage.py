"""The part of a strategy that a rank of a pipeline runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One stage: its operators, the tensors of earlier stages that they read, and those that they
    make for later stages, by name in the order of the graph."""

    number: int
    operators: frozenset[str]
    incoming: tuple[str, ...]
    outgoing: tuple[str, ...]
