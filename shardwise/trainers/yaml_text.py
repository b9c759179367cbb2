"""YAML: written by hand, read by PyYAML where it is installed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shardwise.errors import BadInput

_INDENT = "  "
_DEEPEST = 20


def yaml_text(document: Mapping[str, Any], depth: int = 0) -> str:
    """Returns mappings of numbers, truths, texts, None and lists of texts as YAML."""
    lines: list[str] = []
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            lines.append(f"{_INDENT * depth}{key}:\n{yaml_text(value, depth + 1)}")
        else:
            lines.append(f"{_INDENT * depth}{key}: {_scalar(value)}\n")
    return "".join(lines)


def _scalar(value: Any) -> str:
    """Returns a value as JSON, which YAML contains, but simple words without quotes."""
    words = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
    if isinstance(value, str) and value.replace("_", "").isalpha() and value.lower() not in words:
        return value
    text = json.dumps(value)
    if isinstance(value, float) and "." not in text:
        # YAML 1.1 takes 1e-08 for a text.
        return text.replace("e", ".0e")
    return text


def read_yaml(text: str, file: str) -> Any:
    """Returns a YAML document.

    Raises `BadInput` for what is no YAML, what nests too deeply, and where PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise BadInput(
            "YAML is read by PyYAML, which is not installed",
            file=file,
            expected="pip install 'shardwise[trainers]'",
        ) from None
    try:
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise BadInput("aliases are not read", file=file, expected="plain YAML")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise BadInput(f"nested deeper than {_DEEPEST}", file=file)
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f" in line {line + 1}"
        raise BadInput(f"not YAML{where}", file=file, expected="a trainer's file") from None
