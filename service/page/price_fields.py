"""Prices by group on the form of a quote: a field for each group of a profile.

Where no script runs, one text has all of them, as `v100=2.5,p100=1.4`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from shardwise.errors import BadInput
from shardwise.hardware import GroupPrice, node_prices, read_offers

TEXT = "prices"
"""The field with all prices as one text."""
FIELD = "prices."
"""The prefix of a group's field name; a refused price has the same name."""


def prices_of(values: Mapping[str, str], number: Callable[[str, str], float]) -> dict[str, float]:
    """Returns USD per hour of one device by group. Raises `BadInput`, naming the field."""
    texts = {name.removeprefix(FIELD): values[name] for name in values if name.startswith(FIELD)}
    for part in values.get(TEXT, "").replace(";", ",").split(","):
        group, given, usd = (word.strip() for word in part.partition("="))
        if not part.strip():
            continue
        if not group or not given or group in texts:
            raise BadInput(
                f"got {part.strip()[:40]!r}",
                field=TEXT,
                expected="GROUP=USD per hour, each group once",
            )
        texts[group] = usd
    return {group: number(usd, f"{FIELD}{group[:40]}") for group, usd in texts.items()}


def with_groups(profiles: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the summaries of profiles that have groups; each group has `shipped`, what the
    shipped offers take for a node of it, or None."""
    return [
        {
            **profile,
            "spec": profile["name"] if profile["builtin"] else profile["id"],
            "groups": [
                {**group, "shipped": _shipped().get((group["kind"], group["per_node"]))}
                for group in profile["groups"]
            ],
        }
        for profile in profiles
        if profile.get("groups")
    ]


@cache
def _shipped() -> dict[tuple[str, int], GroupPrice]:
    return node_prices(read_offers())
