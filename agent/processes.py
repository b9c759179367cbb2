"""Processes of this host, as /proc shows them: their descendants and their markers.

Standard library only: the keeper (agent/keeper.py) reads it at every start of a launch.
A process is its number and its start time, because numbers are reused: a signal goes through
a pidfd, opened before the start time is compared, so that it can reach no other process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, order=True)
class Process:
    """A process: its number and its start, in clock ticks since the host's boot."""

    pid: int
    start: int


@dataclass(frozen=True)
class Status:
    """A row of the process table; `state` is the kernel's letter (R, S, D, T, Z, …)."""

    process: Process
    parent: int
    state: str


def status_of(pid: int) -> Status | None:
    """Returns what /proc/PID/stat says, or None if there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name is in brackets and may contain brackets and blanks itself.
    fields = text.rpartition(b")")[2].split()
    if len(fields) < 20:
        return None
    return Status(Process(pid, int(fields[19])), int(fields[1]), fields[0].decode())


def process_table() -> dict[int, Status]:
    """Returns every process of the host."""
    statuses = (status_of(int(item.name)) for item in PROC.iterdir() if item.name.isdecimal())
    return {status.process.pid: status for status in statuses if status is not None}


def process_of(pid: int) -> Process | None:
    """Returns the process that has this number now."""
    status = status_of(pid)
    return status.process if status else None


def is_alive(process: Process) -> bool:
    """Returns whether it still runs; one that waits to be reaped does not."""
    status = status_of(process.pid)
    return status is not None and status.process == process and status.state not in "ZX"


def descendants(root: Process, table: Mapping[int, Status]) -> set[Process]:
    """Returns the living descendants of `root`, without `root` itself."""
    if root.pid not in table or table[root.pid].process != root:
        return set()
    children: dict[int, list[Status]] = {}
    for status in table.values():
        children.setdefault(status.parent, []).append(status)
    below: set[Process] = set()
    todo = [root.pid]
    while todo:
        for status in children.get(todo.pop(), ()):
            todo.append(status.process.pid)
            if status.state not in "ZX":
                below.add(status.process)
    return below


def environment_of(pid: int) -> dict[bytes, bytes]:
    """Returns the environment that a process was started with; empty where it may not be read."""
    try:
        text = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in text.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def marked(name: str, value: str) -> set[Process]:
    """Returns the living processes that were started with `name`=`value`."""
    wanted = f"{name}={value}".encode()
    carriers = set()
    for pid, status in process_table().items():
        if status.state not in "ZX" and _carries(pid, wanted):
            carriers.add(status.process)
    return carriers


def _carries(pid: int, wanted: bytes) -> bool:
    try:
        return wanted in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def send(process: Process, number: signal.Signals) -> bool:
    """Signals exactly this process. Returns False if it is gone or may not be signalled."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if process_of(process.pid) != process:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def resident_bytes(processes: Iterable[Process]) -> int:
    """Returns the memory of the processes: anonymous and shared pages, not those of files."""
    total = 0
    for process in processes:
        try:
            text = (PROC / str(process.pid) / "status").read_bytes()
        except OSError:
            continue
        for line in text.splitlines():
            if line.startswith((b"RssAnon:", b"RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total
