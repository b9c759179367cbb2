"""Saves a model and its optimizer, and loads both under the same plan, another, or none."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from shardwise.errors import BadInput, ShardwiseError
from shardwise.execute.checkpoint import folder as folders
from shardwise.execute.checkpoint import hyperparameters
from shardwise.execute.checkpoint.boxes import Part, parts_of
from shardwise.execute.checkpoint.holdings import Holdings
from shardwise.execute.checkpoint.planners import PartsToLoad, PartsToSave


def save(model: Any, optimizer: torch.optim.Optimizer | None, path: str | Path) -> None:
    """Saves to folder `path`, which all ranks share; collective.

    `model` is what `shardwise.parallelize` returned, a ParameterStore, or any module. The previous
    state in the folder stays valid until this one is complete. Raises BadInput for an optimizer
    whose state does not follow its parameters' shapes, ShardwiseError if writing fails.
    """
    holdings = Holdings(model)
    parts = [
        part
        for name, tensor, place in holdings.tensors()
        if name not in holdings.parameters or name in holdings.written
        for part in parts_of(f"model.{name}", tensor, place)
    ]
    contents: dict[str, Any] = {
        "schema": "shardwise.checkpoint/1",
        "ranks": dist.get_world_size() if folders.several() else 1,
        "aliases": holdings.aliases,
        "groups": [],
        "state": {},
    }
    if optimizer is not None:
        parts += _state_to_save(holdings, optimizer, contents)
    if holdings.is_stage:
        contents = folders.joined(contents)
    folder = folders.on_first_rank(lambda: folders.begin(Path(path)))
    try:
        with _quietly():
            dcp.save(
                {},
                storage_writer=dcp.FileSystemWriter(folder),
                planner=PartsToSave(parts),
                no_dist=not folders.several(),
            )
    except dcp.api.CheckpointException as error:
        raise ShardwiseError(f"{path}: not saved: {_reason(error)}") from error
    folders.on_first_rank(lambda: folders.commit(folder, contents))


def _state_to_save(
    holdings: Holdings, optimizer: torch.optim.Optimizer, contents: dict[str, Any]
) -> list[Part]:
    parts = []
    for group in optimizer.param_groups:
        names = [holdings.name_of(parameter) for parameter in group["params"]]
        contents["groups"].append(hyperparameters.written(group, [n for n in names if n]))
        for name, parameter in zip(names, group["params"], strict=True):
            if name not in holdings.written:
                continue
            entries: dict[str, Any] = {}
            contents["state"][name] = entries
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    parts += holdings.state_part(name, key, value)
                    number = value.dim() == 0 and (parameter.dim() > 0 or key == "step")
                    entries[key] = "number" if number else "tensor"
                elif value is not None:
                    entries[key] = {"value": value}
    return parts


def load(
    model: Any, optimizer: torch.optim.Optimizer | None, path: str | Path, *, strict: bool = True
) -> None:
    """Loads what `save` wrote to folder `path`, whatever plan it was saved under; collective.

    The optimizer takes over the saved state of its parameters and their groups' options. Unless
    `strict`, parameters that the checkpoint lacks are left unchanged. Raises BadInput naming what
    does not fit: a missing parameter, another shape or dtype, another kind of optimizer.
    """
    holdings = Holdings(model)
    folder = folders.on_first_rank(lambda: folders.latest(Path(path)))
    contents = folders.on_first_rank(lambda: folders.contents(folder))
    reader = dcp.FileSystemReader(folder)
    saved = reader.read_metadata().state_dict_metadata
    names = _names(holdings, contents, saved, strict, str(path))
    parts = []
    for name, tensor, place in holdings.tensors():
        if name in names:
            boxes = parts_of(f"model.{names[name]}", tensor, place)
            _check(boxes, tensor, saved, str(path))
            parts += boxes
    state: dict[str, dict[str, Any]] = {}
    if optimizer is not None:
        parts += _state_to_load(holdings, optimizer, contents, saved, names, state)
    try:
        with torch.no_grad(), _quietly():
            dcp.load(
                {},
                storage_reader=reader,
                planner=PartsToLoad(parts),
                no_dist=not folders.several(),
            )
    except dcp.api.CheckpointException as error:
        raise ShardwiseError(f"{path}: not loaded: {_reason(error)}") from error
    if holdings.store is not None:
        holdings.store.mark_written()
    if optimizer is not None:
        _give(holdings, optimizer, contents, names, state)


def _names(
    holdings: Holdings, contents: dict[str, Any], saved: Any, strict: bool, path: str
) -> dict[str, str]:
    """Returns the name under which each tensor was saved."""
    known = {n: group for group in contents["aliases"].values() for n in group}
    chosen = {}
    for name, _, _ in holdings.tensors():
        others = [name, *holdings.aliases.get(name, ()), *known.get(name, ())]
        there = [n for n in others if f"model.{n}" in saved]
        if there:
            chosen[name] = there[0]
        elif strict and name in holdings.parameters:
            raise BadInput(
                "is not in the checkpoint",
                file=path,
                field=name,
                expected="a checkpoint of this model",
            )
    return chosen


def _check(parts: list[Part], tensor: torch.Tensor, saved: Any, path: str) -> None:
    for part in parts[:1]:
        has: TensorStorageMetadata = saved[part.name]
        if tuple(has.size) != part.shape or has.properties.dtype != tensor.dtype:
            raise BadInput(
                f"is {has.properties.dtype} {[*has.size]} in the checkpoint",
                file=path,
                field=part.name.removeprefix("model."),
                expected=f"{tensor.dtype} {[*part.shape]}",
            )


def _state_to_load(
    holdings: Holdings,
    optimizer: torch.optim.Optimizer,
    contents: dict[str, Any],
    saved: Any,
    names: dict[str, str],
    state: dict[str, dict[str, Any]],
) -> list[Part]:
    """Returns memory for the saved state of the optimizer's parameters, noted in `state`."""
    parts = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = holdings.name_of(parameter)
            if name not in names:
                continue
            entries = state[name] = {}
            for key, kind in contents["state"].get(names[name], {}).items():
                if isinstance(kind, dict):
                    entries[key] = kind["value"]
                    continue
                label = f"optimizer.{key}.{names[name]}"
                dtype = saved[label].properties.dtype
                if kind == "number":
                    entries[key] = torch.empty((), dtype=dtype)
                    parts += parts_of(label, entries[key], None)
                else:
                    entries[key] = torch.empty_like(parameter.detach(), dtype=dtype)
                    parts += parts_of(label, entries[key], holdings.place(name))
    return parts


def _give(
    holdings: Holdings,
    optimizer: torch.optim.Optimizer,
    contents: dict[str, Any],
    names: dict[str, str],
    state: dict[str, dict[str, Any]],
) -> None:
    given = optimizer.state_dict()
    order = [holdings.name_of(p) for group in optimizer.param_groups for p in group["params"]]
    given["state"] = {n: state[name] for n, name in enumerate(order) if state.get(name)}
    for group, of_all in zip_longest(given["param_groups"], contents["groups"]):
        if group is None:
            break
        known = [names[order[n]] for n in group["params"] if order[n] in names]
        options = hyperparameters.options_for(known, contents["groups"])
        if options is None and of_all is not None and not any(order):
            # A stage without parameters goes by the group at the same place.
            options = of_all["options"]
        if options is not None:
            hyperparameters.restored(group, options)
    optimizer.load_state_dict(given)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silences torch's warning about a single device, which is intended here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _reason(error: dcp.api.CheckpointException) -> str:
    rank, (cause, _) = min(error.failures.items())
    return f"rank {rank}: {' '.join(str(cause).split()) or type(cause).__name__}"
