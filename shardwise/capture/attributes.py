"""Arguments of an ATen operator: its tensors in schema order, and the rest as JSON values."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

from shardwise.errors import CaptureError

DROPPED = frozenset(
    {"device", "layout", "memory_format", "pin_memory", "generator", "non_blocking"}
)
"""Arguments that say where and how a tensor is stored, not what is computed."""


@dataclass(frozen=True)
class TensorValue:
    """A tensor of the graph being built, by name."""

    name: str


@dataclass(frozen=True)
class EmptyValue:
    """A tensor without elements, which costs nothing and is no tensor of the graph."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Arguments:
    """`tensors` in schema order, each one's schema name in `roles`; `attributes` has the rest."""

    tensors: tuple[str, ...]
    roles: tuple[str, ...]
    attributes: dict[str, Any]


def bind(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Matches arguments to the schema of `target`; fills in schema defaults."""
    tensors: list[str] = []
    roles: list[str] = []
    attributes: dict[str, Any] = {}
    for position, argument in enumerate(target._schema.arguments):
        if position < len(args) and not argument.kwarg_only:
            value = args[position]
        elif argument.name in kwargs:
            value = kwargs[argument.name]
        elif argument.has_default_value():
            value = argument.default_value
        else:
            continue
        name = argument.name
        if isinstance(value, TensorValue):
            tensors.append(value.name)
            roles.append(name)
        elif isinstance(value, list | tuple) and any(isinstance(v, TensorValue) for v in value):
            for place, item in enumerate(value):
                if isinstance(item, TensorValue):
                    tensors.append(item.name)
                    roles.append(f"{name}.{place}")
        elif name not in DROPPED and not _absent_tensor(argument, value):
            attributes[name] = plain(value, f"{target}.{name}")
    return Arguments(tuple(tensors), tuple(roles), attributes)


def plain(value: Any, where: str) -> Any:
    """Returns a JSON value; dtypes by name, non-finite numbers as "inf", "-inf" and "nan"."""
    import torch

    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        # The open end of a slice; other programs cannot read such a large number.
        return None if value == sys.maxsize else int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, list | tuple):
        return [plain(item, where) for item in value]
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise CaptureError(
            f"{where} depends on tensor values", expected="a model whose shapes are static"
        )
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return str(value)
    raise CaptureError(f"{where}: a {type(value).__name__} cannot be written to a graph file")


def dtype_name(dtype: Any) -> str:
    """Returns the name of a dtype, such as `bfloat16` for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def _absent_tensor(argument: Any, value: Any) -> bool:
    return value is None and "Tensor" in str(argument.type)
