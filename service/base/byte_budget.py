"""Bytes of bodies that are in memory at once: bounded in total and for each tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.base.fair_slots import busy

SMALL_BYTES = 2**20
"""A body up to this size is refused only if its own tenant holds too much."""


class ByteBudget:
    """`total` bytes, of which one tenant has at most `share`.

    A tenant that has nothing in memory may always read one body, however large bodies may be.
    """

    def __init__(self, total: int, share: int) -> None:
        self._total = total
        self._share = share
        self._taken: Counter[str] = Counter()

    @contextmanager
    def take(self, tenant: str, size: int) -> Iterator[Callable[[int], None]]:
        """Holds `size` bytes of the budget while the block runs; yields a function that resizes it.

        Both raise `Problem` when there is no room.
        """
        self._require(tenant, size)
        taken = size
        self._taken[tenant] += taken

        def resize(new: int) -> None:
            nonlocal taken
            grows = new > taken
            self._taken[tenant] -= taken
            if grows:
                try:
                    self._require(tenant, new)
                except BaseException:
                    self._taken[tenant] += taken
                    raise
            taken = new
            self._taken[tenant] += taken

        try:
            yield resize
        finally:
            self._taken[tenant] -= taken
            if self._taken[tenant] <= 0:
                del self._taken[tenant]

    def _require(self, tenant: str, size: int) -> None:
        mine = self._taken[tenant]
        full = mine + size > self._share
        full |= size > SMALL_BYTES and self._taken.total() + size > self._total
        if mine and full:
            raise busy(f"{mine} bytes of bodies in work")
