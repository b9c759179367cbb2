"""One profile out of those of its groups, and of what was measured between them.

    path of two groups      send_receive between one node of each: siblings · size / t of the
                            fastest size; what one node sends another, not collectives
    network of one node     of a group of one node: bus bandwidth that collectives over several
                            groups reached at their fastest size, siblings counted; the fastest
                            table's if no card's rate is known, and the median's share of it
    latency                 the smallest all_reduce over 2 log2 n steps (`collectives.py`)

A group of several nodes has its network from collectives over them (`measure/profile.py`).
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from shardwise import __version__
from shardwise.hardware import hardware_document, hardware_from_document
from shardwise.hardware.bandwidth import bus_bandwidth
from shardwise.hardware.groups import DeviceGroup, GroupLink, GroupPath
from shardwise.hardware.hardware import CollectiveTable, Hardware, Overlap
from shardwise.hardware.host import Host
from shardwise.hardware.levels import BETWEEN, INSIDE, Level
from shardwise.measure.kinds.layout import MeasuredGroup
from shardwise.measure.links import Link
from shardwise.measure.profile import step_s

REACHED = "what collectives over several groups reached"
PATHS = "send_receive between one node of each group, all of their ranks at once"
NOT_MEASURED = "not measured: no collective over this group and another; its links inside"


def merged_profile(
    name: str,
    groups: Sequence[MeasuredGroup],
    parts: Sequence[Hardware],
    joint: Sequence[CollectiveTable],
    cards: Sequence[Link | None],
    overlap: Overlap | None,
    facts: Mapping[str, Any],
) -> Hardware:
    """Returns the profile of groups that have measured themselves as `parts`.

    `joint` are tables over several groups, `cards` each group's known way out of a node. Waiting is
    that of the group with the most ranks, the host's time that of the slowest host.
    """
    now = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")
    sources: dict[str, str] = {}
    described, links = [], []
    for group, part, card in zip(groups, parts, cards, strict=True):
        own = [t for t in joint if group.name in t.groups]
        network, source = _network(part, own, card)
        inside = _link(part.levels[0])
        links.append((inside, network))
        described.append(
            DeviceGroup(group.name, group.kind, len(group.nodes), group.per_node, inside, network)
        )
        sources[f"groups.{group.name}.inside"] = part.sources["levels.inside"]
        sources[f"groups.{group.name}.network"] = source
        sources[f"devices.{group.kind}"] = part.sources["devices"]
    paths = _paths([group.name for group in groups], joint)
    if paths:
        sources["paths"] = PATHS
    by_kind = {g.kind: part.devices[0] for g, part in reversed([*zip(groups, parts, strict=True)])}
    devices = tuple(by_kind[kind] for kind in dict.fromkeys(g.kind for g in groups))
    inside, network = links[0]
    nodes = sum(len(group.nodes) for group in groups)
    tables = [
        replace(table, groups=(group.name,) * table.nodes)
        for group, part in zip(groups, parts, strict=True)
        for table in part.collectives
    ]
    largest = max(zip(groups, parts, strict=True), key=lambda pair: len(pair[0].ranks))[1]
    profile = Hardware(
        name,
        f"measured on {now[:10]} on ranks of {len(groups)} groups: "
        f"{', '.join(f'{len(g.ranks)} {g.kind}' for g in groups)} "
        f"({facts['backend']} of torch {facts['torch']})",
        devices,
        (
            _level(INSIDE, max(group.per_node for group in groups), inside),
            _level(BETWEEN, nodes, network),
        ),
        (*tables, *joint),
        sources={"levels": f"those of {groups[0].name}; every group has its own", **sources},
        overlap=overlap,
        waiting=largest.waiting,
        packing=True,
        host=_slowest_host(parts),
        groups=tuple(described),
        paths=tuple(paths),
        measurement={
            "when": now,
            "shardwise": __version__,
            "python": platform.python_version(),
            "nodes": nodes,
            **facts,
            "left_out": [
                *(line for part in parts for line in part.measurement["left_out"]),
                *facts["left_out"],
            ],
        },
    )
    return hardware_from_document(hardware_document(profile))


def _link(level: Level) -> GroupLink:
    return GroupLink(level.bandwidth_bytes_per_s, level.latency_s, level.efficiency)


def _level(name: str, size: int, link: GroupLink) -> Level:
    return Level(name, size, link.bandwidth_bytes_per_s, link.latency_s, link.efficiency)


def _network(
    part: Hardware, joint: Sequence[CollectiveTable], card: Link | None
) -> tuple[GroupLink, str]:
    """Returns a node's way to all others, and the source of its figures."""
    if (part.nodes or 1) > 1:
        return _link(part.levels[1]), part.sources["levels.between"]
    if not joint:
        return _link(part.levels[0]), NOT_MEASURED
    reached = [_reached(table) for table in joint]
    peak = max(reached) if card is None else card.peak_bytes_per_s
    efficiency = min(float(np.median(reached)) / peak, 1.0)
    source = REACHED if card is None else f"{card.source}; efficiency: {REACHED}"
    return GroupLink(peak, step_s(joint), efficiency), source


def _reached(table: CollectiveTable) -> float:
    """Returns the most bytes per second that a node's card carried along a ring, of all siblings
    together."""
    calls = zip(table.sizes_bytes, table.times_s, strict=True)
    most = max(bus_bandwidth(table.operation, table.size, *call) for call in calls)
    return most * (table.siblings or 1)


def _paths(names: Sequence[str], joint: Sequence[CollectiveTable]) -> list[GroupPath]:
    """Returns the measured ways between groups."""
    paths = []
    for one, other in combinations(names, 2):
        for table in joint:
            pair = table.nodes == 2 and table.groups == tuple(sorted((one, other)))
            if pair and table.operation == "send_receive" and table.ranks_per_node == 1:
                paths.append(GroupPath(one, other, _reached(table), table.times_s[0], False))
    return paths


def _slowest_host(parts: Sequence[Hardware]) -> Host | None:
    """Returns what launching takes on the slowest host; None where all compute on CPUs."""
    hosts = [part.host for part in parts if part.host is not None]
    return max(hosts, key=lambda host: host.operator_s) if hosts else None
