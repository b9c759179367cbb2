"""A whole measurement on one rank: device, host, overlap, waiting, collectives, profile."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from time import perf_counter
from typing import Any

from shardwise.hardware.hardware import CollectiveTable, Hardware
from shardwise.measure.collectives import measure_collectives
from shardwise.measure.device import free_memory, measure_device
from shardwise.measure.groups import own_groups
from shardwise.measure.host import measure_host
from shardwise.measure.kinds.measuring import measure_kinds, placed_ranks
from shardwise.measure.kinds.operators import OperatorQuestion
from shardwise.measure.labels import NO_LABEL, Label
from shardwise.measure.links import known_links
from shardwise.measure.options import (
    COLLECTIVES_SHARE,
    CPU_MEMORY_SHARE,
    DEVICE_SHARE,
    GPU_MEMORY_SHARE,
    HOST_SHARE,
    OVERLAP_SHARE,
    WAITING_SHARE,
    MeasureOptions,
)
from shardwise.measure.overlap import measure_overlap
from shardwise.measure.profile import assemble
from shardwise.measure.rank import Rank, joined
from shardwise.measure.waiting import measure_waiting
from shardwise.measure.world import World, check_even

Tell = Callable[[str, float], None]


def measure(
    world: World,
    options: MeasureOptions,
    tell: Tell,
    label: Label = NO_LABEL,
    question: OperatorQuestion | None = None,
) -> Hardware | None:
    """Takes part in the measurement; returns the profile on rank 0, None on the others.

    `tell` receives rank 0's progress: what is being measured, and the fraction done. `label` says
    of what kind this rank's device is. Ranks of several kinds make one profile with groups, and
    measure the operators of a `question`, which ranks of one kind do not. Raises what `joined`
    raises, and `BadInput` where nodes of one kind have unequal numbers of ranks.
    """
    if world.rank:
        tell = _silent
    with joined(world, options, label) as rank:
        began = perf_counter()
        load = os.getloadavg()[0]
        memory = _memory(rank, options)
        placed = placed_ranks(rank)
        if len({place.kind for place in placed}) > 1:
            options.require_no_racks()
            return measure_kinds(rank, placed, options, memory, tell, question)
        check_even(world)
        options.check_racks(world.nodes)
        # The first message: `local.py` takes it as the sign that all have joined.
        tell("the device", 0.0)
        device = measure_device(rank, memory, options.time_limit_s * DEVICE_SHARE)
        links = known_links(rank, device.memory_bandwidth_bytes_per_s)
        groups = own_groups(rank, options.nodes_per_rack) if world.size > 1 else []
        host = overlap = waiting = None
        share = HOST_SHARE + OVERLAP_SHARE + WAITING_SHARE
        if rank.on_gpu:
            tell("the host", 0.0)
            everyone = groups[-1].group if groups else None
            host = measure_host(rank, everyone, options.time_limit_s * HOST_SHARE)
            share -= HOST_SHARE
        if options.overlap and world.size > 1:
            tell("overlap", 0.0)
            all_ranks = groups[-1].group
            overlap = measure_overlap(rank, all_ranks, memory, options.time_limit_s * OVERLAP_SHARE)
            tell("waiting", 0.0)
            waiting = measure_waiting(rank, groups, memory, options.time_limit_s * WAITING_SHARE)
            share -= OVERLAP_SHARE + WAITING_SHARE
        spent = float(rank.worst([perf_counter() - began])[0])
        left = min(options.time_limit_s * (COLLECTIVES_SHARE + share), options.time_limit_s - spent)
        tables: list[CollectiveTable] = []
        notes: list[str] = []
        if options.collectives and world.size > 1:
            tables, notes = measure_collectives(rank, options, groups, memory, max(left, 0.0), tell)
        hosts = rank.gather(platform.node())
        if world.rank:
            return None
        facts: dict[str, Any] = {
            "host": device.kind,
            "hosts": sorted(set(hosts)),
            "cores": os.cpu_count(),
            "threads": rank.torch.get_num_threads(),
            "load_1m": round(load, 2),
            "memory_bytes": memory,
            "time_limit_s": options.time_limit_s,
            "seconds": round(perf_counter() - began, 2),
        }
        name = options.name or f"measured-{hosts[0]}-{world.size}"
        return assemble(
            rank, name, device, links, tables, host, overlap, waiting, notes, facts,
            options.nodes_per_rack,
        )  # fmt: skip


def _silent(stage: str, fraction: float) -> None:
    """Ignores progress: only rank 0 reports it."""


def _memory(rank: Rank, options: MeasureOptions) -> float:
    """Returns what one rank's buffers may take: the same everywhere, so the minimum of all."""
    share = GPU_MEMORY_SHARE if rank.on_gpu else CPU_MEMORY_SHARE
    mine = options.memory_bytes or free_memory(rank) * share
    return float(-rank.worst([-mine])[0])
