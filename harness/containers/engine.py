"""The docker command with buildx and compose, which are unpacked where it has none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FETCHED = ROOT / "out" / "docker"
"""The docker command's configuration if its plugins had to be fetched."""
PLUGINS = {"buildx": "docker-buildx", "compose": "docker-compose"}
"""Plugins of the docker command, each with the package of Debian's that has it."""
PLUGINS_SUITE = "trixie"
"""The first suite that has both; they are static but for the C library of bookworm."""


class Missing(Exception):
    """Something that this machine lacks, by name."""

    def __str__(self) -> str:
        return f"needs {self.args[0]}"


def run(*argv: str, cwd: Path | None = None, variables: Mapping[str, str] | None = None) -> str:
    """Runs a command, with more variables, and returns its standard output.

    Raises subprocess.CalledProcessError, with standard error as a note, if it fails.
    """
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(
        argv, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        failure = subprocess.CalledProcessError(done.returncode, argv, done.stdout, done.stderr)
        failure.add_note(done.stderr[-3000:])
        raise failure
    return done.stdout


def docker(*arguments: str, variables: Mapping[str, str] | None = None) -> str:
    """Runs the docker command with both plugins and returns its standard output."""
    return run("docker", *arguments, variables={**plugins(), **(variables or {})})


def show(*arguments: str, variables: Mapping[str, str] | None = None) -> None:
    """Runs the docker command with all that it prints on our standard error."""
    environment = {**os.environ, **plugins(), **(variables or {})}
    subprocess.run(["docker", *arguments], env=environment, stdout=sys.stderr, check=True)


def engine() -> str:
    """Returns the version of the engine. Raises Missing if none answers."""
    try:
        return run("docker", "version", "--format", "{{.Server.Version}}").strip()
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise Missing("a Docker engine that answers") from error


def has_image(name: str) -> bool:
    """Returns True if the engine has an image of this name."""
    return bool(run("docker", "image", "ls", "--quiet", name).strip())


@cache
def plugins() -> dict[str, str]:
    """Returns the variables with which the docker command finds buildx and compose.

    What it lacks is unpacked from Debian's packages below `out`, once.
    """
    lacking = [name for name in PLUGINS if not _answers(name)]
    if not lacking:
        return {}
    configuration = {"DOCKER_CONFIG": str(FETCHED)}
    still = [name for name in lacking if not _answers(name, configuration)]
    if still:
        # Late: that module runs commands with this one.
        from harness.containers.debian_archive import unpack

        unpack(PLUGINS_SUITE, [PLUGINS[name] for name in still], FETCHED / "unpacked")
        links = FETCHED / "cli-plugins"
        links.mkdir(exist_ok=True)
        for name in still:
            program = f"unpacked/usr/libexec/docker/cli-plugins/docker-{name}"
            link = links / f"docker-{name}"
            link.unlink(missing_ok=True)
            link.symlink_to(Path("..") / program)
    return configuration


def _answers(plugin: str, variables: Mapping[str, str] | None = None) -> bool:
    try:
        run("docker", plugin, "version", variables=variables)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return False
    return True
