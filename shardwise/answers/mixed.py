"""Answers on several kinds of devices: the cluster, its places, a strategy in one line.

    balanced 22:16:14:12 (ZeRO-3) and alone on v100, sums in part by server v100, recompute in part

The label names the proportion with most of the computation and the next if it has a tenth or more,
and how gradients of a tenth or more of the parameters' bytes are summed if not by collectives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from operator import mul

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from shardwise.answers.strategy import sum_name
from shardwise.cost.mixed.assemble import MixedProblem
from shardwise.cost.mixed.cluster import Cluster
from shardwise.cost.mixed.proportions import Proportion
from shardwise.cost.mixed.sums import server_name
from shardwise.cost.options import Options
from shardwise.documents.common import PlacePeak
from shardwise.documents.plan import (
    COLLECTIVE_SUM,
    PlaceCost,
    PlannedBlock,
    PlannedCluster,
    PlannedPlace,
    PlannedProportion,
)
from shardwise.search.mixed.search import MixedSearch, limits_of
from shardwise.search.search import Search
from shardwise.sharding.layout import Floats

SAID = 0.1
"""Share above which a part of a strategy is named."""
NEARLY_ALL = 0.9
"""Share above which a property is said of the whole strategy."""


def bundle_of(search: Search) -> str | UnsetType:
    """Returns the number of devices per group of a search; unset on one kind."""
    return str(search.bundle) if isinstance(search, MixedSearch) else UNSET


def planned_cluster(search: MixedSearch, point: int) -> PlannedCluster:
    """Returns the devices of a plan, with the replayed step's times at every place."""
    cluster = search.problem.cluster
    peaks, compute, communication = (values[point] for values in search.places)
    places = planned_places(search.problem, search.options, peaks, compute, communication)
    return described_cluster(cluster, places)


def described_cluster(cluster: Cluster, places: list[PlannedPlace]) -> PlannedCluster:
    """Returns the devices of a plan, with a step's times at every place."""
    blocks = cluster.blocks
    return PlannedCluster(
        bundle=str(blocks.bundle),
        block_size=blocks.size,
        blocks=[PlannedBlock(block.group, block.node) for block in blocks.blocks],
        proportions=[_planned(proportion) for proportion in cluster.proportions],
        places=places,
        states=[_planned(proportion) for proportion in cluster.states],
        servers={server_name(cluster, block): block for block in cluster.servers},
    )


def _planned(proportion: Proportion) -> PlannedProportion:
    return PlannedProportion(list(proportion.weights), proportion.origin)


def planned_places(
    problem: MixedProblem,
    options: Options,
    peak_bytes: Floats,
    compute_s: Floats,
    communication_s: Floats,
) -> list[PlannedPlace]:
    """Returns the places of a cluster with a replayed step's values at each, (places,) arrays."""
    cluster, limits = problem.cluster, limits_of(problem, options)
    return [
        PlannedPlace(
            name=place.name,
            group=place.group.name,
            kind=place.group.kind,
            blocks=[b for b, at in enumerate(cluster.place_of) if at == number],
            memory_limit_bytes=float(limits[number]),
            peak_bytes=round(float(peak_bytes[number])),
            compute_s=float(compute_s[number]),
            communication_s=float(communication_s[number]),
        )
        for number, place in enumerate(cluster.places)
    ]


def place_peaks(search: MixedSearch, point: int) -> list[PlacePeak]:
    """Returns the peak at every place in a point's replayed step."""
    limits = limits_of(search.problem, search.options)
    peaks = search.places[0][point]
    return [
        PlacePeak(place.name, round(float(peaks[n])), float(limits[n]))
        for n, place in enumerate(search.problem.cluster.places)
    ]


def place_costs(problem: MixedProblem, group: int, choice: int) -> list[PlaceCost]:
    """Returns a group's costs at every place under a choice."""
    return [
        PlaceCost(
            place.name,
            float(of_place.costs[group].compute_s[choice]),
            float(of_place.costs[group].communication_s[choice]),
        )
        for place, of_place in zip(problem.cluster.places, problem.places, strict=True)
    ]


def mixed_label(search: MixedSearch, point: int) -> str:
    """Returns a point's strategy in one line."""
    return label_of(search.problem, search.solution.choices[point])


def label_of(problem: MixedProblem, choices: NDArray[np.uint32]) -> str:
    """Returns a strategy, (groups,), in one line."""
    compute: dict[str, float] = defaultdict(float)
    summed: dict[str, float] = defaultdict(float)
    zero: dict[int, float] = defaultdict(float)
    recomputed = 0.0
    for group, choice in enumerate(choices.tolist()):
        # On all devices together: absent ones compute nothing.
        seconds = sum(
            place.count * float(of_place.costs[group].compute_s[choice])
            for place, of_place in zip(problem.cluster.places, problem.places, strict=True)
        )
        cost = problem.costs[group]
        proportion = problem.cluster.proportions[int(cost.proportion[choice])]
        compute[_shares(proportion.weights, proportion.origin)] += seconds
        recomputed += seconds * bool(cost.recompute[choice])
        size = float(np.max([p.costs[group].parameter_bytes[choice] for p in problem.places]))
        kind = problem.context.mesh.gradient_sums[int(cost.gradient_sum[choice])]
        summed[sum_name(kind)] += size
        zero[int(cost.zero[choice])] += size
    first, *others = _parts(compute)
    others = [name for name in others[:1] if compute[name] >= SAID * sum(compute.values())]
    stage, share = max(zero.items(), key=lambda one: one[1])
    if stage and share > 0.5 * sum(zero.values()):
        first += f" (ZeRO-{stage})"
    terms = [" and ".join([first, *others])]
    of_sums = sum(summed.values()) or 1.0
    by = next((name for name in _parts(summed) if name != COLLECTIVE_SUM), None)
    if by is not None and summed[by] >= SAID * of_sums:
        all_of = summed[by] >= NEARLY_ALL * of_sums
        terms.append(f"sums {'' if all_of else 'in part '}by {by.removeprefix('by ')}")
    total, count = sum(compute.values()) or 1.0, problem.context.micro_batches
    if count > 1:
        terms.append(f"{count} micro-batches")
    if recomputed > 0.005 * total:
        terms.append("recompute" if recomputed >= NEARLY_ALL * total else "recompute in part")
    return ", ".join([*terms[:2], *([" with ".join(terms[2:])] if terms[2:] else [])])


def _shares(weights: tuple[int, ...], origin: str) -> str:
    """Returns a proportion in words, with its weights if uneven."""
    if len({weight for weight in weights if weight}) > 1:
        return f"{origin} {':'.join(map(str, weights))}"
    return origin


def _parts(of: dict[str, float]) -> list[str]:
    """Returns the parts with a positive share, the largest first."""
    return sorted(of, key=lambda name: -of[name])


def mixed_ideal_s(flops: Mapping[str, float], search: MixedSearch) -> float:
    """Returns the seconds in which one device as fast as the mean of all would do these flops."""
    counts = [count for _, count in search.bundle.counts]
    total = 0.0
    for dtype, number in flops.items():
        peaks = [profile.devices[0].peak(dtype) for profile in search.profiles]
        mean = sum(map(mul, counts, peaks)) / search.bundle.gpus
        total += number / mean
    return total
