"""What a system for devices of one kind answers on a cluster of several kinds.

only NAME   the devices of one group alone, searched as devices of one kind
slowest     all devices as if they were of the slowest kind, with the smallest memory and the
            slowest links: searched as devices of one kind, replayed on the true ones
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shardwise.answers.label import Labels
from shardwise.cost.mixed.assemble import MOST_CONFIGURATIONS
from shardwise.cost.options import Options, Progress
from shardwise.documents.plan import PlannedPlace
from shardwise.errors import Cancelled, NotFound
from shardwise.hardware import Blocks, Devices, Hardware, Mesh
from shardwise.peers.answer import Answer, proven
from shardwise.peers.evaluate import Point, Step, point_of
from shardwise.peers.mixed.space import Choices, Space
from shardwise.search.chosen import Chosen, fastest, lowest_peak, time_gap
from shardwise.search.mixed.alike import mapped_rows, mesh_of_alike, slowest_hardware
from shardwise.search.replayed import search_replayed
from shardwise.search.search import Search, Subject

SLOWEST = "slowest"
SLOWEST_TITLE = "All as the slowest"


def only(
    subject: Subject,
    blocks: Blocks,
    name: str,
    options: Options,
    limit_bytes: float,
    progress: Progress,
) -> Answer:
    """Returns the answer of one group's devices alone, their peak scaled to `limit_bytes`."""
    count = dict(blocks.bundle.counts)[name]
    hardware = blocks.hardware.of_group(name)
    method, title = only_method(name), f"Only {name}"
    try:
        found = _searched(subject, hardware, count, options, progress)
    except NotFound as reason:
        return Answer(method, title, "", reason=str(reason))
    best = fastest(found)
    if best is None and not any(len(search.time_s) for search in found):
        return Answer(method, title, "", reason="no strategy was found within the limits")
    return Answer(
        method,
        title,
        f"the search by replayed time over {count} devices of {name} alone",
        (_alone_point(best or lowest_peak(found), blocks, name, limit_bytes),),
        epsilon=None if best is None else proven(time_gap(found, best) or 0.0),
        details={"devices": count},
    )


def only_method(name: str) -> str:
    """Returns the id of the method that uses one group alone."""
    return f"only-{name}"


def _searched(
    subject: Subject,
    hardware: Hardware,
    gpus: int,
    options: Options,
    progress: Progress,
    mesh: Mesh | None = None,
) -> list[Search]:
    found = search_replayed(subject, hardware, Devices.alike(gpus), options, progress, mesh)
    if any(search.solution.status == "cancelled" for search in found):
        raise Cancelled
    return found


def _alone_point(chosen: Chosen, blocks: Blocks, name: str, limit_bytes: float) -> Point:
    search, at = chosen.search, chosen.point
    solution, replayed = search.solution, search.replayed
    point = point_of(search.problem, solution.choices[at], solution.edge_choices[at])
    place = PlannedPlace(
        name=name,
        group=name,
        kind=search.hardware.devices[0].kind,
        blocks=[number for number, group in enumerate(blocks.groups) if group.name == name],
        memory_limit_bytes=search.limit_bytes,
        peak_bytes=round(chosen.peak_bytes),
        compute_s=float(replayed.compute_s[at]),
        communication_s=float(replayed.communication_s[at]),
    )
    step = Step(
        search.micro_batches,
        chosen.peak_bytes * limit_bytes / search.limit_bytes,
        chosen.replayed_time_s,
        float(replayed.exposed_s[at]),
    )
    labels = Labels(search.problem, None, search.replayer, search.limit_bytes)
    label = labels.of(
        point.choices, point.edge_choices, (chosen.replayed_time_s, chosen.peak_bytes)
    )
    return replace(point, label=label, step=step, places=(place,))


def slowest(
    subject: Subject,
    blocks: Blocks,
    options: Options,
    space_of: Callable[[int], Space],
    progress: Progress,
) -> Answer:
    """Returns the answer for the slowest devices, replayed on the true ones.

    `space_of` returns the space of a number of micro-batches with what the options allow.
    """
    most = min(options.max_configurations, MOST_CONFIGURATIONS)
    mesh = mesh_of_alike(blocks, len(blocks.blocks), most)
    hardware = slowest_hardware(blocks)
    found = _searched(
        subject, hardware, blocks.gpus, replace(options, max_configurations=most), progress, mesh
    )
    best = fastest(found)
    if best is None and not any(len(search.time_s) for search in found):
        reason = "no strategy was found within the limits"
        return Answer(SLOWEST, SLOWEST_TITLE, "", reason=reason)
    chosen = best or lowest_peak(found)
    space = space_of(chosen.search.micro_batches)
    mapped = mapped_rows(chosen.search.problem, _choices(chosen), space.problem)
    notes = []
    if mapped.nearest:
        notes.append(f"{mapped.nearest} groups take the nearest configuration that is left")
    predicted = chosen.replayed_time_s
    notes.append(f"{predicted:.4g} s a step predicted for {hardware.devices[0].kind} everywhere")
    return Answer(
        SLOWEST,
        SLOWEST_TITLE,
        f"the search by replayed time as if all were {hardware.devices[0].kind} with the smallest "
        "memory and the slowest links, replayed on the true devices",
        tuple(space.points(mapped.choices[None])),
        notes=tuple(notes),
        details={"predicted_time_s": predicted},
    )


def _choices(chosen: Chosen) -> Choices:
    return np.asarray(chosen.search.solution.choices[chosen.point])


def groups_of(bundle: Devices) -> list[str]:
    """Returns the names of the groups that a bundle takes devices of."""
    return [name for name, _ in bundle.counts]
