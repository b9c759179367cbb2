"""base64url without padding (RFC 4648, section 5): bytes as text for URLs and cookies."""

from __future__ import annotations

import base64


def to_base64url(data: bytes) -> str:
    """Returns the text that stands for these bytes."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def from_base64url(text: str) -> bytes:
    """Returns the bytes that a text stands for. Raises `ValueError` for what is not base64."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
