"""What a tool may name: documents that only the tools have."""

from __future__ import annotations

import msgspec

from shardwise.capture.shipped import RECIPES, SHIPPED
from shardwise.documents.stored import GraphSummary
from shardwise.hardware import list_builtin, load_hardware


class ShippedGraph(msgspec.Struct, frozen=True):
    """A graph that Shardwise ships: its name as `graph`, and what it was captured from.

    `batch` is in samples, `sequence` in tokens, null for models without one.
    """

    graph: str
    source: str
    batch: int
    sequence: int | None
    dtype: str


class Graphs(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.shipped-graphs/1"):
    """The graphs that Shardwise ships."""

    graphs: list[ShippedGraph]


class GraphsPage(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.page/1"):
    """A page of a service's graphs; `next` is the cursor of the next one. The first page also has
    the shipped ones."""

    items: list[GraphSummary]
    next: str | None
    shipped: list[ShippedGraph]


class Devices(msgspec.Struct, frozen=True):
    """Devices of one kind in a profile: how many a node has, and the memory of one.

    `group` and `nodes` are null where the profile has one kind and any number of nodes.
    """

    kind: str
    per_node: int
    memory_bytes: int
    group: str | None
    nodes: int | None


class Profile(msgspec.Struct, frozen=True):
    """A built-in profile: its name as `hardware`, its devices, what its numbers are based on."""

    hardware: str
    devices: list[Devices]
    provenance: str


class Profiles(msgspec.Struct, frozen=True, tag_field="schema", tag="shardwise.profiles/1"):
    """The built-in hardware profiles."""

    profiles: list[Profile]


def shipped_graphs() -> Graphs:
    """Returns the graphs that are shipped."""
    return Graphs(
        [
            ShippedGraph(f"{SHIPPED}{name}", of.source, of.batch, of.seq, of.dtype)
            for name, of in RECIPES.items()
        ]
    )


def built_in_profiles() -> Profiles:
    """Returns the profiles that are built in."""
    return Profiles([_profile(name) for name in list_builtin()])


def _profile(name: str) -> Profile:
    hardware = load_hardware(name)
    if hardware.groups:
        devices = [
            Devices(
                of.devices[0].kind,
                group.per_node,
                int(of.devices[0].memory_bytes),
                group.name,
                group.nodes,
            )
            for group in hardware.groups
            for of in [hardware.of_group(group.name)]
        ]
    else:
        one = hardware.devices[0]
        devices = [Devices(one.kind, hardware.per_node, int(one.memory_bytes), None, None)]
    return Profile(name, devices, hardware.provenance)
