"""docker-compose.yml and the Dockerfile as Docker would read them: what each service starts."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Image:
    """What a target of the Dockerfile sets for the process that is started."""

    environment: dict[str, str]
    user: int
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    health: tuple[str, ...]
    workdir: str


@dataclass(frozen=True)
class Container:
    """A service of the compose file with its image's defaults filled in."""

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    user: int
    health: tuple[str, ...]
    volumes: tuple[tuple[str, str], ...]
    depends_on: dict[str, str]
    image: str


def compose() -> dict[str, Any]:
    document = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert isinstance(document, dict)
    return document


def images() -> dict[str, Image]:
    """Returns the targets of the Dockerfile with what they inherit."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    stages: dict[str, dict[str, Any]] = {}
    now: dict[str, Any] = {}
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            now = {"env": {}, "user": 0, "entrypoint": (), "cmd": (), "health": (), "workdir": "/"}
            if base in stages:
                now = {**stages[base], "env": dict(stages[base]["env"])}
            stages[name.strip()] = now
        elif word == "ENV":
            pairs = (pair.partition("=") for pair in shlex.split(rest))
            now["env"].update({name: value for name, _, value in pairs})
        elif word == "USER":
            now["user"] = int(rest.partition(":")[0])
        elif word == "WORKDIR":
            now["workdir"] = rest
        elif word in ("ENTRYPOINT", "CMD"):
            now[word.lower()] = tuple(yaml.safe_load(rest))
        elif word == "HEALTHCHECK":
            now["health"] = tuple(yaml.safe_load(rest.partition("CMD ")[2]))
    return {
        name: Image(i["env"], i["user"], i["entrypoint"], i["cmd"], i["health"], i["workdir"])
        for name, i in stages.items()
    }


def containers() -> dict[str, Container]:
    """Returns the containers that `docker compose up` would start."""
    document, targets = compose(), images()
    built = {
        s["image"]: s["build"]["target"] for s in document["services"].values() if "build" in s
    }
    services = {}
    for name, service in document["services"].items():
        target = targets.get(built.get(service["image"], ""))
        entrypoint = service.get("entrypoint", target.entrypoint if target else ())
        command = service.get("command", target.command if target else ())
        health = service.get("healthcheck", {}).get("test", target.health if target else ())
        volumes = (v.removesuffix(":ro").split(":") for v in service.get("volumes", ()))
        user = str(service["user"]).partition(":")[0] if "user" in service else None
        services[name] = Container(
            name,
            (*entrypoint, *command),
            {**(target.environment if target else {}), **service.get("environment", {})},
            int(user) if user is not None else target.user if target else 0,
            tuple(health[1:] if health and health[0] == "CMD" else health),
            tuple((source, place) for source, place in volumes),
            {n: d["condition"] for n, d in service.get("depends_on", {}).items()},
            service["image"],
        )
    return services
