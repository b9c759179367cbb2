"""What ranks print: read from pipes, cut into lines, bounded, handed over as log reports.

Three bounds (agent.toml, [logs]): bytes of a line (a longer one is cut, with a note), of a rank, of
the whole launch. Beyond the last two lines are counted and dropped, except the newest: the end of
a log says why a rank failed, so the last `TAIL_LINES` are handed over at the end.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.config import LogLimits

TAIL_LINES = 100
REPORT_BYTES = 64 * 2**10
REPORT_LINES = 1000
READ_BYTES = 2**16
Emit = Callable[[int, str, int, list[str], int], None]
"""Takes (rank, stream, first line's number, lines, lines dropped before them)."""


@dataclass
class Budget:
    """Bytes that may still be handed over."""

    left: int

    def take(self, size: int) -> bool:
        """Takes `size` if it still fits. Returns whether it did."""
        if size > self.left:
            self.left = 0
            return False
        self.left -= size
        return True


@dataclass
class LogStream:
    """One stream of one rank. `emit` is called with what is to be reported."""

    rank: int
    name: str
    line_bytes: int
    budgets: tuple[Budget, ...]
    emit: Emit
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    _partial: bytearray = field(default_factory=bytearray)
    _cut: int = 0
    _pending: list[str] = field(default_factory=list)
    _pending_bytes: int = 0
    lines: int = 0
    _handed_over: int = 0
    _over: bool = False

    def feed(self, data: bytes) -> None:
        """Takes what was read."""
        pieces = data.split(b"\n")
        for piece in pieces[:-1]:
            self._extend(piece)
            self._end_line()
        self._extend(pieces[-1])

    def _extend(self, piece: bytes) -> None:
        room = self.line_bytes - len(self._partial)
        self._partial += piece[:room]
        self._cut += max(0, len(piece) - room)

    def _end_line(self) -> None:
        text = bytes(self._partial).decode("utf-8", "replace").rstrip("\r").replace("\0", "\ufffd")
        note = f" [{self._cut} bytes cut]" if self._cut else ""
        # A byte that is not UTF-8 becomes three bytes.
        text = _within(text, self.line_bytes - len(note)) + note
        self._partial.clear()
        self._cut = 0
        self.lines += 1
        self.last_lines.append(text)
        size = len(text.encode()) + 1
        if not self._over and all(budget.take(size) for budget in self.budgets):
            self._pending.append(text)
            self._pending_bytes += size
            if self._pending_bytes >= REPORT_BYTES or len(self._pending) >= REPORT_LINES:
                self.flush()
        else:
            self.flush()
            self._over = True

    def flush(self) -> None:
        """Hands over the lines that wait."""
        if self._pending and not self._over:
            self.emit(self.rank, self.name, self._handed_over, self._pending, 0)
            self._handed_over += len(self._pending)
            self._pending, self._pending_bytes = [], 0

    def close(self) -> None:
        """Hands over the last lines of an ended stream, and how many were dropped before them."""
        if self._partial or self._cut:
            self._end_line()
        self.flush()
        missing = self.lines - self._handed_over
        if missing:
            tail = list(self.last_lines)[-missing:]
            first = self.lines - len(tail)
            self.emit(self.rank, self.name, first, tail, missing - len(tail))
            self._handed_over = self.lines


def _within(text: str, size: int) -> str:
    return text.encode()[: max(0, size)].decode("utf-8", "ignore")


class RankLogs:
    """The streams of one launch on this host and the pipes that they are read from."""

    def __init__(self, limits: LogLimits, emit: Emit) -> None:
        self._limits = limits
        self._emit = emit
        self._total = Budget(limits.total_bytes)
        self._ranks: dict[int, Budget] = {}
        self.streams: dict[int, LogStream] = {}

    def add(self, handle: int, rank: int, name: str) -> None:
        """Reads `handle` (which becomes this object's) as a stream of `rank`."""
        os.set_blocking(handle, False)
        budget = self._ranks.setdefault(rank, Budget(self._limits.rank_bytes))
        self.streams[handle] = LogStream(
            rank, name, self._limits.line_bytes, (budget, self._total), self._emit
        )

    def read(self, handle: int) -> bool:
        """Reads once. Returns False if there is nothing to read, or a pipe has no writer left."""
        try:
            data = os.read(handle, READ_BYTES)
        except BlockingIOError:
            return False
        self.streams[handle].feed(data)
        return bool(data)

    def flush(self) -> None:
        """Hands over what every stream has."""
        for stream in self.streams.values():
            stream.flush()

    def close(self) -> None:
        """Reads what is left, hands it over and closes the pipes."""
        for handle, stream in self.streams.items():
            # Bounded: a process that cannot be killed may go on writing.
            for _ in range(64):
                if not self.read(handle):
                    break
            stream.close()
            os.close(handle)

    def next_line(self, rank: int, name: str) -> int:
        """Returns the number of the line after all that was handed over or dropped."""
        return max(s.lines for s in self.streams.values() if (s.rank, s.name) == (rank, name))

    def last_lines(self, rank: int, name: str) -> list[str]:
        """Returns the last lines of a stream, oldest first."""
        for stream in self.streams.values():
            if stream.rank == rank and stream.name == name:
                return list(stream.last_lines)
        return []

    def last_line(self, rank: int, name: str) -> str:
        """Returns the last line of a stream that holds any text."""
        return next((line for line in reversed(self.last_lines(rank, name)) if line.strip()), "")
