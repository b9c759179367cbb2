"""A cgroup v2 of its own for each launch, where the host lets the agent create one.

It finds and kills every process of a launch whatever that process does to itself, and bounds
memory where the controller is there. Without it the keeper and the marker in the environment do.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from agent.processes import Process, process_of

log = logging.getLogger(__name__)
REMOVE_TRIES_S = 2.0


class Scope:
    """One cgroup. `bounds_memory`: the kernel holds the launch to its memory limit."""

    def __init__(self, path: Path, bounds_memory: bool = False) -> None:
        self.path = path
        self.bounds_memory = bounds_memory

    @property
    def procs(self) -> Path:
        """The file through which a process joins."""
        return self.path / "cgroup.procs"

    def processes(self) -> set[Process]:
        """Returns the processes inside."""
        try:
            pids = self.procs.read_text().split()
        except OSError:
            return set()
        return {process for pid in pids if (process := process_of(int(pid)))}

    def kill(self) -> None:
        """Sends SIGKILL to all processes inside, at once (Linux 5.14)."""
        try:
            (self.path / "cgroup.kill").write_text("1")
        except OSError as error:
            log.debug("no cgroup.kill: %s", error)

    def out_of_memory(self) -> bool:
        """Returns whether the kernel has killed a process for the memory limit."""
        try:
            lines = (self.path / "memory.events").read_text().splitlines()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in lines)

    def remove(self) -> bool:
        """Removes it. Returns False if a process is still inside."""
        until = time.monotonic() + REMOVE_TRIES_S
        while True:
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return True
            except OSError:
                if time.monotonic() > until:
                    return False
                time.sleep(0.02)
                continue
            return True


def parent_folder(setting: str) -> Path | None:
    """Returns the cgroup v2 under which scopes are created.

    `setting` is the configuration's `cgroup`.
    """
    if setting == "off":
        return None
    folder = _own_cgroup() if setting == "auto" else Path(setting)
    if folder is None or not (folder / "cgroup.procs").exists():
        return None
    test = folder / f"shardwise-test-{os.getpid()}"
    try:
        test.mkdir()
        test.rmdir()
    except OSError:
        return None
    try:
        (folder / "cgroup.subtree_control").write_text("+memory")
    except OSError as error:
        log.debug("no memory controller below %s: %s", folder, error)
    return folder


def make_scope(parent: Path | None, name: str, memory_limit_bytes: int) -> Scope | None:
    """Returns a cgroup for a launch, or None if none can be created."""
    if parent is None:
        return None
    path = parent / name
    try:
        path.mkdir()
    except OSError as error:
        log.warning("no cgroup: %s", error)
        return None
    bounded = False
    if memory_limit_bytes and (path / "memory.max").exists():
        (path / "memory.max").write_text(str(memory_limit_bytes))
        bounded = True
    return Scope(path, bounded)


def leftover_scopes(parent: Path | None, prefix: str) -> list[Scope]:
    """Returns the scopes of an earlier agent."""
    return [] if parent is None else [Scope(path) for path in parent.glob(f"{prefix}*")]


def _own_cgroup() -> Path | None:
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in groups if line.startswith("0::")), None)
    for line in mounts:
        before, _, after = line.partition(" - ")
        if own is not None and after.startswith("cgroup2 "):
            return Path(before.split()[4]) / own.lstrip("/")
    return None
