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

from shardwise.cli.commands import OWN

PRELOAD = [
    "torch", "shardwise.cli.main", "shardwise.advise", "service.store.schema", "service.store.keys",
    *sorted({f"shardwise.cli.{module}" for module, _ in OWN.values()}),
]  # fmt: skip
"""There is one server per test process, so this lists the modules of all its users."""

LONGEST_S = 300.0


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


def shardwise(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end and returns its result, with output as text.

    Raises AssertionError, and kills the command, if it runs for more than `LONGEST_S`.
    """
    with tempfile.TemporaryDirectory(prefix="shardwise-command-") as folder:
        stdout, stderr = (Path(folder) / name for name in ("stdout", "stderr"))
        for path in (stdout, stderr):
            path.touch()
        environment = dict(os.environ if env is None else env)
        given = (arguments, str(cwd or Path.cwd()), environment, (str(stdout), str(stderr)))
        process = warm_context().Process(target=_command, args=given)
        process.start()
        process.join(LONGEST_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"{arguments} runs for more than {LONGEST_S:g} s")
        return subprocess.CompletedProcess(
            arguments, process.exitcode, stdout.read_text(), stderr.read_text()
        )


def succeed(*arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Runs a command that must exit with 0 and returns its standard output."""
    done = shardwise(*arguments, cwd=cwd, env=env)
    assert done.returncode == 0, f"{arguments} exited with {done.returncode}: {done.stderr}"
    return done.stdout
