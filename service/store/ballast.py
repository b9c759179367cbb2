"""Ballast of a SQLite database: space that is taken now and given up when a delete needs it.

In WAL mode a delete writes before it frees. On a full disk it could not, so that
nothing could be freed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

LEFT_BYTES = 2**18
"""Ballast is taken only where at least this much stays free."""

PART = 8
"""And it is at most an eighth of the disk."""


class Ballast:
    """A file of `size` bytes beside the database, really allocated."""

    def __init__(self, database: Path, size: int) -> None:
        self._path = database.with_name(f"{database.name}.ballast")
        self._size = size

    def free_bytes(self) -> int:
        """Returns what is free beside the database."""
        found = os.statvfs(self._path.parent)
        return found.f_bavail * found.f_frsize

    def lay(self) -> bool:
        """Takes the space unless it is taken or scarce. Returns whether it is taken."""
        if self._path.exists():
            return True
        found = os.statvfs(self._path.parent)
        size = min(self._size, found.f_blocks * found.f_frsize // PART)
        if self.free_bytes() < size + LEFT_BYTES:
            return False
        part = self._path.with_name(f"{self._path.name}.part")
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                allocate(descriptor, size)
            finally:
                os.close(descriptor)
            part.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            return False
        return True

    def give_up(self) -> bool:
        """Frees the space. Returns whether there was any."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True


def allocate(descriptor: int, size: int) -> None:
    """Takes so many bytes of the disk; OSError where there are not as many."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    for _ in range(0, size, 2**16):
        os.write(descriptor, bytes(2**16))
