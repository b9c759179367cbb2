"""Readable names: `model.layers.0.self_attn.q_proj.linear`, unique and reproducible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ROOT = "L__self__"


class Names:
    """Hands out each name once; a second `a.add` becomes `a.add_1`."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._used: set[str] = set()
        self._next: dict[str, int] = {}

    def unique(self, base: str) -> str:
        name = base
        while name in self._used:
            self._next[base] = self._next.get(base, 0) + 1
            name = f"{base}_{self._next[base]}"
        self._used.add(name)
        return name

    def short(self, path: str) -> str:
        """Returns `path` without the wrapper's attribute path."""
        if self._prefix and (path + ".").startswith(self._prefix):
            return path[len(self._prefix) :]
        return path


def module_path(meta: Mapping[str, Any]) -> tuple[str, str]:
    """Returns (`layers.0`, `layers.0@3`): a node's module, and the same with its call's number.

    torch numbers the calls of a module that runs several times, such as the cell of an unrolled
    recurrent layer: the number is the time step.
    """
    stack = meta.get("nn_module_stack") or {}
    if not stack:
        return "", ""
    key, (path, _) = list(stack.items())[-1]
    called = str(key).removeprefix(ROOT)
    return str(path), called if called.partition("@")[0] == path else str(path)


def short_kind(kind: str) -> str:
    """Returns `linear` for `aten.linear.default`."""
    namespace, _, rest = kind.partition(".")
    name = rest.partition(".")[0] or namespace
    return name.strip("_") or name
