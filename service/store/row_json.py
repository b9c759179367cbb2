"""Values of rows as JSON, and back: bytes as `{"$bytes": BASE64}`."""

from __future__ import annotations

import base64
from typing import Any

_BYTES = "$bytes"


def packed(value: Any) -> Any:
    """Returns a row's value in a form that JSON can represent."""
    return {_BYTES: base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def unpacked(value: Any) -> Any:
    """Returns the value that `packed` was given. Raises `ValueError` if it is not base64."""
    if isinstance(value, dict) and value.keys() == {_BYTES}:
        return base64.b64decode(value[_BYTES])
    return value
