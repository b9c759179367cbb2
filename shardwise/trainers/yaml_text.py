"""YAML, written without PyYAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_INDENT = "  "


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
