"""Names that may become part of a path or of a command's option."""

from __future__ import annotations

import re
from typing import Any

from shardwise.errors import BadInput

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def safe_name(value: Any, field: str) -> str:
    """Returns `value` if it is one harmless part of a path.

    Raises `BadInput` for anything with a slash, a leading dot or dash, or blanks.
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value) or ".." in value:
        raise BadInput(
            f"{_shown(value)} is not a name", field=field, expected="letters, digits, _ . : -"
        )
    return value


def variable_name(value: Any, field: str) -> str:
    """Returns `value` if it may name an environment variable."""
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        raise BadInput(
            f"{_shown(value)} is not a variable name", field=field, expected="letters, digits, _"
        )
    return value


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."
