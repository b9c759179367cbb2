"""The backward passes of a micro-batch on a rank, and in which of them parameters get gradients.

The programs of a rank, one for each of its stages, run backward one by one. A parameter that
several of them read, as a tied weight of two stages on one rank, is there once, and gets a gradient
in the pass of each.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.execute.builder import Built
from shardwise.execute.parameters.store import Passes


def passes_of(builts: Sequence[Built]) -> dict[str, Passes]:
    """Returns for each parameter the numbers of the passes in which it gets a gradient."""
    passes: dict[str, set[int]] = {}
    for number, built in enumerate(builts):
        for name in built.parameters:
            passes.setdefault(name, set()).add(number)
    return {name: frozenset(numbers) for name, numbers in passes.items()}
