"""The linear programme of a game between paths and strategies."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise import _core
from shardwise.sharding.layout import Floats

MAX_PRICE = 100.0
"""Upper bound on the price of the whole limit, in times of the longest path."""


@dataclass(frozen=True)
class Equilibrium:
    """The value of the game (seconds), the mixture of paths (P,), the price of memory per moment
    (seconds per byte), and the mixture of strategies (S,)."""

    value_s: float
    paths: Floats
    prices: Floats
    strategies: Floats


def equilibrium(times_s: Floats, over_bytes: Floats, limit_bytes: float) -> Equilibrium:
    """Returns the equilibrium of S strategies and P paths under a memory limit.

    `times_s` (S, P) are the sums of durations along each path, `over_bytes` (S, R) a strategy's
    excess over the limit at each moment (negative below it).
    """
    scale_s = float(times_s.max())
    value, paths, prices, strategies = _core.equilibrium(
        times_s / scale_s, over_bytes / limit_bytes, MAX_PRICE
    )
    return Equilibrium(value * scale_s, paths, prices * (scale_s / limit_bytes), strategies)
