"""Profiles of nodes of a GPU from the table, as `shardwise hardware new` writes them.

A node has p devices. The device of the GPU's usual profile (`gpu_profile.py`), its bandwidth to its
peers and its share of the network stay as they are; a node's network is p times that share. Devices
linked pair by pair have (p-1)/(q-1) of the bandwidth that they have in a full node of q. A fabric
that joins d devices beyond the node, such as the 72 of an NVL72 rack, is a level of d/p nodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from shardwise.errors import BadInput
from shardwise.hardware.builtin import list_builtin, profile_of_file
from shardwise.hardware.gpu_profile import (
    PCIE,
    pcie_level,
    pcie_sources,
    published,
    usual_profile,
)
from shardwise.hardware.gpus import Gpu, find_gpu
from shardwise.hardware.hardware import Hardware
from shardwise.hardware.levels import Level
from shardwise.hardware.link_options import Network, parse_inside, parse_network
from shardwise.hardware.power import with_power_limit
from shardwise.hardware.watts import parse_power

MOST_PER_NODE = 256
MOST_NODES = 32_768
USUAL_NODES = 128
"""Nodes that a profile holds where no number is given, as in the built-in profiles."""

NVLINK = "nvlink"
BRIDGED = "dgx-h100"
"""The profile whose latency, and fraction of the bandwidth, an NVLink bridge is assumed to have."""


@dataclass(frozen=True)
class _Inside:
    """The links of a node: its innermost level, whether it is the GPU's usual one and whether
    devices beyond the node are reached by it; what is said of it if it is not the usual one."""

    level: Level
    usual: bool
    beyond: bool
    sources: dict[str, str]


def new_profile(
    gpu: str,
    *,
    per_node: int | None = None,
    nodes: int | None = None,
    inside: str | None = None,
    network: str | None = None,
    power_limit: str | None = None,
    name: str | None = None,
) -> Hardware:
    """Returns the profile of nodes of a GPU, from data sheets.

    `gpu` is found as `find_gpu` does. `per_node` devices in a node, by default as the GPU usually
    has; `nodes` is how many nodes there are, by default any number. `inside`: the name of a fabric,
    or a rate such as `64GB/s`; `network`: `400Gb/s-per-gpu`, `3200Gb/s-per-node` or `8x400Gb/s`;
    by default both are as the data sheets of the GPU's usual machine say. `power_limit`, such as
    `500W`, is what a GPU may take (`power.py`).

    Raises `BadInput`, naming the option, for an unknown GPU, numbers out of range, links and power
    that the GPU does not have and the name of a built-in profile.
    """
    row = find_gpu(gpu)
    base = usual_profile(row)
    count = base.per_node if per_node is None else _in_range(per_node, MOST_PER_NODE, "per-node")
    if nodes is not None:
        _in_range(nodes, MOST_NODES, "nodes")
    links = _inside(row, base, count, inside)
    asked = None if network is None else parse_network(network)
    tables = tuple(t for t in base.collectives if links.usual and t.ranks_per_node <= count)
    profile = replace(
        base,
        name=_name(name, row, count),
        devices=(replace(base.devices[0], count=count),),
        levels=_levels(row, base, links, nodes, asked),
        collectives=tables,
        nodes=nodes,
    )
    sources = _sources(profile, base, links, inside, network)
    profile = replace(
        profile, sources=sources, provenance=_provenance(profile, row, (inside, network))
    )
    if power_limit is None:
        return profile
    limited = with_power_limit(profile, parse_power(power_limit))
    return limited if name is None else replace(limited, name=name)


def ways_inside(gpu: Gpu) -> tuple[str, ...]:
    """Returns what can join the devices of a node of this GPU, its usual fabric first."""
    ways = [gpu.fabric]
    if gpu.bridge is not None:
        ways.append(NVLINK)
    if gpu.pcie is not None:
        ways.append(PCIE)
    return tuple(dict.fromkeys(ways))


def _in_range(value: int, most: int, field: str) -> int:
    if not 1 <= value <= most:
        raise BadInput(f"got {value}", field=field, expected=f"1 to {most:,}")
    return value


def _name(name: str | None, gpu: Gpu, count: int) -> str:
    if name is None:
        return f"{count}x{gpu.name.lower()}"
    if not re.fullmatch(r"[^\s*/][^\n*/]{0,99}", name):
        raise BadInput(
            f"got {name[:40]!r}", field="name", expected="1 to 100 characters, without * and /"
        )
    if name in list_builtin():
        raise BadInput(
            f"{name!r} is a built-in profile", field="name", expected="a name of its own"
        )
    return name


def _inside(gpu: Gpu, base: Hardware, count: int, text: str | None) -> _Inside:
    ways = ways_inside(gpu)
    way = gpu.fabric if text is None else parse_inside(text, ways, gpu.name)
    usual = base.levels[0]
    if isinstance(way, float):
        given = replace(usual, size=count, bandwidth_bytes_per_s=way)
        return _Inside(given, False, True, {"levels.inside": f"given: --inside {text}"})
    if way == gpu.fabric:
        return _Inside(_usual_level(gpu, usual, count), True, True, {})
    if way == PCIE and gpu.pcie is not None:
        return _Inside(pcie_level(gpu.pcie, count), False, False, pcie_sources(gpu.pcie))
    return _bridged(gpu, count)


def _usual_level(gpu: Gpu, usual: Level, count: int) -> Level:
    """Returns the usual innermost level for `count` devices."""
    if not usual.fully_connected:
        return replace(usual, size=count)
    if count > usual.size:
        raise BadInput(
            f"got {count}",
            field="per-node",
            expected=f"1 to {usual.size}: {gpu.name} are linked pair by pair, or --inside RATE",
        )
    share = max(1, count - 1) / (usual.size - 1)
    bandwidth = usual.bandwidth_bytes_per_s * share
    return replace(usual, size=count, bandwidth_bytes_per_s=bandwidth)


def _bridged(gpu: Gpu, count: int) -> _Inside:
    """Returns the links of cards that an NVLink bridge joins, all of a node."""
    bridge = gpu.bridge
    if bridge is None or count > bridge.devices:
        most = 0 if bridge is None else bridge.devices
        raise BadInput(
            f"got {count} {gpu.name}",
            field="per-node",
            expected=f"1 to {most} with --inside {NVLINK}: a bridge joins no more cards",
        )
    like = profile_of_file(BRIDGED).levels[0]
    level = replace(like, size=count, bandwidth_bytes_per_s=bridge.bytes_per_s)
    assumed = f"assumed, as NVLink in {BRIDGED}"
    return _Inside(
        level,
        False,
        False,
        {"levels.inside": gpu.sources["bridge"], "levels.inside.efficiency": assumed},
    )


def _levels(
    gpu: Gpu, base: Hardware, inside: _Inside, nodes: int | None, network: Network | None
) -> tuple[Level, ...]:
    """Returns the levels of a profile, innermost first."""
    usual, *middle, outer = base.levels
    count = inside.level.size
    below = usual.size * (middle[0].size if middle else 1)
    share = outer.bandwidth_bytes_per_s / below
    if network is not None:
        share = network.of_node(count) / count
    if not middle:
        size = USUAL_NODES if nodes is None else nodes
        return (inside.level, replace(outer, size=size, bandwidth_bytes_per_s=count * share))
    if below % count:
        raise BadInput(
            f"got {count}",
            field="per-node",
            expected=f"a number that divides {below}, the {gpu.name} in one domain",
        )
    size = outer.size if nodes is None else -(-nodes * count // below)
    joined = replace(
        middle[0],
        size=below // count,
        bandwidth_bytes_per_s=count * inside.level.bandwidth_bytes_per_s,
    )
    return (
        inside.level, joined, replace(outer, size=size, bandwidth_bytes_per_s=below * share),
    )  # fmt: skip


def _sources(
    profile: Hardware, base: Hardware, links: _Inside, inside: str | None, network: str | None
) -> dict[str, str]:
    sources = dict(base.sources)
    if not profile.collectives:
        sources.pop("collectives", None)
    elif profile.per_node != base.per_node:
        sources["collectives"] += f"; on nodes of {base.per_node}"
    if not links.usual:
        sources.pop("levels.torus", None)
    sources |= links.sources
    if network is not None:
        sources["levels.between"] = f"given: --network {network}"
        sources.pop("levels.between.rails", None)
    if profile.nodes is not None:
        sources["levels.between.size"] = f"given: --nodes {profile.nodes}"
    elif len(profile.levels) == 2:
        sources.setdefault("levels.between.size", f"assumed: {USUAL_NODES} nodes")
    return sources


def _provenance(profile: Hardware, gpu: Gpu, given: tuple[str | None, str | None]) -> str:
    """Returns what the profile's figures are based on, as answers say it."""
    device = profile.devices[0]
    kernels = [
        what
        for what, there in (
            ("matrix products", device.products),
            ("attention", device.attention),
            ("collectives in a node", profile.collectives),
        )
        if there
    ]
    said = [published(gpu)]
    if kernels:
        listed = " and ".join(part for part in (", ".join(kernels[:-1]), kernels[-1]) if part)
        said.append(f"{listed} measured by NVIDIA (NOTICE.md)")
    options = [f"--{o}" for o, text in zip(("inside", "network"), given, strict=True) if text]
    if options:
        said.append(f"links as given by {' and '.join(options)}")
    return "; ".join([*said, "nothing here was measured by Shardwise"])
