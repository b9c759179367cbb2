"""Nodes of several profiles as one profile with groups, for a job on all of them together.

Each profile becomes a group of its own, with its device, its links inside a node and its card to
the network. Nothing is measured between nodes of different profiles, so that way is an assumption:
it has the bandwidth of the slower of both networks and the larger of both latencies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from shardwise.errors import BadInput
from shardwise.hardware.group_checks import NAME, check_group_levels
from shardwise.hardware.groups import DeviceGroup, GroupLink, GroupPath
from shardwise.hardware.hardware import Hardware
from shardwise.hardware.host import Host
from shardwise.hardware.levels import BETWEEN, INSIDE, Level

ASSUMPTION = (
    "between nodes of different kinds nothing is known: the bandwidth of the slower of both "
    "networks and the larger of both latencies are assumed"
)
"""What is said of the way between nodes of different profiles."""


@dataclass(frozen=True)
class Nodes:
    """`nodes` nodes of a profile of one kind of device; `name` is the group's."""

    name: str
    hardware: Hardware
    nodes: int


def combined_profile(parts: Sequence[Nodes]) -> Hardware:
    """Returns one profile with a group for each part, in this order.

    A group alone has the same device, links and tables as its part had. Between groups holds
    `ASSUMPTION`, which the provenance says. The host's time is that of the slowest part's; what was
    measured of overlap and of waiting holds for one profile alone and is left out. Raises
    `BadInput` for fewer than two parts, parts of the same name or kind, a name or a number of nodes
    that is no group's, and a profile with groups or with other levels than a plain one inside a
    node and a plain one between nodes.
    """
    _check(parts)
    groups = tuple(_group(part) for part in parts)
    paths = tuple(_path(one, other) for one, other in combinations(groups, 2))
    inner, outer = _level(parts, 0), _level(parts, 1)
    return Hardware(
        name="+".join(f"{part.hardware.name}*{part.nodes}" for part in parts),
        provenance=f"{' and '.join(part.hardware.name for part in parts)} as one cluster; "
        f"{ASSUMPTION}. "
        + "; ".join(f"{part.hardware.name}: {part.hardware.provenance}" for part in parts),
        devices=tuple(part.hardware.devices[0] for part in parts),
        levels=(
            replace(inner, name=INSIDE, size=max(part.hardware.per_node for part in parts)),
            replace(outer, name=BETWEEN, size=sum(part.nodes for part in parts)),
        ),
        collectives=tuple(
            replace(table, groups=(part.name,) * table.nodes)
            for part in parts
            for table in part.hardware.collectives
        ),
        operators=tuple(
            table
            for part in parts
            for table in part.hardware.operators
            if table.device == part.hardware.devices[0].kind
        ),
        sources=_sources(parts),
        two_node_trees=all(part.hardware.two_node_trees for part in parts),
        packing=all(part.hardware.packing for part in parts),
        host=_host([part.hardware.host for part in parts]),
        groups=groups,
        paths=paths,
    )


def group_name(text: str) -> str:
    """Returns a text as a group's name: `A100-80GB` as `a100-80gb`."""
    return "".join(c if NAME.fullmatch(c) else "-" for c in text.lower())[:40] or "devices"


def _check(parts: Sequence[Nodes]) -> None:
    def demand(holds: bool, field: str, problem: str, expected: str) -> None:
        if not holds:
            raise BadInput(problem, field=field, expected=expected)

    demand(len(parts) >= 2, "parts", f"{len(parts)} profiles", "at least two")
    for place, part in enumerate(parts):
        at, before = f"parts[{place}]", parts[:place]
        part.hardware.require_no_groups(f"{at}.hardware")
        most = part.hardware.max_nodes
        demand(1 <= part.nodes <= most, f"{at}.nodes", f"got {part.nodes}", f"1 to {most}")
        named = NAME.fullmatch(part.name) is not None
        demand(named, f"{at}.name", f"got {part.name!r}", "a group's name")
        demand(
            part.name not in [other.name for other in before],
            f"{at}.name", f"{part.name!r} twice", "each name once",
        )  # fmt: skip
        kind = part.hardware.devices[0].kind
        demand(
            kind not in [other.hardware.devices[0].kind for other in before],
            f"{at}.hardware", f"{kind!r} twice", "profiles of different kinds of devices",
        )  # fmt: skip
        check_group_levels(part.hardware.levels, demand)


def _group(part: Nodes) -> DeviceGroup:
    inside, between = (
        GroupLink(level.bandwidth_bytes_per_s, level.latency_s, level.efficiency)
        for level in part.hardware.levels
    )
    kind, per_node = part.hardware.devices[0].kind, part.hardware.per_node
    return DeviceGroup(part.name, kind, part.nodes, per_node, inside, between)


def _path(one: DeviceGroup, other: DeviceGroup) -> GroupPath:
    """Returns the assumed way between nodes of two groups, as `ASSUMPTION` says."""
    cards = [link for link in (one.network, other.network) if link is not None]
    return GroupPath(
        one.name,
        other.name,
        min(link.bandwidth_bytes_per_s * link.efficiency for link in cards),
        max(link.latency_s for link in cards),
    )


def _level(parts: Sequence[Nodes], number: int) -> Level:
    """Returns the slowest of the parts' levels."""
    levels = [part.hardware.levels[number] for part in parts]
    return min(levels, key=lambda level: level.bandwidth_bytes_per_s * level.efficiency)


def _host(hosts: Sequence[Host | None]) -> Host | None:
    known = [host for host in hosts if host is not None]
    if not known:
        return None
    return Host(max(h.operator_s for h in known), max(h.collective_s for h in known))


def _sources(parts: Sequence[Nodes]) -> Mapping[str, str]:
    """Returns where figures are from, by the names that they have in a profile with groups."""
    sources: dict[str, str] = {"paths": f"assumed: {ASSUMPTION}"}
    said: dict[str, dict[str, str]] = {}
    for part in parts:
        own = {
            "levels.inside": f"groups.{part.name}.inside",
            "levels.between": f"groups.{part.name}.network",
            "devices": f"devices.{part.hardware.devices[0].kind}",
        }
        for field, text in part.hardware.sources.items():
            if field == "host_memory":
                continue  # of nodes of one kind; a profile with groups says nothing of its hosts
            plain = next((p for p in own if field == p or field.startswith(f"{p}.")), None)
            if plain is not None:
                sources[own[plain] + field.removeprefix(plain)] = text
            else:
                said.setdefault(field, {})[part.name] = text
    for field, texts in said.items():
        if len(set(texts.values())) == 1:
            sources[field] = next(iter(texts.values()))
        else:
            sources[field] = "; ".join(f"{name}: {text}" for name, text in texts.items())
    return sources
