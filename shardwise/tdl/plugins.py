"""Descriptions of installed packages, found by entry points.

    [project.entry-points."shardwise.operators"]
    mylib = "mylib.shardwise_operators"

names a module whose import registers descriptions, or `module:function` that does so when it is
called. All are loaded when the registry is first asked.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from shardwise.errors import ShardwiseError

GROUP = "shardwise.operators"

_state = {"loaded": False}


class PluginError(ShardwiseError):
    """An entry point whose descriptions cannot be loaded."""


def load_plugins() -> None:
    """Loads every entry point, once; raises `PluginError` for the first that fails, each time."""
    if _state["loaded"]:
        return
    # An entry point may ask the registry itself.
    _state["loaded"] = True
    try:
        for point in sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
            _load(point)
    except BaseException:
        _state["loaded"] = False
        raise


def _load(point: EntryPoint) -> None:
    try:
        target = point.load()
        if not isinstance(target, ModuleType):
            target()
    # Whatever another package's code raises, the error names the package.
    except Exception as error:
        package = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
        raise PluginError(
            f"entry point {point.name!r}{package} ({GROUP}: {point.value}) could not be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
