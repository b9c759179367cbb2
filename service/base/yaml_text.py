"""Mappings in YAML from outside, and as we write them."""

from __future__ import annotations

from typing import Any

import yaml

from shardwise.errors import BadInput
from shardwise.yaml_reader import read_yaml

_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def read_mapping(text: str, field: str) -> dict[Any, Any]:
    """Returns the mapping of a YAML text (empty for an empty one).

    Raises `BadInput` naming `field`, as `read_yaml` does, and for what is no mapping.
    """
    value = read_yaml(text, field=field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadInput("not a mapping", field=field, expected="a YAML mapping")
    return value


def dump_mapping(value: dict[Any, Any]) -> str:
    """Returns the mapping as YAML, in its order."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text
