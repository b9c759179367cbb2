"""The docker command with buildx and compose, which are unpacked where it has none, and buildah
where there is no buildx."""

from __future__ import annotations

import os
import shutil
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
BUILDERS = ("buildx", "buildah")
BUILDER_VARIABLE = "SHARDWISE_TEST_BUILDER"
"""Names one of `BUILDERS`, where both are there."""


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


def quietly(*argv: str) -> bool:
    """Runs a command whose failure is an answer. Returns whether it succeeded."""
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


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
def builder() -> str:
    """Returns what builds images: `buildx`, or `buildah` where that is missing or this is wanted.

    Raises Missing where there is neither.
    """
    if asked := os.environ.get(BUILDER_VARIABLE):
        if asked not in BUILDERS:
            raise ValueError(f"expected {BUILDER_VARIABLE} as one of {BUILDERS}, got {asked!r}")
        return asked
    try:
        _plugin("buildx")
    except (Missing, subprocess.CalledProcessError) as error:
        if shutil.which("buildah") is None:
            raise Missing("buildx or buildah") from error
        return "buildah"
    return "buildx"


@cache
def plugins() -> dict[str, str]:
    """Returns the variables with which the docker command finds compose, and buildx if it builds.

    What it lacks is unpacked from Debian's packages below `out`, once.
    """
    needed = [name for name in PLUGINS if name != "buildx" or builder() == "buildx"]
    return {key: value for name in needed for key, value in _plugin(name).items()}


@cache
def _plugin(name: str) -> dict[str, str]:
    """Returns the variables with which a plugin answers. Raises what `unpack` raises."""
    if _answers(name):
        return {}
    configuration = {"DOCKER_CONFIG": str(FETCHED)}
    if not _answers(name, configuration):
        # Late: that module runs commands with this one.
        from harness.containers.debian_archive import unpack

        unpack(PLUGINS_SUITE, [PLUGINS[name]], FETCHED / "unpacked")
        link = FETCHED / "cli-plugins" / f"docker-{name}"
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(Path("..") / f"unpacked/usr/libexec/docker/cli-plugins/docker-{name}")
    return configuration


def _answers(plugin: str, variables: Mapping[str, str] | None = None) -> bool:
    try:
        run("docker", plugin, "version", variables=variables)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return False
    return True
