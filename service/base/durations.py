"""Durations and moments as people write them: `90d`, `12h`, `2026-03-01`."""

from __future__ import annotations

import datetime
import re

from shardwise.errors import BadInput

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhdw]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
MOST_TEXT = 40


def seconds_of(text: str, field: str) -> float:
    """Returns a duration in seconds. Raises BadInput for any other text."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise BadInput(
            f"got {text[:MOST_TEXT]!r}", field=field, expected="a duration such as 90d, 12h or 30m"
        )
    return float(match[1]) * _SECONDS[match[2]]


def moment_of(text: str, field: str) -> float:
    """Returns an ISO 8601 date or time as seconds since 1970; without a zone it is UTC.

    Raises BadInput for any other text.
    """
    try:
        moment = datetime.datetime.fromisoformat(text.strip()[:MOST_TEXT])
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise BadInput(
            f"got {text[:MOST_TEXT]!r}", field=field, expected="a date such as 2030-01-31T12:00:00Z"
        ) from None


def is_duration(text: str) -> bool:
    """Returns whether a text is a duration, not a date."""
    return _DURATION.fullmatch(text.strip().lower()) is not None
