"""Values of OmegaConf and Hydra that refer to other values of the same file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_WHOLE = re.compile(r"\$\{\s*([^${}]{1,200}?)\s*\}")
_DEFAULT = re.compile(r"(?:oc\.env:\s*\w+\s*,|[A-Z_][A-Z0-9_]*:)\s*(.*)")
_PATH = re.compile(r"\.*[\w-]+(?:\.[\w-]+)*")
_HOPS = 8
"""References that lead to one another."""


def unresolved(value: Any) -> bool:
    """Returns whether a value is a reference that this file does not resolve."""
    return isinstance(value, str) and "${" in value


def resolved(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a document whose references (`${model.tp}`, `${.tp}`, `${..tp}`) have the values that
    they name, and `${oc.env:TP,4}` and `${TP:4}` (Primus) their default. Others stay as they are.
    """
    made = _mapping(document, (), document)
    return document if made is None else made


def _mapping(
    section: Mapping[str, Any], path: tuple[str, ...], top: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Returns a section with its references resolved, None if it has none."""
    changed: dict[str, Any] = {}
    for key, value in section.items():
        if isinstance(value, Mapping):
            inner = _mapping(value, (*path, str(key)), top)
            if inner is not None:
                changed[key] = inner
        elif unresolved(value):
            changed[key] = _followed(value, path, top)
    return {**section, **changed} if changed else None


def _followed(value: Any, path: tuple[str, ...], top: Mapping[str, Any]) -> Any:
    given = value
    for _ in range(_HOPS):
        match = _WHOLE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return value
        default = _DEFAULT.fullmatch(match[1])
        if default is not None:
            return default[1].strip("\"'")
        if not _PATH.fullmatch(match[1]):
            return given
        keys = match[1].lstrip(".")
        up = len(match[1]) - len(keys)
        begin = path[: len(path) - up + 1] if up else ()
        path = (*begin, *keys.split("."))
        value = top
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        path = path[:-1]
        if value is None or isinstance(value, (Mapping, list)):
            return given
    return given
