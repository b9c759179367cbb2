"""The hardware of a cluster: devices, link levels, measured tables; each figure has a source."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import msgspec
import numpy as np

from shardwise.errors import BadInput
from shardwise.hardware.device import Device
from shardwise.hardware.grid import Floats
from shardwise.hardware.groups import DeviceGroup, GroupPath, expected_devices
from shardwise.hardware.host import Host, HostMemory
from shardwise.hardware.levels import Level, Link, distinct, joined_counts, links, trimmed
from shardwise.hardware.operator_tables import OperatorTable
from shardwise.hardware.operator_times import OperatorTimes

SCHEMA = "shardwise.hardware/1"


@dataclass(frozen=True)
class CollectiveTable:
    """Measured times of one operation on one group shape; sizes ascend, in bytes; times in s.

    `times_s` are medians; `p10_s` and `p90_s` their spread and `repeats` how often each size was
    timed, all three empty where unknown. `siblings` is how many groups shared a node's links when
    this was measured (None: unknown). `derived` is the rule that made the table out of others,
    empty for one that was measured. `ranks_by_level`, where there are more than two levels: ranks
    in a node, nodes in a unit of the next level and so on; empty where one unit has all nodes.
    `groups` is the name of each node's group of devices, sorted; empty in a profile without groups.
    """

    operation: str
    nodes: int
    ranks_per_node: int
    consecutive: bool
    sizes_bytes: tuple[float, ...]
    times_s: tuple[float, ...]
    p10_s: tuple[float, ...] = ()
    p90_s: tuple[float, ...] = ()
    repeats: tuple[int, ...] = ()
    siblings: int | None = None
    derived: str = ""
    ranks_by_level: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Ranks of one group."""
        return self.nodes * self.ranks_per_node

    @property
    def counts(self) -> tuple[int, ...]:
        """Ranks in a node, nodes in a unit of the next level, and so on."""
        return self.ranks_by_level or (self.ranks_per_node, self.nodes)


@dataclass(frozen=True)
class Overlap:
    """What a collective and computation do to each other when they run at the same time.

    `hidden_fraction` is how much of the shorter of the two is really hidden behind the other:
    (alone + alone - together) / shorter, 1 when neither notices the other, 0 when the two take
    turns. The slowdowns are each one's time next to the other over its time alone.
    """

    hidden_fraction: float
    computation_slowdown: float
    communication_slowdown: float
    operation: str
    size_bytes: float


@dataclass(frozen=True)
class Waiting:
    """How long a collective waits for the latest rank, by what ranks have computed since the last.

    `compute_s` ascending, `wait_s` as many, seconds at least 0: the mean of all ranks, measured
    with as many as the profile was.
    """

    compute_s: tuple[float, ...]
    wait_s: tuple[float, ...]

    def per_step(self, compute_s: Floats, collectives: Floats) -> Floats:
        """Returns seconds of waiting in steps with this computation and these collectives, (P,).

        Collectives are taken to lie evenly in a step. Measured times are interpolated linearly,
        and constant outside.
        """
        apart = compute_s / np.maximum(collectives, 1.0)
        return np.asarray(collectives * np.interp(apart, self.compute_s, self.wait_s))


TableKey = tuple[str, tuple[int, ...], bool]
"""Operation; ranks in a node, nodes in a unit of the next level and so on; whether consecutive."""


def table_key(table: CollectiveTable) -> TableKey:
    """Returns what a table was measured on, by the levels of its profile's file."""
    return (table.operation, trimmed(table.counts), table.consecutive)


@dataclass(frozen=True)
class Hardware:
    """A profile. `nodes` is fixed by `NAME*NODES`; otherwise any number that the levels hold.

    `two_node_trees`: whether the communication library reduces over two nodes along a tree, which
    halves the bytes between them. `packing`: whether the copies that pack what a collective sends
    and unpack what it brings are priced besides; else a level's `efficiency` includes them.
    `overlap`, `waiting` and `measurement` (when, where and with what the profile was measured) are
    there only where something was measured. `host` is what launching work takes; None where the
    host's time is part of the operators' (CPUs). `host_memory` is what a node has beside its
    devices, where that is known.

    A profile with `groups` has devices of several kinds: `devices` says what a kind can do, not how
    many there are, and the two levels are the links of groups that have none of their own. Nodes
    reach each other through their cards; `paths` are slower ways between two groups. What is asked
    of one kind of device or one kind of node raises `BadInput` then: `of_group` answers it.
    """

    name: str
    provenance: str
    devices: tuple[Device, ...]
    levels: tuple[Level, ...]
    collectives: tuple[CollectiveTable, ...] = ()
    operators: tuple[OperatorTable, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    nodes: int | None = None
    two_node_trees: bool = True
    overlap: Overlap | None = None
    measurement: Mapping[str, Any] = field(default_factory=dict)
    packing: bool = False
    waiting: Waiting | None = None
    host: Host | None = None
    host_memory: HostMemory | None = None
    groups: tuple[DeviceGroup, ...] = ()
    paths: tuple[GroupPath, ...] = ()

    def require_no_groups(self, field: str) -> None:
        """Raises `BadInput`, which lists the groups, if the profile has any.

        `field` is where a number of like devices, or of like nodes, was asked for.
        """
        if self.groups:
            raise BadInput(
                f"{self.name} has groups of devices",
                field=field,
                expected=expected_devices(self.groups),
            )

    def group(self, name: str) -> DeviceGroup:
        """Returns the group of this name. Raises `BadInput`, which lists them."""
        for group in self.groups:
            if group.name == name:
                return group
        names = ", ".join(group.name for group in self.groups)
        raise BadInput(
            f"{self.name} has no group {name!r}",
            field="group",
            expected=f"one of {names}" if names else "a profile with groups of devices",
        )

    def kind(self, kind: str) -> Device:
        """Returns the device of this kind. Raises `BadInput`, which lists the kinds."""
        for device in self.devices:
            if device.kind == kind:
                return device
        raise BadInput(
            f"{self.name} has no devices of kind {kind!r}",
            field="kind",
            expected=f"one of {', '.join(device.kind for device in self.devices)}",
        )

    def path(self, one: str, other: str) -> GroupPath | None:
        """Returns the slower way between two groups, None where their nodes' cards are all."""
        ends = frozenset((one, other))
        return next((path for path in self.paths if path.ends == ends), None)

    def of_group(self, name: str) -> Hardware:
        """Returns the profile, without groups, of one group's nodes: always the same object.

        Raises `BadInput` for an unknown name.
        """
        return self._by_group[self.group(name).name]

    @cached_property
    def _by_group(self) -> Mapping[str, Hardware]:
        return {group.name: _alone(self, group) for group in self.groups}

    @property
    def _device(self) -> Device:
        """The device of a profile without groups: the first of several kinds."""
        self.require_no_groups("gpus")
        return self.devices[0]

    @property
    def per_node(self) -> int:
        """Devices in one node. Raises `BadInput` for a profile with groups."""
        return self._device.count

    @property
    def max_nodes(self) -> int:
        """The most nodes that there can be, those of all groups together."""
        return self.nodes if self.nodes is not None else self.most_nodes

    @property
    def most_nodes(self) -> int:
        """The nodes that the levels, or the groups, hold, whatever number is fixed."""
        if self.groups:
            return sum(group.nodes for group in self.groups)
        return prod(level.size for level in self.levels[1:])

    @cached_property
    def distinct_levels(self) -> tuple[Level, ...]:
        """The levels that differ in their links: meshes and collectives know no others."""
        return distinct(self.levels)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The distinct levels as collectives see them. Raises `BadInput` for one with groups."""
        self.require_no_groups("gpus")
        return links(self.levels)

    @cached_property
    def peak_links(self) -> tuple[Link, ...]:
        """The same without latency and with the full bandwidth."""
        self.require_no_groups("gpus")
        return links(self.levels, peak=True)

    def counts(self, table: CollectiveTable) -> tuple[int, ...]:
        """Returns the ranks and units of a table's groups by distinct level."""
        return joined_counts(self.levels, table.counts)

    @cached_property
    def tables(self) -> Mapping[TableKey, CollectiveTable]:
        """The measured tables by operation and group shape; the first of each counts.

        Raises `BadInput` for a profile with groups.
        """
        self.require_no_groups("gpus")
        tables: dict[TableKey, CollectiveTable] = {}
        for table in self.collectives:
            key = (table.operation, self.counts(table), table.consecutive)
            tables.setdefault(key, table)
        return tables

    @cached_property
    def id(self) -> str:
        """Content id of the profile."""
        content = msgspec.json.encode(hardware_document(self), order="sorted")
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    @cached_property
    def operator_times(self) -> OperatorTimes:
        """The measured times of operators on the first kind of device.

        Raises `BadInput` for a profile with groups.
        """
        return OperatorTimes(self.operators, self._device)

    def copy_times(self, moved_bytes: Floats) -> Floats:
        """Returns seconds of copies that read and write `moved_bytes` in all, 0 for none.

        All 0 where `packing` is not priced. Raises `BadInput` for a profile with groups.
        """
        device = self._device
        if not self.packing:
            return np.zeros_like(moved_bytes)
        times = device.roofline_times(np.zeros_like(moved_bytes), moved_bytes, "float32")
        return np.where(moved_bytes > 0, times, 0.0)

    def with_nodes(self, nodes: int) -> Hardware:
        """Returns the profile with exactly `nodes` nodes. Raises `BadInput` for one with groups."""
        self.require_no_groups("hardware")
        return replace(self, nodes=nodes)

    def with_devices_per_node(self, count: int) -> Hardware:
        """Returns the same devices and links with another number of devices in a node.

        Raises `BadInput` for a profile with groups.
        """
        self.require_no_groups("hardware")
        devices = tuple(replace(d, count=count) for d in self.devices)
        inner = replace(self.levels[0], size=count)
        levels = (inner, *self._widened(1, count / self.levels[0].size))
        return replace(self, name=f"{self.name}[{count}]", devices=devices, levels=levels)

    def with_network(self, bandwidth_bytes_per_s: float) -> Hardware:
        """Returns the same nodes behind another network card (per node, unidirectional).

        The network's own levels, which are its uplinks, become wider or narrower in proportion.
        Raises `BadInput` for a profile with groups.
        """
        self.require_no_groups("hardware")
        own = [i for i, level in enumerate(self.levels) if i and not level.uplinks]
        network = own[0] if own else len(self.levels) - 1
        nodes = prod(level.size for level in self.levels[1:network])
        wanted = bandwidth_bytes_per_s * nodes
        factor = wanted / self.levels[network].bandwidth_bytes_per_s
        card = replace(self.levels[network], bandwidth_bytes_per_s=wanted)
        levels = (*self.levels[:network], card, *self._widened(network + 1, factor))
        gbps = bandwidth_bytes_per_s * 8 / 1e9
        return replace(self, name=f"{self.name}[{gbps:g}Gb/s]", levels=levels)

    def _widened(self, first: int, factor: float) -> tuple[Level, ...]:
        """Returns the levels from `first` on, with those that are uplinks of the one below it
        `factor` times as wide."""
        levels, chained = [], True
        for level in self.levels[first:]:
            chained = chained and level.uplinks
            bandwidth = level.bandwidth_bytes_per_s * (factor if chained else 1.0)
            levels.append(replace(level, bandwidth_bytes_per_s=bandwidth))
        return tuple(levels)


def _alone(whole: Hardware, group: DeviceGroup) -> Hardware:
    """Returns the profile of one group's nodes: its kind, links, tables and sources."""
    return replace(
        whole,
        name=f"{whole.name}/{group.name}",
        devices=(replace(whole.kind(group.kind), count=group.per_node),),
        levels=group.levels(*whole.levels),
        collectives=tuple(
            replace(table, groups=())
            for table in whole.collectives
            if set(table.groups) == {group.name}
        ),
        operators=tuple(table for table in whole.operators if table.device == group.kind),
        sources=group.sources(whole.sources, [device.kind for device in whole.devices]),
        groups=(),
        paths=(),
    )


def hardware_document(hardware: Hardware) -> dict[str, Any]:
    """Returns the file form, `shardwise.hardware/1`."""
    counted = not hardware.groups
    document: dict[str, Any] = msgspec.to_builtins(
        {
            "schema": SCHEMA,
            "name": hardware.name,
            "provenance": hardware.provenance,
            "devices": [_device_document(device, counted) for device in hardware.devices],
            "levels": [_level_document(level) for level in hardware.levels],
            "collectives": [_table_document(table) for table in hardware.collectives],
            "operators": [_operator_document(table) for table in hardware.operators],
            "sources": hardware.sources,
            "two_node_trees": hardware.two_node_trees,
        }
    )
    if hardware.nodes is not None:
        document["nodes"] = hardware.nodes
    if hardware.packing:
        document["packing"] = True
    if hardware.overlap is not None:
        document["overlap"] = msgspec.to_builtins(hardware.overlap)
    if hardware.host is not None:
        document["host"] = msgspec.to_builtins(hardware.host)
    if hardware.host_memory is not None:
        document["host_memory"] = msgspec.to_builtins(hardware.host_memory)
    if hardware.waiting is not None:
        document["waiting"] = msgspec.to_builtins(hardware.waiting)
    if hardware.measurement:
        document["measurement"] = msgspec.to_builtins(hardware.measurement)
    if hardware.groups:
        document["groups"] = [_group_document(group) for group in hardware.groups]
    if hardware.paths:
        document["paths"] = [_path_document(path) for path in hardware.paths]
    return document


def _group_document(group: DeviceGroup) -> dict[str, Any]:
    """Returns the file form of a group, without links that it does not have of its own."""
    document: dict[str, Any] = msgspec.to_builtins(group)
    return {name: value for name, value in document.items() if value is not None}


def _path_document(path: GroupPath) -> dict[str, Any]:
    """Returns the file form of a path, without what is true of most."""
    document: dict[str, Any] = msgspec.to_builtins(path)
    if path.collectives:
        del document["collectives"]
    return {"from": document.pop("source"), "to": document.pop("target"), **document}


def _device_document(device: Device, counted: bool) -> dict[str, Any]:
    """Returns the file form of a device, without what was not measured, without its count unless it
    is `counted`."""
    document: dict[str, Any] = msgspec.to_builtins(device)
    for name in ("products", "attention"):
        if not getattr(device, name):
            del document[name]
    for table in document.get("products", ()):
        if table["unaligned"] == 1.0:
            del table["unaligned"]
    if device.sustained_clock == 1.0:
        del document["sustained_clock"]
    if device.power_limit_w is None:
        del document["power_limit_w"]
    if not counted:
        del document["count"]
    return document


def _level_document(level: Level) -> dict[str, Any]:
    """Returns the file form of a level, without what is as in a level that does not say it."""
    plain = Level(level.name, level.size, 0.0, 0.0, 0.0)
    document: dict[str, Any] = msgspec.to_builtins(level)
    return {k: v for k, v in document.items() if k in _LEVEL or v != getattr(plain, k)}


def _operator_document(table: OperatorTable) -> dict[str, Any]:
    """Returns the file form of an operator's table, without a rule where it was measured."""
    document: dict[str, Any] = msgspec.to_builtins(table)
    if not table.derived:
        del document["derived"]
    return document


def _table_document(table: CollectiveTable) -> dict[str, Any]:
    """Returns the file form of a table, without what is unknown."""
    document: dict[str, Any] = msgspec.to_builtins(table)
    return {k: v for k, v in document.items() if v or k not in _OPTIONAL}


_LEVEL = ("name", "size", "bandwidth_bytes_per_s", "latency_s", "efficiency")
_OPTIONAL = ("p10_s", "p90_s", "repeats", "siblings", "derived", "ranks_by_level", "groups")
