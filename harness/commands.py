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
    "harness.fixed_day", "torch", "shardwise.execute.training", "shardwise.measure.rank",
    "shardwise.cli.main", "shardwise.answers", "service.store.schema", "service.store.keys",
    *sorted({f"shardwise.cli.{module}" for module, _ in OWN.values()}),
]  # fmt: skip
"""There is one server per test process, so this lists the modules of all its users."""

LONGEST_S = 300.0
CODE = "-c"
"""As a command's first argument: the second is a program in Python."""


def warm_context() -> Any:
    """Returns the multiprocessing context whose processes begin with `PRELOAD` imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def _command(
    arguments: tuple[str, ...], folder: str, environment: dict[str, str], outputs: tuple[str, str]
) -> None:
    """Does what `python -m shardwise.cli.main` or `python -c` does, with everything imported."""
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
        if arguments[0] == CODE:
            exec(arguments[1], {"__name__": "__main__"})
        else:
            main()
    except Exception:
        # `main` sets the hook; multiprocessing would not call it.
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


class Command:
    """A command that runs; `ended` waits for it."""

    def __init__(self, arguments: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._folder = tempfile.TemporaryDirectory(prefix="shardwise-command-")
        self._outputs = [Path(self._folder.name) / name for name in ("stdout", "stderr")]
        for path in self._outputs:
            path.touch()
        stdout, stderr = map(str, self._outputs)
        given = (arguments, str(cwd), dict(env), (stdout, stderr))
        self._process = warm_context().Process(target=_command, args=given)
        self._process.start()

    def ended(self) -> subprocess.CompletedProcess[str]:
        """Returns its result, with output as text.

        Raises AssertionError, and kills the command, if it runs for more than `LONGEST_S`.
        """
        with self._folder:
            self._process.join(LONGEST_S)
            if self._process.exitcode is None:
                self._process.kill()
                self._process.join()
                raise AssertionError(f"{self._arguments} runs for more than {LONGEST_S:g} s")
            stdout, stderr = (path.read_text() for path in self._outputs)
            return subprocess.CompletedProcess(
                self._arguments, self._process.exitcode, stdout, stderr
            )


def shardwise(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end and returns its result (`Command.ended`)."""
    return Command(arguments, cwd or Path.cwd(), os.environ if env is None else env).ended()


def as_ranks(
    world: int, *arguments: str, cwd: Path, env: Mapping[str, str]
) -> list[subprocess.CompletedProcess[str]]:
    """Runs a command as all ranks of one host, as torchrun starts them, to their ends.

    Where ranks meet (`MASTER_PORT`, a store) is in `env`. `CODE` and a program are a command too.
    """
    common = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", **env}
    started = [
        Command(arguments, cwd, {**os.environ, **common, "RANK": str(n), "LOCAL_RANK": str(n)})
        for n in range(world)
    ]
    return [command.ended() for command in started]


def succeed(*arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Runs a command that must exit with 0 and returns its standard output."""
    done = shardwise(*arguments, cwd=cwd, env=env)
    assert done.returncode == 0, f"{arguments} exited with {done.returncode}: {done.stderr}"
    return done.stdout
