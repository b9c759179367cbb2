"""Runs the `shardwise` command as a real process that starts fast.

Importing Python and our modules takes half a second, torch two more. Commands are therefore forked
from a server process that has already imported both (multiprocessing's fork server). Each is a
process of its own, with its own folder, environment, output, signals and exit code. Tests of the
start itself use `python -m shardwise.cli.main`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PRELOAD = [
    "torch", "shardwise.cli.main", "shardwise.advise", "service.schema", "service.store.keys",
]  # fmt: skip
"""There is one server per test process, so this lists the modules of all its users."""


def warm_context() -> Any:
    """Returns the multiprocessing context whose processes begin with `PRELOAD` imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def _command(
    arguments: tuple[str, ...], folder: str, environment: dict[str, str], outputs: tuple[str, str]
) -> None:
    """Does what `python -m shardwise.cli.main` does, in a process that has imported it."""
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # else the server's TMPDIR
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["shardwise", *arguments]
    sys.path.insert(0, folder)
    from shardwise.cli.main import main

    try:
        main()
    except Exception:
        # `main` sets the hook; multiprocessing would not call it.
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


class Command:
    """A running command; `stdout` and `stderr` are the files that it writes to."""

    def __init__(
        self, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.arguments = arguments
        self._folder = tempfile.TemporaryDirectory(prefix="shardwise-command-")
        self.stdout, self.stderr = (Path(self._folder.name) / n for n in ("stdout", "stderr"))
        for path in (self.stdout, self.stderr):
            path.touch()
        given = (
            arguments, str(cwd or Path.cwd()), dict(os.environ if env is None else env),
            (str(self.stdout), str(self.stderr)),
        )  # fmt: skip
        self.process = warm_context().Process(target=_command, args=given)
        self.process.start()

    def wait(self, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Waits for the command's end and returns its result.

        Raises AssertionError, and kills the command, after `timeout_s` seconds.
        """
        self.process.join(timeout_s)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"{self.arguments} runs for more than {timeout_s:g} s")
        done = subprocess.CompletedProcess(
            self.arguments, self.process.exitcode, self.stdout.read_text(), self.stderr.read_text()
        )
        self._folder.cleanup()
        return done


def shardwise(
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 300.0,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end and returns its result, with output as text."""
    return Command(*arguments, cwd=cwd, env=env).wait(timeout_s)


def succeed(*arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Runs a command that must exit with 0 and returns its standard output."""
    done = shardwise(*arguments, cwd=cwd, env=env)
    assert done.returncode == 0, f"{arguments} exited with {done.returncode}: {done.stderr}"
    return done.stdout
