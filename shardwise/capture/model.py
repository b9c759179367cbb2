"""A model that is ready to be exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Model:
    """A module with its example inputs, all of them on the meta device.

    `prefix` is the attribute path of a wrapper, which names do not show. `input_names` are those
    of `args`, where the module's forward has no telling ones of its own.
    """

    module: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    input_names: tuple[str, ...] = ()


def first_names(module: Any) -> dict[str, str]:
    """For every parameter and buffer path, the first path of the same tensor (tied weights)."""
    first: dict[int, str] = {}
    result: dict[str, str] = {}
    for listed in (module.named_parameters, module.named_buffers):
        for path, tensor in listed(remove_duplicate=False):
            result[path] = first.setdefault(id(tensor), path)
    return result
