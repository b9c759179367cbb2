"""Builds a profile, `shardwise.hardware/1`, from what was measured."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log2
from typing import Any

import numpy as np

from shardwise import __version__
from shardwise.hardware.device import Device
from shardwise.hardware.hardware import CollectiveTable, Hardware, Overlap, Waiting
from shardwise.hardware.levels import ACROSS_RACK, BETWEEN, BETWEEN_RACKS, INSIDE, Level
from shardwise.hardware.verdict import reached_bytes_per_s, verdict
from shardwise.measure.host import MeasuredHost
from shardwise.measure.links import Link
from shardwise.measure.rank import Rank

UNUSED = "not measured: one node; no group crosses it"


def assemble(
    rank: Rank,
    name: str,
    device: Device,
    links: Mapping[str, Link | None],
    tables: Sequence[CollectiveTable],
    host: MeasuredHost | None,
    overlap: Overlap | None,
    waiting: Waiting | None,
    notes: Sequence[str],
    facts: Mapping[str, Any],
    nodes_per_rack: int | None = None,
) -> Hardware:
    """Returns the profile of `world.nodes` nodes like this one, in racks if there are several.

    A level's bandwidth is its link's known peak, its efficiency what collectives reached of it; if
    no peak is known, as of a rack's uplink, the bandwidth is what was reached and the efficiency 1.
    """
    world = rank.world
    now = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")
    parts = ["collectives"] if tables else []
    parts += ["overlap"] if overlap is not None else []
    parts += ["waiting"] if waiting is not None else []
    parts += ["host"] if host is not None else []
    what = ", ".join([*parts, "device"])
    of_host = {} if host is None else {"host": host.source(now[:10])}
    levels = _levels(rank, device, links, nodes_per_rack)
    words = [level.name.partition(" ")[0] for level in levels]
    # A rack's uplink has no peak that a host could know.
    peaks = dict(zip(words, (links.get("inside"), links.get("between"), None), strict=False))
    sources = {f"levels.{word}": _source(link) for word, link in peaks.items()}
    if world.nodes == 1:
        sources["levels.between"] = UNUSED
    versions = f"{rank.backend} of torch {rank.torch.__version__}"
    hardware = Hardware(
        name,
        f"measured on {now[:10]} on {facts['host']}: {what} ({versions}, {world.size} ranks on "
        f"{world.nodes} node{'s' if world.nodes > 1 else ''})",
        (device,),
        levels,
        tuple(tables),
        sources={
            "devices": f"measured on {now[:10]}: products, copies, the smallest operator",
            **sources,
            **of_host,
        },
        nodes=world.nodes,
        overlap=overlap,
        waiting=waiting,
        packing=True,
        host=None if host is None else host.host,
        measurement={
            "when": now,
            "shardwise": __version__,
            "torch": str(rank.torch.__version__),
            "backend": rank.backend,
            "ranks": world.size,
            "nodes": world.nodes,
            "python": platform.python_version(),
            "links": {at: link.kind for at, link in peaks.items() if link is not None},
            "left_out": list(notes),
            **facts,
        },
    )
    return replace(
        hardware, levels=_fitted(hardware, [link is not None for link in peaks.values()])
    )


def _levels(
    rank: Rank, device: Device, links: Mapping[str, Link | None], nodes_per_rack: int | None
) -> tuple[Level, ...]:
    """Returns the levels of links with their peaks, innermost first."""
    nodes, inside = rank.world.nodes, links.get("inside")
    between = inside if nodes == 1 else links.get("between")
    innermost = _level(INSIDE, rank.world.ranks_per_node, inside, device)
    if nodes_per_rack is None:
        return innermost, _level(BETWEEN, nodes, between, device)
    across = _level(ACROSS_RACK, nodes_per_rack, between, device)
    uplinks = _level(BETWEEN_RACKS, nodes // nodes_per_rack, between, device)
    return innermost, across, replace(uplinks, uplinks=True)


def _level(name: str, size: int, link: Link | None, device: Device) -> Level:
    """Returns a level; without a known peak, bounded by device memory: nothing leaves it faster."""
    peak = link.peak_bytes_per_s if link else device.memory_bandwidth_bytes_per_s
    return Level(name, size, peak, 0.0, 1.0)


def _source(link: Link | None) -> str:
    if link is not None:
        return link.source
    return "no known peak: what collectives reached; where none was measured, a device's memory"


def _fitted(hardware: Hardware, known: Sequence[bool]) -> tuple[Level, ...]:
    """Returns levels with what tables say about them, for shapes that have no table."""
    fitted = []
    for at, (level, peak_known) in enumerate(zip(hardware.levels, known, strict=True)):
        tables = [t for t in hardware.collectives if len(hardware.counts(t)) == at + 1]
        if not tables:
            fitted.append(level)
            continue
        verdicts = [verdict(hardware, table) for table in tables]
        shares = [v.share for v in verdicts if v.share is not None]
        bandwidth = level.bandwidth_bytes_per_s
        reached = max(reached_bytes_per_s(hardware, table, at) for table in tables)
        if not peak_known:
            bandwidth = reached
        share = float(np.median(shares)) if shares else reached / bandwidth
        fitted.append(
            replace(
                level,
                bandwidth_bytes_per_s=bandwidth,
                latency_s=step_s(tables),
                efficiency=min(share, 1.0),
            )
        )
    return tuple(fitted)


def step_s(tables: Sequence[CollectiveTable]) -> float:
    """Returns a step's latency: the smallest all_reduce over 2 log2 n steps (`collectives.py`)."""
    steps = [t.times_s[0] / (2 * log2(t.size)) for t in tables if t.operation == "all_reduce"]
    return float(np.median(steps)) if steps else min(t.times_s[0] for t in tables)
