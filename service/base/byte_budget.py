"""Bytes of bodies that are in memory at once: bounded in total and for each tenant.

Operators' bodies have room beyond the total (service/base/shares.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.base.fair_slots import busy
from service.base.shares import Shares

SMALL_BYTES = 2**20
"""A body up to this size is refused only if its own tenant holds too much."""


class ByteBudget:
    """The bytes of `shares`.

    A tenant that has nothing in memory may always read one body, however large bodies may be.
    """

    def __init__(self, shares: Shares) -> None:
        self.shares = shares

    @contextmanager
    def take(self, tenant: str, size: int) -> Iterator[Callable[[int], None]]:
        """Holds `size` bytes of the budget while the block runs; yields a function that resizes it.

        Both raise `Problem` when there is no room.
        """
        self._require(tenant, size)
        taken = size
        self.shares.take(tenant, taken)

        def resize(new: int) -> None:
            nonlocal taken
            grows = new > taken
            self.shares.give(tenant, taken)
            if grows:
                try:
                    self._require(tenant, new)
                except BaseException:
                    self.shares.take(tenant, taken)
                    raise
            taken = new
            self.shares.take(tenant, taken)

        try:
            yield resize
        finally:
            self.shares.give(tenant, taken)

    def _require(self, tenant: str, size: int) -> None:
        mine, shares = self.shares.of(tenant), self.shares
        full = size > shares.own_room(tenant)
        full |= size > SMALL_BYTES and size > shares.room(tenant)
        if mine and full:
            raise busy(f"{mine} bytes of bodies in work")
