"""The keeper: the process above everything that one launch starts.

    python -I -S agent/keeper.py SPEC COMMAND…

It adopts what its descendants leave behind, so that a process which leaves its session, its parent
and its environment is still found below it. On SIGTERM, or when the agent dies, it sends SIGTERM
to all of them and SIGKILL after `grace_s`. It ends when none is left, with the command's exit
status (128 + signal number).

SPEC is JSON: `agent` (the parent's pid), `grace_s`, `file_bytes` (the largest file that may be
written, or null), `scope` (the cgroup.procs to join, or null).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    # Run by path with -I -S: neither the working directory nor PYTHONPATH is believed.
    sys.path.append(str(Path(__file__).resolve().parents[1]))

from agent.processes import Process, descendants, process_of, process_table, send
from shardwise.child_process import adopt_orphans, die_with_parent, limit_process
from shardwise.errors import InternalError

OOM_SCORE = "500"
STRAY_GRACE_S = 2.0
"""Grace for leftovers of the command after the command itself has ended."""


class Keeper:
    """One command and all that descends from it."""

    def __init__(self, grace_s: float) -> None:
        me = process_of(os.getpid())
        if me is None:
            raise InternalError("this process is not in /proc")
        self._me = me
        self._grace_s = grace_s
        self._terminating = False
        self._kill_at: float | None = None
        self._status: int | None = None
        self._command = 0

    def run(self, command: list[str]) -> int:
        """Starts the command, waits until nothing is left of it, and returns the exit status."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            end_with_us = partial(die_with_parent, os.getpid())
            started = subprocess.Popen(command, preexec_fn=end_with_us)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            return 127
        self._command = started.pid
        while not self._finished():
            select.select([reader], [], [], self._pause_s())
            _drain(reader)
        return self._status if self._status is not None else 1

    def _terminate(self, *_: object) -> None:
        self._terminating = True

    def _pause_s(self) -> float:
        return 1.0 if self._kill_at is None else 0.1

    def _finished(self) -> bool:
        self._reap()
        if not self._terminating and self._status is None:
            return False
        left = descendants(self._me, process_table())
        if not left:
            return self._status is not None
        now = time.monotonic()
        if self._kill_at is None:
            self._kill_at = now + (self._grace_s if self._terminating else STRAY_GRACE_S)
            _send_all(left, signal.SIGTERM)
        elif now >= self._kill_at:
            _send_all(left, signal.SIGKILL)
        return False

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._command:
                code = os.waitstatus_to_exitcode(status)
                self._status = code if code >= 0 else 128 - code


def _send_all(processes: set[Process], number: signal.Signals) -> None:
    for process in processes:
        send(process, number)


def _drain(reader: int) -> None:
    try:
        while os.read(reader, 4096):
            pass
    except BlockingIOError:
        return


def main() -> int:
    """Runs the keeper on the command of the command line. Returns the exit status."""
    spec = json.loads(sys.argv[1])
    adopt_orphans()
    die_with_parent(spec["agent"], death_signal=signal.SIGTERM)
    if spec["scope"]:
        Path(spec["scope"]).write_text(str(os.getpid()))
    # If the host runs out of memory, the kernel should kill a launch, not the agent.
    Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    limit_process(file_bytes=spec["file_bytes"])
    return Keeper(spec["grace_s"]).run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
