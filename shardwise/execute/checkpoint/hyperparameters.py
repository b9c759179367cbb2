"""An optimizer's groups as JSON: each group's parameters, by name, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from shardwise.errors import BadInput

OWN = frozenset({"params", "param_names", "foreach", "fused", "capturable", "differentiable"})
"""Options of a process, not of training: never saved, never changed by loading."""


def written(group: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Returns a group as JSON; raises BadInput for an option that JSON cannot express."""
    options = {key: _plain(key, value) for key, value in group.items() if key not in OWN}
    return {"names": names, "options": options}


def _plain(key: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, tuple | list):
        return [_plain(key, each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise BadInput(
        f"is a {type(value).__name__}",
        field=f"optimizer option {key}",
        expected="numbers, strings or tuples of them",
    )


def options_for(names: list[str], groups: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the saved options of a group of parameters; None if none of them was in a group.

    Raises BadInput if they were in groups with different options.
    """
    options = [group["options"] for group in groups if set(names) & set(group["names"])]
    for other in options[1:]:
        if other != options[0]:
            raise BadInput(
                f"has {', '.join(names[:3])}… which were saved in groups with different options",
                field="optimizer",
                expected="parameters grouped as they were",
            )
    return options[0] if options else None


def restored(group: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Puts saved options into a group, converted to the group's types."""
    for key, value in options.items():
        old = group.get(key)
        if isinstance(old, torch.Tensor):
            group[key] = torch.full_like(old, value)
        elif isinstance(value, list):
            group[key] = tuple(value) if not isinstance(old, list) else value
        else:
            group[key] = value
