"""Concurrent units of one process: a bounded share for each tenant, and a lane for operators.

Every limit of a process that several tenants meet counts with `Shares`: slots of threads, open
streams, archives, waiting agents, bytes of bodies (service/base/limits.py lists them). A caller is
counted in a lane: its tenant's, its address's while it is not known, or that of all operators, who
must get through to help when tenants have taken all that they may.
"""

from __future__ import annotations

from collections import Counter
from math import inf

OPERATORS = " operators"
"""The lane of operators' calls, whatever their tenant; no tenant and no address has this name."""


class Shares:
    """`most` units, at most `share` of them for one lane; `kept` more are for operators."""

    def __init__(self, most: float, share: float, kept: float = 0) -> None:
        self.most = most
        self._share = share
        self._kept = kept
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """The total of all lanes."""
        return self._taken.total()

    @property
    def taken_by_one(self) -> int:
        """The largest lane's use."""
        return max(self._taken.values(), default=0)

    def of(self, lane: str) -> int:
        """Returns how much a lane has."""
        return self._taken[lane]

    def own_room(self, lane: str) -> float:
        """Returns how much more of its share a lane may take."""
        share = self._share + self._kept if lane == OPERATORS else self._share
        return share - self._taken[lane]

    def left(self, lane: str) -> float:
        """Returns how much is left, whatever the lane's share; tenants find what is kept taken."""
        kept = self._kept if lane == OPERATORS else min(self._taken[OPERATORS], self._kept)
        return self.most + kept - self._taken.total()

    def room(self, lane: str) -> float:
        """Returns how much a lane may take now."""
        return min(self.own_room(lane), self.left(lane))

    def take(self, lane: str, amount: int = 1) -> None:
        """Counts what a lane takes; `room` says whether it may."""
        self._taken[lane] += amount

    def give(self, lane: str, amount: int = 1) -> None:
        """Counts what a lane gives back."""
        self._taken[lane] -= amount
        if self._taken[lane] <= 0:
            del self._taken[lane]


def lane_of_address(address: str) -> str:
    """Returns the lane of a caller who is not known yet; no tenant has such a name."""
    return f"address {address}"


def share_of(most: int, share: int = 0) -> int:
    """Returns how much of `most` one lane may have: `share`, or half if that is 0; at least 1."""
    return min(share or max(1, most // 2), most)


def unshared(share: int) -> Shares:
    """Returns shares that are bounded for each lane alone."""
    return Shares(inf, share)
