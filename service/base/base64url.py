"""base64url without padding (RFC 4648, section 5): bytes as text for URLs and cookies."""

from __future__ import annotations

import base64


def to_base64url(data: bytes) -> str:
    """Returns the bytes as base64url text."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def from_base64url(text: str) -> bytes:
    """Returns the bytes of a base64url text. Raises `ValueError` if it is not base64."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
