"""Reference counts of gradient buffers while a backward pass is written.

A gradient that crosses groups is in a new buffer if it is moved, else in one of its earlier
buffers, so every crossing adds a possible buffer. Up to `FEW` are listed; more get a name
(`Tape.either`), so a program of L layers has about L uses instead of L^2. A name holds the buffers
that it stands for, and is held itself.
"""

from __future__ import annotations

from collections import Counter

from shardwise.replay.record import Value
from shardwise.replay.structure import Copies, Copy
from shardwise.replay.tape import Tape

FEW = 1
"""Maximum listed buffers of a gradient. It is small, so that equal layers are written the same way
(`layers.py`)."""


class Holders:
    """The gradients that hold each buffer, and the buffers of which gradients are views."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._count: Counter[int] = Counter()
        # Autograd adds nothing in place to buffers of which a gradient is a view.
        self._viewed: set[int] = set()
        self._named: dict[int, tuple[int, ...]] = {}
        """What names stand for, by name."""
        self._settled: set[int] = set()
        """Names that are the only holders of their buffers, for good."""

    def hold(self, copies: Copies) -> None:
        """Counts one more gradient in some buffers."""
        self._count.update(copy.buffer for copy in copies)

    def drop(self, copies: Copies) -> None:
        """Counts one gradient fewer."""
        freed = [copy.buffer for copy in copies]
        while freed:
            buffer = freed.pop()
            self._count[buffer] -= 1
            if not self._count[buffer]:
                freed += self._named.get(buffer, ())

    def view(self, copies: Copies) -> None:
        """Notes that a gradient is a view of these buffers."""
        viewed = [copy.buffer for copy in copies]
        while viewed:
            buffer = viewed.pop()
            if buffer not in self._viewed:
                self._viewed.add(buffer)
                viewed += self._named.get(buffer, ())

    def are_viewed(self, copies: Copies) -> bool:
        """Returns whether a gradient is a view of one of these buffers, whose names are settled."""
        return not self._viewed.isdisjoint(copy.buffer for copy in copies)

    def few(self, copies: Copies) -> Copies:
        """Returns the copies of a gradient, all of one maker, as a single name if there are
        many."""
        if len(copies) <= FEW:
            return copies
        buffers = tuple(copy.buffer for copy in copies)
        name = self._tape.either([(copy.buffer, copy.flag) for copy in copies])
        self._named[name] = buffers
        self._count[name] = 1
        return (Copy(name, copies[0].maker),)

    def size(self, copies: Copies) -> Value:
        """Returns the bytes of the gradient's oldest buffer."""
        buffer = copies[-1].buffer
        while buffer in self._named:
            buffer = self._named[buffer][-1]
        return self._tape.sizes[buffer]

    def is_alone(self, copies: Copies) -> bool:
        """Returns whether only one gradient holds these buffers, and settles their names."""
        if any(self._count[copy.buffer] != 1 for copy in copies):
            return False
        open_names = {c.buffer for c in copies if c.buffer in self._named} - self._settled
        names = set(open_names)
        while open_names:
            for buffer in self._named[open_names.pop()]:
                if self._count[buffer] != 1:
                    return False
                if buffer in self._named and not (buffer in self._settled or buffer in names):
                    names.add(buffer)
                    open_names.add(buffer)
        # What a name stands for is older than the name.
        for name in sorted(names):
            if not self._viewed.isdisjoint(self._named[name]):
                self._viewed.add(name)
        self._settled |= names
        return True
