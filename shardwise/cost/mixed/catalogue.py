"""The proportions that a search of several kinds tries, each with its origin.

    even                                  all blocks alike
    one block of each group, every group alone, the fastest groups together
    proportional                          by the peak of each kind, in small whole numbers (CP)
    balanced                              t_k(s_k) equal over kinds k, for the whole model, and for
                                          each class of operators by itself
    half way                              between even and balanced

t_k(s) is the time of a model's operators on kind k whose blocks each have s of the samples, of data
parallelism, by the same costs as everywhere (measured, interpolated or modelled: steps included).
Shares minimise max over k of t_k(s_k) with Σ n_k s_k = B: samples go one after another to the block
that then takes least, which is exact where t_k ascend. Shares are whole samples, and whole numbers
of samples for each device of a block where the batch allows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heapreplace
from math import inf

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.attention import KINDS
from shardwise.cost.context import CostContext
from shardwise.cost.group_work import GroupWork
from shardwise.cost.legality import Legality
from shardwise.cost.mixed.cluster import BLOCKS
from shardwise.cost.mixed.proportions import Proportion, cut
from shardwise.cost.products import operands
from shardwise.cost.space import NONE, SearchMesh
from shardwise.hardware import Blocks
from shardwise.sharding.coarsen import Member
from shardwise.sharding.layout import Floats
from shardwise.sharding.names import sample_variables
from shardwise.sharding.pattern import GroupPattern

MOST = 24
"""Proportions of a catalogue."""
MOST_STEPS = 120
"""Maximum number of equal parts of the samples for balancing."""
SCALE = 10**6
"""Real weights are rounded to multiples of 1 / SCALE before an extent is cut by them."""
MOST_RATIO = 8
"""The largest number in a proportion by peaks."""
BY_PEAKS = "proportional to peaks"
"""The origin of HeteroG's CP."""
NEGLIGIBLE = 0.1
"""Minimum share of the time for a class of operators to get its own proportion."""

PRODUCTS, CONVOLUTIONS, ATTENTION, LIGHT = "products", "convolutions", "attention", "light"


def catalogue(context: CostContext, patterns: Sequence[GroupPattern], blocks: Blocks) -> Probed:
    """Returns the proportions for groups `patterns` on a cluster.

    `context` is that of the cluster's mesh on any of its kinds.
    """
    batch = context.graph.batch_size or 1
    groups = blocks.groups
    names = list(dict.fromkeys(group.name for group in groups))
    members = {name: [i for i, group in enumerate(groups) if group.name == name] for name in names}
    makes = _Shares(len(groups), batch, blocks.size, members)
    times = {
        name: _class_times(
            replace(context, hardware=blocks.hardware.of_group(name)), patterns, makes.steps
        )
        for name in names
    }
    whole = {name: sum(times[name].values(), np.zeros(makes.steps)) for name in names}
    fastest = sorted(names, key=lambda name: float(whole[name][-1]))
    found: list[Proportion | None] = [makes.even(names, "even")]
    if len(names) > 1:
        balanced = makes.balanced(whole, names, "balanced")
        found.append(makes.weighted(_by_peaks(blocks, names), BY_PEAKS))
        found.append(balanced)
        found += _by_class(makes, times, whole, names)
        if balanced is not None:
            found.append(makes.half_way(balanced, "half way to balanced"))
        for count in range(2, len(names)):
            some = fastest[:count]
            words = " and ".join(some)
            found.append(makes.balanced(whole, some, f"{words}, balanced"))
            found.append(makes.even(some, f"{words}, even"))
    for name in fastest:
        if len(members[name]) < len(groups):
            found.append(makes.even([name], f"{name} alone"))
    for name in fastest:
        found.append(makes.one(members[name][0], f"one block of {name}"))
    known: dict[tuple[int, ...], Proportion] = {}
    for proportion in found:
        if proportion is not None:
            known.setdefault(proportion.reduced, proportion)
    states = makes.states(
        {name: blocks.hardware.of_group(name).devices[0].memory_bytes for name in names}
    )
    return Probed(tuple(known.values())[:MOST], states, tuple(members[n][0] for n in fastest))


@dataclass(frozen=True)
class Probed:
    """The proportions of operators and of optimizer state, and the blocks that may be servers."""

    proportions: tuple[Proportion, ...]
    states: tuple[Proportion, ...]
    servers: tuple[int, ...]


class _Shares:
    """Makes proportions of a batch over the blocks of groups, `members` by group."""

    def __init__(
        self, blocks: int, batch: int, size: int, members: Mapping[str, Sequence[int]]
    ) -> None:
        self._blocks, self._members = blocks, members
        # Whole numbers for every device, where the batch has as many.
        self._unit = size if batch % size == 0 and batch // size >= blocks else 1
        self._units = max(batch // self._unit, 1)
        self.steps = min(self._units, MOST_STEPS)
        """Equal parts of the samples, of which shares are balanced."""

    def even(self, names: Sequence[str], origin: str) -> Proportion:
        """Returns equal shares of some groups' blocks, up to whole samples."""
        chosen = {block for name in names for block in self._members[name]}
        weights = tuple(int(i in chosen) for i in range(self._blocks))
        if self._units % len(chosen) and len(chosen) < self._blocks <= self._units:
            weights = tuple(share * self._unit for share in cut(self._units, weights))
        return Proportion(weights, origin)

    def one(self, block: int, origin: str) -> Proportion:
        """Returns all for one block."""
        return Proportion(tuple(int(i == block) for i in range(self._blocks)), origin)

    def weighted(self, weights: Mapping[str, float], origin: str) -> Proportion | None:
        """Returns shares by weights of one block of each group; None where a block gets none."""
        real = np.zeros(self._blocks)
        for name, weight in weights.items():
            real[list(self._members[name])] = weight
        return self._exact(real.tolist(), origin)

    def half_way(self, other: Proportion, origin: str) -> Proportion | None:
        """Returns the shares half way between even ones and others."""
        mean = sum(other.weights) / self._blocks
        return self._exact([0.5 * (weight + mean) for weight in other.weights], origin)

    def _exact(self, weights: Sequence[float], origin: str) -> Proportion | None:
        """Returns the whole shares nearest to weights; None where one of them becomes 0."""
        total = sum(weights)
        shares = cut(self._units, [round(SCALE * weight / total) for weight in weights])
        if any(share == 0 and weight > 0 for share, weight in zip(shares, weights, strict=True)):
            return None
        return Proportion(tuple(share * self._unit for share in shares), origin)

    def balanced(
        self, times: Mapping[str, Floats], names: Sequence[str], origin: str
    ) -> Proportion | None:
        """Returns some groups' block shares that minimise the slowest time, or None if a block gets
        none."""
        group_of = {block: name for name in names for block in self._members[name]}
        ascending = {name: np.maximum.accumulate(times[name]).tolist() for name in names}
        shares = dict.fromkeys(group_of, 0)
        queue = [(ascending[name][0], block) for block, name in group_of.items()]
        heapify(queue)
        for _ in range(self.steps):
            _, block = queue[0]
            shares[block] += 1
            left = ascending[group_of[block]]
            after_s = left[shares[block]] if shares[block] < len(left) else inf
            heapreplace(queue, (after_s, block))
        if not all(shares.values()):
            return None
        return self._exact([float(shares.get(block, 0)) for block in range(self._blocks)], origin)

    def states(self, memory_bytes: Mapping[str, float]) -> tuple[Proportion, ...]:
        """Returns the shares of state by memory; none where all have as much."""
        if len(set(memory_bytes.values())) == 1:
            return ()
        weights = [0] * self._blocks
        for name, size in memory_bytes.items():
            for block in self._members[name]:
                weights[block] = max(round(size / 2**30), 1)
        return (Proportion(tuple(weights), "by memory"),)


def _by_peaks(blocks: Blocks, names: Sequence[str]) -> dict[str, float]:
    """Returns the ratio of the kinds' peaks, the slowest 1, in whole numbers."""
    peaks = {n: blocks.hardware.of_group(n).devices[0].peak("float32") for n in names}
    least = min(peaks.values())
    return {n: float(min(max(round(peak / least), 1), MOST_RATIO)) for n, peak in peaks.items()}


def _by_class(
    makes: _Shares,
    times: Mapping[str, Mapping[str, Floats]],
    whole: Mapping[str, Floats],
    names: Sequence[str],
) -> list[Proportion | None]:
    """Returns the balanced shares of each class of operators that takes much of the time."""
    found = []
    for kind in (PRODUCTS, CONVOLUTIONS, ATTENTION, LIGHT):
        own = {name: times[name].get(kind, np.zeros(makes.steps)) for name in names}
        if all(own[name][-1] >= NEGLIGIBLE * whole[name][-1] for name in names):
            found.append(makes.balanced(own, names, f"balanced for {kind}"))
    return found


def _class_times(
    context: CostContext, patterns: Sequence[GroupPattern], steps: int
) -> dict[str, Floats]:
    """Returns the seconds of each class's operators on one kind of device under data parallelism,
    with 1, 2, … `steps` of `steps` equal parts of the samples per block."""
    shares = np.arange(1, steps + 1) / steps
    mesh = ProbeMesh(context.mesh.mesh, context.mesh.axes, shares=shares)
    probing = replace(context, mesh=mesh)
    samples = sample_variables(context.patterns.coarsened)
    totals: dict[str, Floats] = {}
    known: dict[Hashable, dict[str, Floats]] = {}
    for pattern in patterns:
        of_samples = samples[pattern.group.index]
        measured = context.hardware.operator_times.known
        key = (
            pattern.key,
            of_samples,
            context.families.operands(pattern.group) if measured else (),
        )
        if key not in known:
            known[key] = _group_times(probing, pattern, of_samples, len(shares))
        for kind, seconds in known[key].items():
            totals[kind] = totals.get(kind, np.zeros(len(shares))) + seconds
    return totals


def _group_times(
    context: CostContext, pattern: GroupPattern, samples: Sequence[int], count: int
) -> dict[str, Floats]:
    row = np.full(len(context.mesh.axes), NONE, dtype=np.int8)
    if samples:
        row[BLOCKS] = samples[0]
        possible, parts = Legality(context.graph, pattern.group), 1
        for number, axis in enumerate(context.mesh.axes):
            if number != BLOCKS and possible.even(samples[0], parts * axis.size):
                row[number], parts = samples[0], parts * axis.size
    work = GroupWork(context, pattern, np.tile(row, (count, 1)), np.arange(count, dtype=np.int8))
    passes = work.compute()
    seconds = passes.forward_s + passes.backward_s
    times: dict[str, Floats] = {}
    for position, member in enumerate(pattern.members):
        kind = operator_class(member)
        times[kind] = times.get(kind, np.zeros(count)) + seconds[:, position]
    return times


def operator_class(member: Member) -> str:
    """Returns the class that decides how an operator's times compare between kinds."""
    op = member.operator
    if op.kind.startswith("aten.conv"):
        return CONVOLUTIONS
    if op.kind in KINDS:
        return ATTENTION
    return PRODUCTS if operands(op) is not None else LIGHT


@dataclass(frozen=True)
class ProbeMesh(SearchMesh):
    """A mesh of which a block has one of several shares, by number of the proportion."""

    shares: Floats = field(kw_only=True)

    def sizes_of(self, proportions: NDArray[np.int8]) -> Floats:
        sizes = np.tile(self.sizes.astype(np.float64), (len(proportions), 1))
        sizes[:, BLOCKS] = 1.0 / self.shares[proportions]
        return sizes
