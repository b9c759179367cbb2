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
from shardwise.hardware.levels import BETWEEN, INSIDE, Level
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
) -> Hardware:
    """Returns the profile of `world.nodes` nodes like this one.

    A level's bandwidth is its link's known peak, its efficiency what collectives reached of it; if
    no peak is known, the bandwidth is what was reached and the efficiency 1.
    """
    world = rank.world
    now = datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds")
    parts = ["collectives"] if tables else []
    parts += ["overlap"] if overlap is not None else []
    parts += ["waiting"] if waiting is not None else []
    parts += ["host"] if host is not None else []
    what = ", ".join([*parts, "device"])
    of_host = {} if host is None else {"host": host.source(now[:10])}
    inside, between = links.get("inside"), links.get("between")
    versions = f"{rank.backend} of torch {rank.torch.__version__}"
    hardware = Hardware(
        name,
        f"measured on {now[:10]} on {facts['host']}: {what} ({versions}, {world.size} ranks on "
        f"{world.nodes} node{'s' if world.nodes > 1 else ''})",
        (device,),
        (
            _level(INSIDE, world.ranks_per_node, inside, device),
            _level(BETWEEN, world.nodes, inside if world.nodes == 1 else between, device),
        ),
        tuple(tables),
        sources={
            "devices": f"measured on {now[:10]}: products, copies, the smallest operator",
            "levels.inside": _source(inside),
            "levels.between": UNUSED if world.nodes == 1 else _source(between),
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
            "links": {at: link.kind for at, link in links.items() if link is not None},
            "left_out": list(notes),
            **facts,
        },
    )
    return replace(hardware, levels=_fitted(hardware, (inside is not None, between is not None)))


def _level(name: str, size: int, link: Link | None, device: Device) -> Level:
    """Returns a level; without a known peak, bounded by device memory: nothing leaves it faster."""
    peak = link.peak_bytes_per_s if link else device.memory_bandwidth_bytes_per_s
    return Level(name, size, peak, 0.0, 1.0)


def _source(link: Link | None) -> str:
    if link is not None:
        return link.source
    return "no known peak: what collectives reached; where none was measured, a device's memory"


def _fitted(hardware: Hardware, known: tuple[bool, bool]) -> tuple[Level, ...]:
    """Returns levels with what tables say about them, for shapes that have no table."""
    fitted = []
    spans = (range(1, 2), range(2, hardware.max_nodes + 1))
    for at, (level, nodes, peak_known) in enumerate(
        zip(hardware.levels, spans, known, strict=True)
    ):
        tables = [t for t in hardware.collectives if t.nodes in nodes]
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
