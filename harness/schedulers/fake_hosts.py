"""What a script of many hosts calls, as programs that run here and write down what they were given.

`srun` starts every command of a heterogeneous step once on each node of its component, `scontrol`
lists the nodes of a component, and `torchrun` writes down its host and arguments.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_SRUN = """#!{python}
import os, subprocess, sys
commands, given = [[]], sys.argv[1:]
for one in given:
    if one == ":":
        commands.append([])
    else:
        commands[-1].append(one)
for command in commands:
    name = "SLURM_JOB_NODELIST"
    if command[0].startswith("--het-group="):
        name += "_HET_GROUP_" + command.pop(0).partition("=")[2]
    assert command.pop(0).startswith("--cpus-per-task=")
    for host in os.environ[name].split(","):
        subprocess.run(command, env={{**os.environ, "SLURMD_NODENAME": host}}, check=True)
"""
_SCONTROL = """#!/bin/sh
[ "$1 $2" = "show hostnames" ] || exit 1
printf '%s\\n' "$3" | tr ',' '\\n'
"""
_TORCHRUN = """#!/bin/sh
for one in "${{SLURMD_NODENAME:-$POD}}" "$@"; do printf '%s\\037' "$one"; done >> '{log}'
echo >> '{log}'
"""


class FakeHosts:
    """`folder` goes on PATH; `started` has what each torchrun was given, its host first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "started"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("srun", _SRUN), ("scontrol", _SCONTROL), ("torchrun", _TORCHRUN)):
            path = folder / name
            path.write_text(text.format(python=sys.executable, log=self._log) if name != "scontrol"
                            else text)  # fmt: skip
            path.chmod(0o755)

    def run(self, command: Sequence[str], **variables: str) -> None:
        """Runs a command with these programs before all others on PATH."""
        environment = {"PATH": f"{self.folder}:{os.environ['PATH']}", **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    @property
    def started(self) -> list[tuple[str, dict[str, str], list[str]]]:
        """The host of each torchrun, its options by name, and the other arguments."""
        found = []
        for line in self._log.read_text().splitlines():
            host, *arguments = line.split("\037")[:-1]
            options = [one for one in arguments if one.startswith("--") and "=" in one]
            named = dict(one.removeprefix("--").split("=", 1) for one in options)
            found.append((host, named, [one for one in arguments if one not in options]))
        return found
