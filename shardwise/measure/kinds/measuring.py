"""A measurement on ranks whose devices are of several kinds: one profile with groups.

Every group of like nodes measures itself as a job of one kind does, all groups at the same time as
they would train: devices, hosts, waiting, collectives inside the group. Then all ranks together
measure how collectives overlap with computation, and collectives over sets of groups. Last, where a
graph is given, each kind measures its operators, all kinds at the same time (HeteroG §3.3).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from shardwise.errors import BadInput
from shardwise.hardware.hardware import CollectiveTable, Hardware, Overlap
from shardwise.measure.collectives import measure_collectives
from shardwise.measure.device import kind_of, measure_device
from shardwise.measure.groups import OwnGroup
from shardwise.measure.host import measure_host
from shardwise.measure.kinds.layout import MeasuredGroup, Placed, groups_of, joint_shapes
from shardwise.measure.kinds.merge import merged_profile
from shardwise.measure.kinds.operators import OperatorQuestion, with_operators
from shardwise.measure.links import Link, known_links, network_link
from shardwise.measure.options import (
    DEVICE_SHARE,
    HOST_SHARE,
    OVERLAP_SHARE,
    WAITING_SHARE,
    MeasureOptions,
)
from shardwise.measure.overlap import measure_overlap
from shardwise.measure.profile import assemble
from shardwise.measure.rank import Rank
from shardwise.measure.shapes import Siblings, group_shapes
from shardwise.measure.waiting import measure_waiting

Tell = Callable[[str, float], None]
INSIDE_SHARE = 0.5
"""Of the time for collectives, what those inside groups have."""


@dataclass(frozen=True)
class _Groups:
    """This rank's group of devices: the rank among its members, and process groups.

    `inside` are the shapes inside the group, `joint` those over several groups, without a process
    group where this rank is in none; `everyone` has all ranks.
    """

    group: MeasuredGroup
    mine: Rank
    inside: Sequence[OwnGroup]
    joint: Sequence[OwnGroup]
    everyone: Any


def placed_ranks(rank: Rank) -> list[Placed]:
    """Returns where all ranks are; collective."""
    kind = kind_of(rank)
    places: list[Placed] = rank.gather(Placed(kind, rank.world.rank - rank.world.local_rank))
    return places


def measure_kinds(
    rank: Rank,
    placed: Sequence[Placed],
    options: MeasureOptions,
    memory_bytes: float,
    tell: Tell,
    question: OperatorQuestion | None = None,
) -> Hardware | None:
    """Takes part in a measurement of several kinds; returns the profile on rank 0, else None.

    `placed` says where all ranks are; a rank's buffers may take `memory_bytes`. With a `question`
    the operators of a graph are measured too. Raises `BadInput` for one about a number of devices.
    """
    if question is not None and question.gpus is not None:
        raise BadInput(
            f"{question.gpus} devices of an unspecified kind",
            field="gpus",
            expected="no number: plans of all devices of every kind are measured for",
        )
    began = perf_counter()
    groups = groups_of(placed)
    # The first message: `local.py` takes it as the sign that all have joined.
    tell(f"devices of {', '.join(group.name for group in groups)}", 0.0)
    made = _made(rank, groups)
    rank.barrier()
    own, host = _inside(rank, made, options, memory_bytes, began, tell)
    rank.barrier()
    overlap = None
    if options.overlap:
        tell("overlap", 0.5)
        limit_s = options.time_limit_s * OVERLAP_SHARE
        overlap = measure_overlap(rank, made.everyone, memory_bytes, limit_s)
    joint: list[CollectiveTable] = []
    notes: list[str] = []
    if options.collectives:
        left = rank.left_s(options.time_limit_s, began)
        joint, notes = measure_collectives(
            rank, options, made.joint, memory_bytes, max(left, 0.0), tell
        )
    facts = {
        "memory_bytes": memory_bytes,
        "time_limit_s": options.time_limit_s,
        "seconds": round(perf_counter() - began, 2),
        "left_out": notes,
    }
    profile = _merged(rank, groups, own, joint, overlap, options.name, host, facts)
    if question is not None:
        return with_operators(rank, made.mine, groups, profile, question, memory_bytes, tell)
    return profile


def _made(rank: Rank, groups: Sequence[MeasuredGroup]) -> _Groups:
    """Makes all process groups, all ranks in the same order."""
    distributed = rank.torch.distributed
    controls = [distributed.new_group(list(g.ranks), backend="gloo") for g in groups]
    number, group = next((n, g) for n, g in enumerate(groups) if rank.world.rank in g.ranks)
    world = replace(
        rank.world,
        size=len(group.ranks),
        ranks_per_node=group.per_node,
        sharing=rank.world.ranks_on_host,
    )
    mine = replace(rank, world=world, control=controls[number])
    inside: list[OwnGroup] = []
    for each in groups:
        shapes = group_shapes(len(each.ranks), each.per_node) if len(each.ranks) > 1 else []
        for shape in shapes:
            members = tuple(tuple(each.ranks[i] for i in ranks) for ranks in shape.groups)
            made = _own(rank, replace(shape, groups=members))
            if each is group:
                inside.append(made)
    joint = [_own(rank, shape) for shape in joint_shapes(groups)]
    everyone = distributed.new_group(list(range(rank.world.size)), backend=rank.backend)
    return _Groups(group, mine, inside, joint, everyone)


def _own(rank: Rank, siblings: Siblings) -> OwnGroup:
    """Makes the groups of a shape; returns the one that this rank is in, or none."""
    own = OwnGroup(siblings, None, ())
    for ranks in siblings.groups:
        made = rank.torch.distributed.new_group(list(ranks), backend=rank.backend)
        if rank.world.rank in ranks:
            own = OwnGroup(siblings, made, ranks)
    return own


def _inside(
    rank: Rank,
    made: _Groups,
    options: MeasureOptions,
    memory_bytes: float,
    began: float,
    tell: Tell,
) -> tuple[Hardware | None, dict[str, Any]]:
    """Measures this rank's group by itself; returns its profile, on its first rank, and where it
    is."""
    mine, limit_s = made.mine, options.time_limit_s
    device = measure_device(mine, memory_bytes, limit_s * DEVICE_SHARE)
    # What is copied to communicate is not slowed.
    copied = device.memory_bandwidth_bytes_per_s * float(mine.label.slowed.times)
    links = known_links(mine, copied)
    several = len(made.group.ranks) > 1
    host = waiting = None
    if mine.on_gpu:
        tell("the host", 0.1)
        everyone = made.inside[-1].group if several else None
        host = measure_host(mine, everyone, limit_s * HOST_SHARE)
    if options.overlap and several:
        tell("waiting", 0.2)
        waiting = measure_waiting(mine, made.inside, memory_bytes, limit_s * WAITING_SHARE)
    tables: list[CollectiveTable] = []
    notes: list[str] = []
    if options.collectives and several:
        overlap_s = limit_s * OVERLAP_SHARE if options.overlap else 0.0
        left = (mine.left_s(limit_s, began) - overlap_s) * INSIDE_SHARE
        tables, notes = measure_collectives(
            mine, options, made.inside, memory_bytes, max(left, 0.0), tell
        )
    hosts = mine.gather(platform.node())
    facts = {
        "group": made.group.name,
        "kind": made.group.kind,
        "host": hosts[0],
        "hosts": sorted(set(hosts)),
        "slowed": float(mine.label.slowed.times),
        "threads": rank.torch.get_num_threads(),
    }
    if rank.world.rank != made.group.ranks[0]:
        return None, facts
    profile = assemble(
        mine, made.group.name, device, links, tables, host, None, waiting, notes, facts
    )
    return profile, facts


def _merged(
    rank: Rank,
    groups: Sequence[MeasuredGroup],
    own: Hardware | None,
    joint: Sequence[CollectiveTable],
    overlap: Overlap | None,
    name: str,
    place: dict[str, Any],
    facts: dict[str, Any],
) -> Hardware | None:
    """Returns the profile of all groups on rank 0; collective."""
    parts = rank.gather(own)
    cards: list[Link | None] = rank.gather(network_link())
    of_all = rank.gather(place)
    if rank.world.rank:
        return None
    first = [group.ranks[0] for group in groups]
    return merged_profile(
        name or f"measured-{place['host']}-{rank.world.size}",
        groups,
        [parts[number] for number in first],
        joint,
        [cards[number] for number in first],
        overlap,
        {
            "kinds": [of_all[number] for number in first],
            "hosts": sorted({host for each in of_all for host in each["hosts"]}),
            "backend": rank.backend,
            "torch": str(rank.torch.__version__),
            "ranks": rank.world.size,
            **facts,
        },
    )
