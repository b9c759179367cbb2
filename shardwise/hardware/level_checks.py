"""What a profile's file may say of its levels of links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from shardwise.hardware.levels import MAX_LEVELS, Level, level_names

Demand = Callable[[bool, str, str, str], None]
"""Raises unless the first holds; then the field, what is wrong with it, what was expected."""

MOST_DEVICES = 10**7
"""Devices of a profile with more than two levels."""


def check_levels(levels: Sequence[Level], devices: int | None, demand: Demand) -> None:
    """Checks the levels of hardware that has `devices` devices in a node; None: as groups say, of
    whose two levels the sizes do not count."""
    demand(
        2 <= len(levels) <= MAX_LEVELS,
        "levels",
        f"{len(levels)} levels",
        f"2 to {MAX_LEVELS} from the innermost outwards: in a node, between nodes, …",
    )
    for i, level in enumerate(levels):
        _check_level(level, i, demand)
    if len(levels) == 2:
        return
    demand(
        levels[0].size == devices,
        "levels[0].size",
        f"got {levels[0].size}",
        f"the devices of a node, devices[0].count, {devices}",
    )
    total = prod(level.size for level in levels)
    demand(
        total <= MOST_DEVICES,
        "levels",
        f"{total} devices",
        f"sizes whose product is at most {MOST_DEVICES}",
    )
    _check_names(levels, demand)


def _check_level(level: Level, number: int, demand: Demand) -> None:
    at = f"levels[{number}]"
    demand(level.size >= 1, f"{at}.size", f"got {level.size}", "at least 1")
    demand(
        level.bandwidth_bytes_per_s > 0,
        f"{at}.bandwidth_bytes_per_s",
        f"got {level.bandwidth_bytes_per_s}",
        "above 0",
    )
    demand(level.latency_s >= 0, f"{at}.latency_s", f"got {level.latency_s}", "at least 0")
    demand(0 < level.efficiency <= 1, f"{at}.efficiency", f"got {level.efficiency}", "in (0, 1]")
    demand(
        level.oversubscription >= 1,
        f"{at}.oversubscription",
        f"got {level.oversubscription}",
        "at least 1: how many times narrower than its bandwidth the level is",
    )
    if number == 0:
        for name in ("uplinks", "rails"):
            demand(
                not getattr(level, name),
                f"{at}.{name}",
                "got true",
                "false at the innermost level: below it are devices",
            )
        demand(
            level.oversubscription == 1,
            f"{at}.oversubscription",
            f"got {level.oversubscription}",
            "1 at the innermost level: its bandwidth is that of one device",
        )
    else:
        demand(
            not level.fully_connected,
            f"{at}.fully_connected",
            "got true",
            "false beyond the innermost level",
        )


def _check_names(levels: Sequence[Level], demand: Demand) -> None:
    """Checks names: axes are called after levels, and pins name these by their first word, so that
    `inside` must be the innermost and `between` the outermost."""
    for i, level in enumerate(levels):
        demand(bool(level.name.strip()), f"levels[{i}].name", "no name", "a name")
    for i, word in ((0, "inside"), (len(levels) - 1, "between")):
        demand(
            levels[i].name.split()[0] == word,
            f"levels[{i}].name",
            f"got {levels[i].name!r}",
            f"{word!r} and more, such as {word + (' a node' if i == 0 else ' racks')!r}",
        )
    names = level_names(levels)
    for name in set(names):
        demand(
            names.count(name) == 1,
            "levels",
            f"two levels called {name!r}",
            "different names for levels whose links differ",
        )


def check_table_levels(
    shape: tuple[int, int], counts: Sequence[int], levels: int, at: str, demand: Demand
) -> None:
    """Checks `ranks_by_level` of a table on `shape`, ranks in a node and nodes."""
    if counts:
        demand(
            len(counts) <= levels and min(counts) >= 1 and (counts[0], prod(counts[1:])) == shape,
            f"{at}.ranks_by_level",
            f"got {list(counts)}",
            f"ranks in a node ({shape[0]}), nodes in a unit of the next level and so on, "
            f"{shape[1]} nodes in all, for at most {levels} levels",
        )
