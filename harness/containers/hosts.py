"""Containers as hosts of a network: each has a name, runs commands, and sees this checkout.

The interpreter that runs the tests, its packages and the checkout are mounted at their own paths,
read-only, so that `shardwise` and torch run on every host without an image that has them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).parents[2]
COMMAND_S = 240.0
NONE: Mapping[str, str] = MappingProxyType({})


class Host:
    """A container with a name in its network."""

    def __init__(self, name: str, container: str) -> None:
        self.name = name
        self.container = container

    def try_run(
        self,
        *command: str,
        user: str = "root",
        folder: str = "/",
        variables: Mapping[str, str] = NONE,
        given: str | None = None,
        timeout_s: float = COMMAND_S,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as a user, `given` as its standard input; returns how it ended."""
        words = [] if given is None else ["-i"]
        words += [word for key, value in variables.items() for word in ("-e", f"{key}={value}")]
        return subprocess.run(
            ["docker", "exec", "-u", user, "-w", folder, *words, self.container, *command],
            input=given, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    def run(self, *command: str, user: str = "root") -> str:
        """Returns what a command prints. Raises AssertionError if it fails."""
        done = self.try_run(*command, user=user)
        assert done.returncode == 0, f"{self.name}: {command}: {done.stdout}{done.stderr}"
        return done.stdout

    def write(self, path: str, text: str, mode: str = "644") -> None:
        """Writes a file that belongs to root."""
        command = f'mkdir -p "$(dirname {path})" && cat > {path} && chmod {mode} {path}'
        subprocess.run(
            ["docker", "exec", "-i", self.container, "sh", "-c", command],
            input=text, text=True, check=True, capture_output=True,
        )  # fmt: skip


def address(host: Host) -> str:
    """Returns the host's address in its first network."""
    return str(endpoint(host)["IPAddress"])


def endpoint(host: Host) -> dict[str, Any]:
    """Returns what the engine says of the host's place in its first network."""
    networks = inspected(host)["NetworkSettings"]["Networks"]
    return dict(next(iter(networks.values())))


def inspected(host: Host) -> dict[str, Any]:
    """Returns what the engine knows of the host's container."""
    (document,) = json.loads(_docker("inspect", host.container))
    return dict(document)


def end_commands(host: Host) -> None:
    """Kills all that was started on a host; where it is asked for, its client may be gone."""
    rows = _docker("top", host.container, "-eo", "pid,comm").splitlines()[1:]
    for row in rows:
        process, name = row.split(maxsplit=1)
        if name not in ("docker-init", "sleep"):
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)


@contextmanager
def hosts(
    image: str, names: Iterable[str], shared: Path, *more: Path, flags: Iterable[str] = ()
) -> Iterator[tuple[dict[str, Host], str]]:
    """Yields hosts by name, and the address under which they reach this machine.

    All see the folder `shared` at its own path, and the folders `more` read-only; they start with
    more `flags` of `docker run`. Containers and their network are removed at the end; their names
    begin with the image's.
    """
    run = f"{image.partition(':')[0]}-{uuid.uuid4().hex[:8]}"
    _docker("network", "create", run)
    started: dict[str, Host] = {}
    try:
        config = json.loads(_docker("network", "inspect", run))[0]["IPAM"]["Config"][0]
        for name in names:
            container = f"{run}-{name}"
            _docker(
                "run", "--detach", "--init", "--name", container, "--hostname", name,
                "--network", run, "--network-alias", name, "--shm-size", "1g",
                *flags, *_mounts(shared, more), image, "sleep", "infinity",
            )  # fmt: skip
            started[name] = Host(name, container)
        yield started, config["Gateway"]
    finally:
        for host in started.values():
            subprocess.run(["docker", "rm", "--force", "--volumes", host.container],
                           capture_output=True, check=False)  # fmt: skip
        subprocess.run(["docker", "network", "rm", run], capture_output=True, check=False)


def _mounts(shared: Path, more: Iterable[Path]) -> list[str]:
    packages = Path(sysconfig.get_path("purelib"))
    own = {ROOT, Path(sys.base_prefix), Path(sys.prefix), packages, *more}
    flags = []
    for path in sorted({path.resolve() for path in own}):
        flags += ["--volume", f"{path}:{path}:ro"]
    return [*flags, "--volume", f"{shared}:{shared}"]


def _docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"docker {' '.join(arguments[:2])}: {done.stderr}"
    return done.stdout
