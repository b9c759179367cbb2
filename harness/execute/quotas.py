"""Shares of a core for single processes, by the system's control groups (version 1 or 2).

The period is 5 ms: at the usual 100 ms a process runs at full speed and then stands still.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

PERIOD_US = 5000
ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
"""Where groups with quotas may be made: version 1, version 2."""


def _root() -> Path | None:
    for root in ROOTS:
        one = root / "cpu.cfs_quota_us"
        two = root / "cgroup.controllers"
        known = one.exists() or (two.exists() and "cpu" in two.read_text().split())
        if known and os.access(root, os.W_OK):
            return root
    return None


def missing() -> str | None:
    """Returns why processes cannot have quotas here, None where they can."""
    return None if _root() is not None else "no writable control groups with CPU quotas"


class Quotas:
    """A control group for each of some ranks, for the time of a block."""

    def __init__(self, shares: tuple[float, ...]) -> None:
        """`shares` of a core by rank. Raises `OSError` where `missing` says why."""
        root = _root()
        if root is None:
            raise OSError(missing())
        self.folders = [root / f"shardwise-{os.getpid()}-{rank}" for rank in range(len(shares))]
        self._shares = shares

    def __enter__(self) -> Self:
        for folder, share in zip(self.folders, self._shares, strict=True):
            folder.mkdir()
            quota = round(share * PERIOD_US)
            if (folder / "cpu.cfs_quota_us").exists():
                (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (folder / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for folder in self.folders:
            with suppress(OSError):
                folder.rmdir()


def enter(folder: Path) -> None:
    """Puts this process, with all its threads, into a control group."""
    (folder / "cgroup.procs").write_text(str(os.getpid()))
