"""A checkpoint's folder: numbered folders of saved states, and a file that names the valid one.

    path/latest        "00000003"
    path/00000003/     .metadata, *.distcp (torch.distributed.checkpoint), shardwise.json

A state counts only once `latest` names it; that file is written last and replaced in one step.
However a save ends, the previous state stays valid until the new one is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from shardwise.errors import BadInput, ShardwiseError

LATEST = "latest"
CONTENTS = "shardwise.json"


def on_first_rank(work: Callable[[], Any]) -> Any:
    """Runs `work` on rank 0; every rank returns its result or raises its error. Collective."""
    if not several():
        value, error = _tried(work)
    else:
        shared = [_tried(work) if dist.get_rank() == 0 else (None, None)]
        dist.broadcast_object_list(shared, src=0)
        value, error = shared[0]
    if error is not None:
        raise error
    return value


def joined(contents: dict[str, Any]) -> dict[str, Any]:
    """Returns on every rank what all ranks have together, each its own parameters; collective.

    Groups of an optimizer are joined by their place among its groups.
    """
    of_all: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, contents)
    whole: dict[str, Any] = {**contents, "aliases": {}, "groups": [], "state": {}}
    for one in of_all:
        whole["aliases"] |= one["aliases"]
        whole["state"] |= one["state"]
        for place, group in enumerate(one["groups"]):
            if place == len(whole["groups"]):
                whole["groups"].append({"names": [], "options": group["options"]})
            known = whole["groups"][place]["names"]
            known += [name for name in group["names"] if name not in known]
    return whole


def _tried(work: Callable[[], Any]) -> tuple[Any, ShardwiseError | None]:
    try:
        return work(), None
    except OSError as error:
        return None, ShardwiseError(f"{error.filename}: {error.strerror}")
    except ShardwiseError as error:
        return None, error


def several() -> bool:
    """Returns whether there are other ranks."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def latest(path: Path) -> Path:
    """Returns the folder of the valid state; raises BadInput if there is none."""
    pointer = path / LATEST
    if not pointer.is_file():
        raise BadInput(
            "holds no checkpoint", file=str(path), expected="a folder that checkpoint.save wrote"
        )
    return path / pointer.read_text().strip()


def begin(path: Path) -> Path:
    """Returns an empty folder for a new state; removes leftovers of saves that failed."""
    path.mkdir(parents=True, exist_ok=True)
    valid = latest(path) if (path / LATEST).is_file() else None
    for folder in _states(path):
        if folder != valid:
            shutil.rmtree(folder)
    created = path / f"{int(valid.name) + 1 if valid else 1:08d}"
    created.mkdir()
    return created


def commit(folder: Path, contents: dict[str, Any]) -> None:
    """Makes the complete state in `folder` the valid one and removes the previous one."""
    path = folder.parent
    _write(folder / CONTENTS, json.dumps(contents, indent=1))
    _write(path / f"{LATEST}.new", folder.name)
    (path / f"{LATEST}.new").replace(path / LATEST)
    _sync(path)
    for old in _states(path):
        if old != folder:
            shutil.rmtree(old)


def contents(folder: Path) -> dict[str, Any]:
    """Returns what `commit` was given; raises BadInput if it is not a state of shardwise."""
    file = folder / CONTENTS
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise BadInput(
            "is not readable as JSON",
            file=str(file),
            expected="a checkpoint that was written to its end",
        ) from error
    if not isinstance(document, dict) or document.get("schema") != "shardwise.checkpoint/1":
        raise BadInput(
            "is not a shardwise checkpoint",
            file=str(file),
            expected="schema shardwise.checkpoint/1",
        )
    return document


def _states(path: Path) -> list[Path]:
    return [p for p in path.iterdir() if p.name.isdigit() and p.is_dir()]


def _write(file: Path, text: str) -> None:
    with file.open("w") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
