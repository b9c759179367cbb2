"""Capture: turns PyTorch models into training graphs. torch is imported only when it is used."""

import sys
from types import ModuleType
from typing import Any

from shardwise.capture.capture import capture
from shardwise.capture.presets import preset_names
from shardwise.capture.shipped import load_graph, shipped_graph, shipped_names
from shardwise.capture.zoo import zoo_names, zoo_options

__all__ = [
    "capture",
    "load_graph",
    "preset_names",
    "shipped_graph",
    "shipped_names",
    "zoo_names",
    "zoo_options",
]


class _Callable(ModuleType):
    """`shardwise.capture` is this module and, as the other functions of the package, a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return capture(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
