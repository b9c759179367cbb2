"""What may run here: an assignment becomes an argument list and an environment, or is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.assignment import Assignment
from agent.config import REFUSED, Config, EntryPoint
from shardwise.errors import ShardwiseError

_VALUE = r"(?:zoo|hf|diffusers|timm|shipped):[\w.,:=*+-]+|[\w.,=*+][\w.,=*+ -]*"
BUILT_IN_ARGUMENTS = re.compile(rf"--(?!out)[a-z][a-z-]*(?:=(?:{_VALUE}))?|{_VALUE}")
"""No paths, no `package.module:callable`, no `--output`: what a launch says must neither name a
file outside its folder nor choose what is imported."""

BUILT_IN = {
    "shardwise.run": EntryPoint(
        "shardwise.run",
        (sys.executable, "-P", "-m", "shardwise.execute"),
        "trains by a plan and compares predicted with measured",
        BUILT_IN_ARGUMENTS,
    ),
    "shardwise.measure": EntryPoint(
        "shardwise.measure",
        (sys.executable, "-P", "-m", "shardwise.measure"),
        "measures collectives and operators",
        BUILT_IN_ARGUMENTS,
    ),
}
"""Always allowed. `-P`: nothing in the working directory is imported in their place."""


class Refused(ShardwiseError):
    """An assignment that is not run; the text is the reason that the user sees."""


@dataclass(frozen=True)
class Program:
    """What each rank runs: an argument list, its own variables, its working directory."""

    command: tuple[str, ...]
    environment: dict[str, str]
    directory: Path | None
    memory_limit_bytes: int
    time_limit_s: float


def program_of(assignment: Assignment, config: Config, own: Mapping[str, str]) -> Program:
    """Returns what the assignment runs under the host's rules; `own` is the agent's environment.

    Raises `Refused`.
    """
    entry = BUILT_IN.get(assignment.entry_point) or config.entry_points.get(assignment.entry_point)
    if entry is None:
        raise Refused(f"the entry point {assignment.entry_point!r} is not allowed on this host")
    for index, argument in enumerate(assignment.arguments):
        pattern = entry.allow_arguments
        if pattern is not None and not pattern.fullmatch(argument):
            raise Refused(
                f"arguments[{index}] is not allowed for {entry.name!r} on this host, which takes "
                f"{entry.arguments_allowed}"
            )
    inherited = {name: own[name] for name in config.inherit if name in own}
    return Program(
        command=(_interpreter(entry.command[0]), *entry.command[1:], *assignment.arguments),
        environment={**inherited, **_wished(assignment, config)},
        directory=_directory(entry),
        memory_limit_bytes=int(
            _stricter(
                assignment.memory_limit_bytes, config.memory_limit_bytes, "memory_limit_bytes"
            )
        ),
        time_limit_s=_stricter(assignment.time_limit_s, config.time_limit_s, "time_limit_s"),
    )


def _interpreter(command: str) -> str:
    """Returns the agent's own interpreter for `python`: torch and shardwise are installed in it."""
    return sys.executable if command in ("python", "python3") else command


def _wished(assignment: Assignment, config: Config) -> dict[str, str]:
    for name in assignment.environment:
        if REFUSED.fullmatch(name):
            raise Refused(f"environment: {name} cannot be set by a launch")
        if name not in config.environment:
            raise Refused(f"environment: {name} is not allowed on this host")
    return assignment.environment


def _directory(entry: EntryPoint) -> Path | None:
    if not entry.directory:
        return None
    directory = Path(entry.directory)
    if not directory.is_dir():
        raise Refused(f"the directory of {entry.name!r} is missing on this host")
    return directory


def _stricter(asked: float, allowed: float, field: str) -> float:
    """Returns the limit in force, 0 for none.

    More than the host allows is refused, not silently lowered.
    """
    if allowed and asked > allowed:
        raise Refused(f"{field}: {asked:g} asked, this host allows {allowed:g}")
    return asked or allowed


def check_size(assignment: Assignment, free_slots: int) -> None:
    """Raises `Refused` when there is no room for the ranks."""
    if assignment.ranks_per_node > free_slots:
        raise Refused(f"{assignment.ranks_per_node} ranks asked, {free_slots} slots are free")
