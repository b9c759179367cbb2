"""Runs a program that ends when its starter ends: `python -P -m service.bond PARENT -- PROGRAM…`.

On Linux the kernel sees to it and nothing of this process stays: it becomes the program. Elsewhere
it stays as the program's parent and looks whether the starter still lives. (A child that changes
its user or is set-uid would lose the kernel's bond; ours are neither.)
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG = 1
LOOK_EVERY_S = 0.5


def bonded(command: list[str]) -> list[str]:
    """The command that runs `command` bound to this process.

    On Linux the bond is to the thread that starts it: start it from one that lives as long.
    """
    return [sys.executable, "-P", "-m", "service.bond", str(os.getpid()), "--", *command]


def main(arguments: list[str]) -> int:
    """Become the program, or watch over it."""
    parent, command = int(arguments[0]), arguments[2:]
    if sys.platform == "linux":
        die_with(parent)
        os.execv(command[0], command)
    return watch_over(parent, command)


def die_with(parent: int) -> None:
    """End this process with its starter, where the kernel can see to it (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)


def watch_over(parent: int, command: list[str]) -> int:
    """Run the program as a child until it ends or the starter is gone."""
    with subprocess.Popen(command) as child:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: child.send_signal(received))
        while child.poll() is None:
            if os.getppid() != parent:
                child.kill()
            time.sleep(LOOK_EVERY_S)
        return child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
