"""Models that a user's own function builds: `package.module:callable`.

The function returns (module, example inputs); the inputs are a tuple of positional or a dict of
keyword arguments of the module's forward, which should return the loss. The function is called on
the meta device, where tensors have shapes and no data, and on the CPU if that fails. If it takes
keyword arguments `batch` and `seq`, it gets the values the user requested.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shardwise.capture.guard import foreign_code
from shardwise.capture.model import Model, first_names
from shardwise.capture.source import Source
from shardwise.capture.torch_extra import torch_dtype
from shardwise.errors import CaptureError

EXPECTED = "(module, example inputs), the inputs a tuple or a dict of tensors"


def build_callable(
    source: Source, *, batch: int | None, seq: int | None, dtype: str | None
) -> Model:
    """Imports and calls the user's function; moves the module to the meta device.

    A module that is in evaluation mode as a whole is put into training mode; if only submodules are
    (frozen batch normalisation), they stay in evaluation mode.
    """
    import torch

    function = _import(source)
    arguments = _sizes(function, source, batch=batch, seq=seq)
    with foreign_code(f"{source.target}() failed", source=source.text):
        built = _call_without_data(function, arguments)
    if not (isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], torch.nn.Module)):
        raise CaptureError(
            f"{source.target}() returned an object of type {type(built).__name__}",
            file=source.text,
            expected=EXPECTED,
        )
    module, inputs = built
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, tuple | list | Mapping):
        raise CaptureError(
            f"the example inputs are of type {type(inputs).__name__}",
            file=source.text,
            expected=EXPECTED,
        )
    if not module.training:
        module.train()
    wanted = None if dtype is None else torch_dtype(dtype)
    with foreign_code("the module cannot be moved to the meta device", source=source.text):
        shared = first_names(module)
        module = module.to(device="meta", dtype=wanted)
        _tie_again(module, shared)
        moved = torch.utils._pytree.tree_map(lambda value: _moved(value, wanted), inputs)
    if isinstance(moved, Mapping):
        return Model(module, (), {str(key): value for key, value in moved.items()})
    return Model(module, tuple(moved))


def _import(source: Source) -> Callable[..., Any]:
    module_name, _, attribute = source.target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        # The installed command, unlike `python -m`, does not look in the current folder.
        sys.path.insert(0, here)
    with foreign_code(f"cannot import {module_name}", source=source.text):
        target: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise CaptureError(
                f"{module_name} has no {attribute!r}",
                file=source.text,
                expected="package.module:callable",
            )
        target = getattr(target, part)
    if not callable(target):
        raise CaptureError(f"{attribute} cannot be called", file=source.text, expected="a function")
    return target  # type: ignore[no-any-return]


def _sizes(function: Callable[..., Any], source: Source, **given: int | None) -> dict[str, int]:
    wanted = {key: value for key, value in given.items() if value is not None}
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        parameters = {}
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for key in wanted:
        if key not in parameters and not takes_any:
            raise CaptureError(
                f"{source.target} takes no argument {key!r}",
                file=source.text,
                field=key,
                expected=f"def {source.target.rpartition(':')[2]}({key}=…), or no --{key}",
            )
    return wanted


def _call_without_data(function: Callable[..., Any], arguments: dict[str, int]) -> Any:
    import torch

    try:
        with torch.device("meta"):
            return function(**arguments)
    except (RuntimeError, TypeError, ValueError):
        # Code that reads its tensors' data, `x.item()`, cannot run on the meta device.
        return function(**arguments)


def _tie_again(module: Any, shared: Mapping[str, str]) -> None:
    """Ties shared weights again; moving to the meta device gives every module its own copy."""
    for path, first in shared.items():
        if path != first:
            owner, _, name = path.rpartition(".")
            source, _, other = first.rpartition(".")
            setattr(module.get_submodule(owner), name, getattr(module.get_submodule(source), other))


def _moved(value: Any, dtype: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device="meta", dtype=dtype if value.is_floating_point() else None)
