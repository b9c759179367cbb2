"""What a profile's file may say of groups of devices, and of the paths between them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardwise.hardware.groups import DeviceGroup, GroupLink, GroupPath
from shardwise.hardware.level_checks import MOST_DEVICES, Demand
from shardwise.hardware.levels import Level

NAME = re.compile(r"[a-z0-9_.-]+")
"""A group's name: questions write it as `v100=2`, separated by commas."""


def check_groups(groups: Sequence[DeviceGroup], kinds: Sequence[str], demand: Demand) -> None:
    """Checks groups of a profile whose devices are of `kinds`."""
    for i, kind in enumerate(kinds):
        at = f"devices[{i}].kind"
        demand(
            kind not in kinds[:i], at, f"{kind!r} twice", "each kind once where there are groups"
        )
    for i, group in enumerate(groups):
        at = f"groups[{i}]"
        _check_name(group.name, [other.name for other in groups[:i]], f"{at}.name", demand)
        demand(
            group.kind in kinds,
            f"{at}.kind",
            f"unknown kind {group.kind!r}",
            f"one of {', '.join(kinds)}",
        )
        for name in ("nodes", "per_node"):
            value = getattr(group, name)
            demand(value >= 1, f"{at}.{name}", f"got {value}", "at least 1")
        for name in ("inside", "network"):
            link = getattr(group, name)
            if link is not None:
                _check_link(link, f"{at}.{name}", demand)
    total = sum(group.gpus for group in groups)
    demand(
        total <= MOST_DEVICES, "groups", f"{total} devices", f"at most {MOST_DEVICES} in all groups"
    )


def _check_name(name: str, others: Sequence[str], at: str, demand: Demand) -> None:
    demand(
        NAME.fullmatch(name) is not None,
        at,
        f"got {name!r}",
        "a name of the characters a to z, 0 to 9, _, . and -",
    )
    demand(name not in others, at, f"{name!r} twice", "each name once")


def _check_link(link: GroupLink | GroupPath, at: str, demand: Demand) -> None:
    bandwidth, latency = link.bandwidth_bytes_per_s, link.latency_s
    demand(bandwidth > 0, f"{at}.bandwidth_bytes_per_s", f"got {bandwidth}", "above 0")
    demand(latency >= 0, f"{at}.latency_s", f"got {latency}", "at least 0")
    if isinstance(link, GroupLink):
        efficiency = link.efficiency
        demand(0 < efficiency <= 1, f"{at}.efficiency", f"got {efficiency}", "in (0, 1]")


def check_group_levels(levels: Sequence[Level], demand: Demand) -> None:
    """Checks the levels of a profile with groups: two plain ones, links for groups to fall back
    on."""
    demand(
        len(levels) == 2,
        "levels",
        f"{len(levels)} levels",
        "2 where there are groups: inside a node and between nodes",
    )
    for i, level in enumerate(levels):
        plain = Level(level.name, level.size, 0.0, 0.0, 0.0)
        for name in ("uplinks", "oversubscription", "rails", "fully_connected"):
            value = getattr(level, name)
            demand(
                value == getattr(plain, name),
                f"levels[{i}].{name}",
                f"got {value}",
                "nothing: links of groups have bandwidth, latency and efficiency alone",
            )


def check_paths(paths: Sequence[GroupPath], names: Sequence[str], demand: Demand) -> None:
    """Checks the paths of a profile whose groups are called `names`."""
    for i, path in enumerate(paths):
        at = f"paths[{i}]"
        for member, name in (("from", path.source), ("to", path.target)):
            _check_known(name, names, f"{at}.{member}", demand)
        demand(
            path.source != path.target or not path.collectives,
            f"{at}.to",
            f"got {path.target!r}, where the path begins",
            "another group, or collectives false: those of one group take its network",
        )
        demand(
            path.ends not in [other.ends for other in paths[:i]],
            at,
            f"{path.source!r} and {path.target!r} twice",
            "one path for two groups, which is that of both directions",
        )
        _check_link(path, at, demand)


def check_table_groups(
    groups: Sequence[str], nodes: int, names: Sequence[str], at: str, demand: Demand
) -> None:
    """Checks the `groups` of a collective table over `nodes` nodes: one for each of them."""
    for i, name in enumerate(groups):
        _check_known(name, names, f"{at}.groups[{i}]", demand)
    wanted = nodes if names else 0
    demand(
        len(groups) == wanted,
        f"{at}.groups",
        f"{len(groups)} groups for {nodes} nodes",
        "the group of each node" if names else "none: the profile has no groups",
    )


def _check_known(name: str, names: Sequence[str], at: str, demand: Demand) -> None:
    expected = f"one of {', '.join(names)}" if names else "none: the profile has no groups"
    demand(name in names, at, f"unknown group {name!r}", expected)
