"""YAML from outside: plain values only, bounded in length and depth, one document."""

from __future__ import annotations

from typing import Any

import yaml

from shardwise.errors import BadInput

MOST_CHARACTERS = 2**20
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def read_mapping(text: str, field: str) -> dict[Any, Any]:
    """Returns the mapping of a YAML text (empty for an empty one). `BadInput` names `field`."""
    if len(text) > MOST_CHARACTERS:
        raise BadInput("too long", field=field, expected=f"at most {MOST_CHARACTERS} characters")
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise BadInput(f"not YAML{where}", field=field, expected="one YAML document") from None
    except (RecursionError, ValueError):
        # Deep nesting, an invalid date, or more digits than int() takes.
        raise BadInput("not YAML that can be read", field=field) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadInput("not a mapping", field=field, expected="a YAML mapping")
    return value


def dump_mapping(value: dict[Any, Any]) -> str:
    """Returns the mapping as YAML, in its order."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text
