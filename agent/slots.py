"""The host's places for ranks: each rank of a launch takes one, and with it a device."""

from __future__ import annotations

import threading
from collections.abc import Sequence


class Slots:
    """`count` places; the first ones have the devices named in `uuids`."""

    def __init__(self, count: int, uuids: Sequence[str]) -> None:
        self._uuids = list(uuids)
        self._free = list(range(count))
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """The number of free places."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Takes and returns the lowest `count` free places, or none if there are fewer."""
        with self._lock:
            if count > len(self._free):
                return []
            taken, self._free = self._free[:count], self._free[count:]
            return taken

    def give_back(self, places: Sequence[int]) -> None:
        """Frees the places."""
        with self._lock:
            self._free = sorted({*self._free, *places})

    def environment(self, places: Sequence[int]) -> dict[str, str]:
        """Returns variables that make CUDA see only the places' devices.

        Empty on a host without devices.
        """
        if not self._uuids:
            return {}
        seen = [self._uuids[place] for place in places if place < len(self._uuids)]
        return {"CUDA_VISIBLE_DEVICES": ",".join(seen)}
