"""The data directory: one agent's at a time, readable by its owner only.

agent.lock  held while an agent lives          identity.json  who the agent is (its key: 0600)
jobs/       a record per running assignment    spool/         reports that are not acknowledged yet
runs/       a folder per assignment: plan.json, graph.json, report/, and what the ranks write
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType

from shardwise.errors import BadInput

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DataDir:
    """A locked data directory. Raises `BadInput` when another agent has it or it is unusable."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()
        self.jobs = self.path / "jobs"
        self.runs = self.path / "runs"
        self.spool = self.path / "spool"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.jobs, self.runs, self.spool):
                folder.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(self.path / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise BadInput(
                reason,
                field="data_dir",
                file=str(self.path),
                expected="a folder that the agent can write to",
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise BadInput(
                "another agent runs with it",
                field="data_dir",
                file=str(self.path),
                expected="a folder of its own for each agent",
            ) from None
        self._remove_temporary()

    def __enter__(self) -> DataDir:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        os.close(self._lock)

    def run_folder(self, assignment: str) -> Path:
        """Creates the folder of an assignment, empty but for report/, and returns it."""
        folder = self.runs / assignment
        if folder.exists():
            shutil.rmtree(folder)
        (folder / "report").mkdir(mode=0o700, parents=True)
        return folder

    def remove_old_runs(self, keep_s: float, running: set[str]) -> None:
        """Removes folders of assignments that were last written to `keep_s` ago."""
        for folder in self.runs.iterdir():
            try:
                old = time.time() - folder.stat().st_mtime > keep_s
            except FileNotFoundError:
                continue
            if old and folder.name not in running:
                shutil.rmtree(folder, ignore_errors=True)

    def _remove_temporary(self) -> None:
        for folder in (self.path, self.jobs, self.spool):
            for leftover in folder.glob(".*.tmp"):
                leftover.unlink(missing_ok=True)


def write_durably(path: Path, data: bytes) -> None:
    """Writes a file that is there in full, on the disk, or not at all; 0600.

    Raises `OSError`; then nothing stays behind.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
