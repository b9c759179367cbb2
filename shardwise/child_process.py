"""Child processes that end with their parent, and that stay within limits.

    python -P -m shardwise.child_process PARENT -- PROGRAM…

runs a program that ends when the process PARENT ends. On Linux the kernel sees to it: the runner
calls `die_with_parent` and becomes the program. Elsewhere it stays as the program's parent, watches
PARENT and kills the program. (The kernel forgets PARENT when a child changes its user or is
set-uid; ours do neither.)

Programs that have to start fast import this: standard library only, and what few programs need is
imported late.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from shardwise.errors import InternalError

TYPE_CHECKING = False  # as in typing, whose import would slow down each child's start
if TYPE_CHECKING:
    from typing import IO

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LOOK_EVERY_S = 0.5


def die_with_parent(
    parent: int | None = None, *, death_signal: signal.Signals = signal.SIGKILL
) -> None:
    """Asks the kernel to send this process `death_signal` when its parent ends (Linux only).

    What counts is the parent's thread that started this process, also after `exec`. Given the
    parent's process id, a process whose parent has already ended exits at once with status 1.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def limit_process(
    *,
    memory_bytes: int | None = None,
    processor_s: int | None = None,
    file_bytes: int | None = None,
) -> None:
    """Limits the resources of this process and its future children, and disables core dumps.

    `memory_bytes` bounds the address space, `processor_s` the CPU time and `file_bytes` the size of
    a written file. None leaves a limit unchanged.
    """
    import resource  # which only Unix has

    for what, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, processor_s),
        (resource.RLIMIT_FSIZE, file_bytes),
    ):
        if limit is not None:
            resource.setrlimit(what, (limit, limit))


def ending_with_us(command: list[str]) -> list[str]:
    """Returns the command that runs `command` so that it ends when this process ends.

    On Linux it ends with the thread that starts it (`die_with_parent`), which has to live as long.
    """
    runner = [sys.executable, "-P", "-m", "shardwise.child_process", str(os.getpid()), "--"]
    return [*runner, *command]


def watch_over(parent: int, command: list[str]) -> int:
    """Runs a program until it ends or this process has another parent than `parent`.

    Returns its exit status.
    """
    import subprocess
    import time

    with subprocess.Popen(command) as child:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: child.send_signal(received))
        while child.poll() is None:
            if os.getppid() != parent:
                child.kill()
            time.sleep(LOOK_EVERY_S)
        return child.returncode


def piped(stream: IO[bytes] | None) -> IO[bytes]:
    """Returns a stream of a process that was started with a pipe for it."""
    if stream is None:
        raise InternalError("a process was started without the pipe that is read or written")
    return stream


def main(arguments: list[str]) -> int:
    """Becomes the program, or watches over it and returns its exit status."""
    parent, command = int(arguments[0]), arguments[2:]
    if sys.platform == "linux":
        die_with_parent(parent)
        os.execv(command[0], command)
    return watch_over(parent, command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
