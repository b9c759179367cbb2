"""The power of `--power-limit`, read."""

from __future__ import annotations

import re

from shardwise.errors import BadInput

FIELD = "power-limit"
_WATTS = re.compile(r"(?P<number>[0-9]{1,6}(\.[0-9]{1,6})?)\s*(?P<unit>k?W)", re.IGNORECASE)


def parse_power(text: str, field: str = FIELD) -> float:
    """Returns the watts of `500W` or `0.5 kW`.

    Raises `BadInput`, naming the field, for anything else: a number alone could be a share.
    """
    match = _WATTS.fullmatch(text.strip())
    if match is None or not float(match["number"]):
        raise BadInput(f"got {text[:40]!r}", field=field, expected="watts with their unit: 500W")
    return float(match["number"]) * (1000.0 if match["unit"][0] in "kK" else 1.0)
