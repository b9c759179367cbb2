"""Ids that cannot be guessed, and times as text."""

from __future__ import annotations

import datetime
import secrets


def new_id(prefix: str) -> str:
    """Returns a random id such as `job_3f…`, 128 bits."""
    return f"{prefix}_{secrets.token_hex(16)}"


def iso(seconds: float | None) -> str | None:
    """Returns seconds since 1970 as RFC 3339 text."""
    if seconds is None:
        return None
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
