"""The linear programme of a game between paths and strategies."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise import _core
from shardwise.sharding.layout import Floats

MAX_PRICE = 100.0
"""The most that all of the limit may be priced at, in times of the longest path."""


@dataclass(frozen=True)
class Equilibrium:
    """The value of the game (seconds), the mix of paths (P,), the prices of memory per moment
    (seconds a byte), and the mix of strategies (S,)."""

    value_s: float
    paths: Floats
    prices: Floats
    strategies: Floats


def equilibrium(times_s: Floats, over_bytes: Floats, limit_bytes: float) -> Equilibrium:
    """Returns the equilibrium of S strategies and P paths under a memory limit.

    `times_s` (S, P) are the durations of a path's tasks, `over_bytes` (S, R) is how far a strategy
    exceeds the limit at a moment (negative below it).
    """
    scale_s = float(times_s.max())
    value, paths, prices, strategies = _core.equilibrium(
        times_s / scale_s, over_bytes / limit_bytes, MAX_PRICE
    )
    return Equilibrium(value * scale_s, paths, prices * (scale_s / limit_bytes), strategies)
