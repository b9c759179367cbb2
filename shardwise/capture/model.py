"""A model that is ready to be exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Model:
    """A module with its example inputs, all of them on the meta device.

    `prefix` is the attribute path of a wrapper, which names leave out. `input_names` are those of
    `args`, if the module's forward has no meaningful ones. `otherwise` says what to capture where
    this model cannot be.
    """

    module: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    input_names: tuple[str, ...] = ()
    otherwise: str | None = None


def first_names(module: Any) -> dict[str, str]:
    """Maps every parameter and buffer path to the first path of the same tensor (tied weights)."""
    first: dict[int, str] = {}
    result: dict[str, str] = {}
    for listed in (module.named_parameters, module.named_buffers):
        for path, tensor in listed(remove_duplicate=False):
            result[path] = first.setdefault(id(tensor), path)
    return result


def arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Splits example inputs into positional and keyword arguments; a single tensor is one."""
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, list | tuple):
        return tuple(example_inputs), {}
    return (example_inputs,), {}
