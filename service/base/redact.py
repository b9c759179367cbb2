"""Secrets that a text may contain by accident: a key in a path, a password in a URL.

Nothing of ours puts them there; people do, and the text goes to logs, audit and problem documents.
"""

from __future__ import annotations

import re

_KEY = re.compile(r"\b(sw_[0-9a-f]{16}_|swe_)[0-9A-Za-z_-]{4,}")
_SIGNING = re.compile(r"\bwhsec_[0-9A-Za-z+/=]{4,}")
_PASSWORD = re.compile(r"(://[^\s:/@\"']*:)[^\s@\"'/]+(?=@)")


def redacted(text: str) -> str:
    """Returns the text without secrets of keys and webhooks, enrolment tokens, URL passwords."""
    if "sw" in text:
        text = _KEY.sub(r"\1***", text)
    if "whsec_" in text:
        text = _SIGNING.sub("whsec_***", text)
    return _PASSWORD.sub(r"\1***", text) if "@" in text else text
