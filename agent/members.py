"""Who belongs to a launch, and how they are ended."""

from __future__ import annotations

import signal
import time

from agent.processes import (
    Process,
    descendants,
    is_alive,
    marked,
    process_table,
    resident_bytes,
    send,
)
from agent.scope import Scope
from agent.sweep import ASSIGNMENT_MARKER


class Members:
    """The processes of one launch: those that descend from the keeper or did so at the last check,
    are in the launch's cgroup, or have its marker in their environment."""

    def __init__(self, assignment: str, scope: Scope | None) -> None:
        self.keeper: Process | None = None
        self._assignment = assignment
        self._scope = scope
        self._seen: set[Process] = set()

    def resident_bytes(self) -> int:
        """Returns the memory that they hold now, and remembers which processes they are."""
        return resident_bytes(self._find())

    def pids(self) -> set[int]:
        """Their numbers when last looked at."""
        return {process.pid for process in self._seen}

    def left(self) -> set[Process]:
        """Returns the living members, without the keeper."""
        members = self._find() | marked(ASSIGNMENT_MARKER, self._assignment)
        if self._scope is not None:
            members |= self._scope.processes()
        return {process for process in members if process != self.keeper and is_alive(process)}

    def kill(self, with_keeper: bool) -> None:
        """Sends SIGKILL to all. The keeper ends by itself when none is left, unless it is stuck."""
        for process in self.left():
            send(process, signal.SIGKILL)
        if with_keeper and self.keeper is not None:
            send(self.keeper, signal.SIGKILL)

    def end(self, wait_s: float) -> bool:
        """Kills what the keeper left. Returns False if some do not die within `wait_s`."""
        until = time.monotonic() + wait_s
        while left := self.left():
            if time.monotonic() > until:
                self._seen = left
                return False
            self.kill(with_keeper=True)
            time.sleep(0.02)
        self._seen = set()
        return True

    def _find(self) -> set[Process]:
        if self.keeper is not None:
            # A new set each time: other threads look at the old one.
            self._seen = self._seen | descendants(self.keeper, process_table())
        self._seen = {process for process in self._seen if is_alive(process)}
        return self._seen
