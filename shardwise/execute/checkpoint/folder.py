"""A checkpoint's folder: numbered folders of saved states, and a file that names the valid one.

    path/latest        "00000003"
    path/00000003/     .metadata, *.distcp (torch.distributed.checkpoint), shardwise.json

A state counts only when `latest` names it, which is written last and replaced in one step: however
a save ends, the state before it stays valid until the new one is whole.
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
    """What rank 0 makes of `work`, on every rank; so is its error. Collective."""
    if not several():
        value, error = _tried(work)
    else:
        shared = [_tried(work) if dist.get_rank() == 0 else (None, None)]
        dist.broadcast_object_list(shared, src=0)
        value, error = shared[0]
    if error is not None:
        raise error
    return value


def _tried(work: Callable[[], Any]) -> tuple[Any, ShardwiseError | None]:
    try:
        return work(), None
    except OSError as error:
        return None, ShardwiseError(f"{error.filename}: {error.strerror}")
    except ShardwiseError as error:
        return None, error


def several() -> bool:
    """Whether there are other ranks."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def latest(path: Path) -> Path:
    """The folder of the valid state; raises BadInput where there is none."""
    pointer = path / LATEST
    if not pointer.is_file():
        raise BadInput(
            "holds no checkpoint", file=str(path), expected="a folder that checkpoint.save wrote"
        )
    return path / pointer.read_text().strip()


def begin(path: Path) -> Path:
    """An empty folder for a new state; leftovers of saves that failed are removed."""
    path.mkdir(parents=True, exist_ok=True)
    valid = latest(path) if (path / LATEST).is_file() else None
    for folder in _states(path):
        if folder != valid:
            shutil.rmtree(folder)
    made = path / f"{int(valid.name) + 1 if valid else 1:08d}"
    made.mkdir()
    return made


def commit(folder: Path, contents: dict[str, Any]) -> None:
    """The state in `folder` is whole: it is the valid one now, and the one before goes."""
    path = folder.parent
    _write(folder / CONTENTS, json.dumps(contents, indent=1))
    _write(path / f"{LATEST}.new", folder.name)
    (path / f"{LATEST}.new").replace(path / LATEST)
    _sync(path)
    for old in _states(path):
        if old != folder:
            shutil.rmtree(old)


def contents(folder: Path) -> dict[str, Any]:
    """What `commit` was given; raises BadInput if it is no state of ours."""
    file = folder / CONTENTS
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise BadInput("is not readable as JSON", file=str(file)) from error
    if not isinstance(found, dict) or found.get("schema") != "shardwise.checkpoint/1":
        raise BadInput("is not ours", file=str(file), expected="schema shardwise.checkpoint/1")
    return found


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
