"""The connections that are open in this process, counted in total and for each address.

When there are too many, one that waits for a request makes room, the longest waiting first: one
whose client is done with it, or that never sent a request. One that is being answered never does.
"""

from __future__ import annotations

from collections.abc import Callable

from service.base.addresses import counted_address, plain_address, trusted_networks


class Slot:
    """The place of one connection. `evict` ends the connection at once."""

    __slots__ = ("evict", "who")

    def __init__(self, who: str | None, evict: Callable[[], None]) -> None:
        self.who = who
        self.evict = evict


class Connections:
    """Gives places to connections, at most `most` and for each address at most `most_each`."""

    def __init__(self, most: int, most_each: int, uncounted: str = "") -> None:
        """`uncounted`: addresses and networks, with commas, that only `most` bounds."""
        self._most = most
        self._most_each = most_each
        self._uncounted = trusted_networks(uncounted)
        self._open: set[Slot] = set()
        self._each: dict[str, int] = {}
        self._waiting: dict[Slot, None] = {}
        self._waiting_of: dict[str, dict[Slot, None]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, address: str, evict: Callable[[], None]) -> Slot | None:
        """Returns a place that waits for a request; None if there is none."""
        who = self._who(address)
        of_address = 0 if who is None else self._each.get(who, 0)
        if of_address >= self._most_each and not self._make_room(self._waiting_of.get(who or "")):
            return None
        if len(self._open) >= self._most and not self._make_room(self._waiting):
            return None
        slot = Slot(who, evict)
        self._open.add(slot)
        if who is not None:
            self._each[who] = self._each.get(who, 0) + 1
        self.waits(slot)
        return slot

    def waits(self, slot: Slot) -> None:
        """Notes that the connection waits for a request."""
        if slot in self._open:
            self._waiting[slot] = None
            if slot.who is not None:
                self._waiting_of.setdefault(slot.who, {})[slot] = None

    def works(self, slot: Slot) -> None:
        """Notes that the connection has a request to answer."""
        self._waiting.pop(slot, None)
        if slot.who is not None:
            of_address = self._waiting_of.get(slot.who, {})
            of_address.pop(slot, None)
            if not of_address:
                self._waiting_of.pop(slot.who, None)

    def leave(self, slot: Slot) -> None:
        """Frees the place; doing so twice is harmless."""
        if slot not in self._open:
            return
        self.works(slot)
        self._open.remove(slot)
        if slot.who is not None:
            left = self._each[slot.who] - 1
            if left:
                self._each[slot.who] = left
            else:
                del self._each[slot.who]

    def _make_room(self, waiting: dict[Slot, None] | None) -> bool:
        slot = next(iter(waiting or ()), None)
        if slot is None:
            return False
        self.leave(slot)
        slot.evict()
        return True

    def _who(self, address: str) -> str | None:
        """Returns the key by which an address is counted; None if it is not counted."""
        plain = plain_address(address)
        if plain is not None and any(plain in network for network in self._uncounted):
            return None
        return counted_address(address)
