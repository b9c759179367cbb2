"""Ballast of a SQLite database: space that is reserved now and given up when a delete needs it.

In WAL mode a delete writes before it frees. On a full disk it could not write, so that
nothing could be freed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

LEFT_BYTES = 2**18
"""Ballast is taken only where at least this much stays free."""

PART = 8
"""Ballast is at most an eighth of the disk."""


class Ballast:
    """A fully allocated file of `size` bytes next to the database."""

    def __init__(self, database: Path, size: int) -> None:
        self._path = database.with_name(f"{database.name}.ballast")
        self._size = size

    def free_bytes(self) -> int:
        """Returns the free bytes of the database's disk."""
        filesystem = os.statvfs(self._path.parent)
        return filesystem.f_bavail * filesystem.f_frsize

    def lay(self) -> bool:
        """Takes the space unless it is taken or scarce. Returns whether it is taken."""
        if self._path.exists():
            return True
        filesystem = os.statvfs(self._path.parent)
        size = min(self._size, filesystem.f_blocks * filesystem.f_frsize // PART)
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
    """Allocates `size` bytes on the disk. Raises OSError if there are not enough."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    for _ in range(0, size, 2**16):
        os.write(descriptor, bytes(2**16))
