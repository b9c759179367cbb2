"""From a graph on a cluster of several kinds to the problems of its places.

All places have the same groups, configurations and edges, row by row, with different costs. One
more problem says which communication joins places: it costs 1 there, else 0.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import (
    SearchEdge,
    SearchProblem,
    all_edges,
    context_of,
    fixed_costs,
    group_kind,
)
from shardwise.cost.configurations import group_costs_of_places
from shardwise.cost.context import CostContext
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.group_work import GroupWork
from shardwise.cost.mixed.assignments import mixed_assignments
from shardwise.cost.mixed.catalogue import Probed, catalogue
from shardwise.cost.mixed.cluster import Cluster, PlaceMesh, mesh_of_blocks
from shardwise.cost.mixed.reschedule import Reschedulers
from shardwise.cost.mixed.sums import sums_at
from shardwise.cost.options import Options, Progress, go_on
from shardwise.cost.space import EVEN, SearchMesh
from shardwise.cost.terms import GroupTerms
from shardwise.hardware import Blocks, JointLinks
from shardwise.sharding.coarsen import Coarsened
from shardwise.sharding.layout import Floats
from shardwise.sharding.names import sample_variables
from shardwise.sharding.pattern import GroupPattern, Patterns

MOST_CONFIGURATIONS = 80
"""Assignments of a group under one proportion: axes inside blocks are merged until there are no
more."""


@dataclass(kw_only=True)
class MixedProblem(SearchProblem):
    """The problem of a cluster of several kinds. As a problem of one kind it is that of the first
    of `places`; `joins` says which communication joins places."""

    cluster: Cluster
    places: list[SearchProblem]
    joins: SearchProblem

    def summed(
        self, choices: NDArray[np.uint32], edge_choices: NDArray[np.uint32]
    ) -> tuple[Floats, Floats]:
        """Returns memory and time of S strategies at the busiest place."""
        of_places = [place.summed(choices, edge_choices) for place in self.places]
        memory, time = (np.stack(sums) for sums in zip(*of_places, strict=True))
        at = time.argmax(axis=0), np.arange(len(choices))
        return memory[at], time[at]

    def everywhere(self, proportion: int) -> list[NDArray[np.bool_]]:
        """Returns each group's configurations of a proportion, or the even ones if it has none;
        groups with the same costs share one array."""
        masks: dict[int, NDArray[np.bool_]] = {}
        for cost in self.costs:
            if id(cost) not in masks:
                has = cost.proportion == proportion
                masks[id(cost)] = has if has.any() else cost.proportion == EVEN
        return [masks[id(cost)] for cost in self.costs]

    def least_everywhere_s(self, proportion: int) -> float:
        """Returns a lower bound on the computation at some place, and so on the step, of strategies
        within `everywhere`."""
        masks = self.everywhere(proportion)
        least = []
        for place in self.places:
            known: dict[int, float] = {}
            for cost, mask in zip(place.costs, masks, strict=True):
                if id(cost) not in known:
                    known[id(cost)] = float(cost.compute_s[mask].min())
            least.append(sum(known[id(cost)] for cost in place.costs))
        return max(least)

    def busiest(
        self, choices: NDArray[np.uint32], edge_choices: NDArray[np.uint32]
    ) -> NDArray[np.int64]:
        """Returns the place at which the times of each of S strategies add up to the most, (S,)."""
        times = [place.summed(choices, edge_choices)[1] for place in self.places]
        return np.asarray(np.argmax(times, axis=0))


@dataclass(frozen=True)
class MixedCosted:
    """The groups of a problem at all places, the last of which says what joins places; without
    crossings.

    With `keep_beaten` configurations are kept although others of the same layouts beat them, since
    other systems may not know those others.
    """

    cluster: Cluster
    contexts: list[CostContext]
    coarsened: Coarsened
    patterns: list[GroupPattern]
    terms: dict[Hashable, list[GroupTerms]]
    kinds: list[Hashable]
    keep_beaten: bool = False

    @property
    def context(self) -> CostContext:
        """The context of the first place."""
        return self.contexts[0]

    @cached_property
    def _devices(self) -> list[int]:
        """How many devices are at each place."""
        size = self.cluster.blocks.size
        return [place.count * size for place in self.cluster.places]

    def least_compute_s(self) -> float:
        """Returns a lower bound on every strategy's computation.

        The busiest device computes at least the mean over all devices.
        """
        weights = np.array(self._devices) / sum(self._devices)
        least: dict[Hashable, float] = {}
        for kind, of_places in self.terms.items():
            mean = sum(
                weight * terms.work.where_present(terms.passes_compute_s())
                for weight, terms in zip(weights.tolist(), of_places, strict=False)
            )
            least[kind] = float(np.min(mean))
        return sum(least[kind] for kind in self.kinds)

    def least_host_s(self) -> float:
        """Returns a lower bound on the host's time: 0, since no operator must be at any one
        place."""
        return 0.0

    def costs(self, progress: Progress) -> list[list[GroupCosts]]:
        """Returns the configurations of every group, by place."""
        for of_places in self.terms.values():
            of_places[0].work.register()
        known: dict[Hashable, list[GroupCosts]] = {}
        for position, (kind, of_places) in enumerate(self.terms.items()):
            go_on(progress, "costs", 0.5 + 0.5 * position / len(self.terms))
            known[kind] = group_costs_of_places(
                of_places, judged=len(of_places) - 1, keep_beaten=self.keep_beaten
            )
        return [[known[kind][place] for kind in self.kinds] for place in range(len(self.contexts))]

    def alone(self) -> MixedProblem:
        """Returns a problem of groups without configurations: fit for its figures, not to
        search."""
        return self._problem([self._place(context, [], []) for context in self.contexts])

    def joined(self, progress: Progress) -> MixedProblem:
        """Returns the problem with all configurations and crossings."""
        problems = []
        for context, costs in zip(self.contexts, self.costs(progress), strict=True):
            edges = all_edges(context, self.patterns, costs, progress)
            problems.append(self._place(context, costs, edges))
        return self._problem(problems)

    def _place(
        self, context: CostContext, costs: list[GroupCosts], edges: list[SearchEdge]
    ) -> SearchProblem:
        fixed = fixed_costs(context, self.coarsened)
        return SearchProblem(context, self.coarsened, self.patterns, costs, edges, *fixed)

    def _problem(self, problems: list[SearchProblem]) -> MixedProblem:
        first = problems[0]
        return MixedProblem(
            first.context,
            first.coarsened,
            first.patterns,
            first.costs,
            first.edges,
            first.fixed_memory_bytes,
            first.fixed_time_s,
            cluster=self.cluster,
            places=problems[:-1],
            joins=problems[-1],
        )


def searched_mesh(blocks: Blocks, max_configurations: int) -> SearchMesh:
    """Returns the mesh of a bundle's blocks with as many axes merged as a search merges."""
    most = min(max_configurations, MOST_CONFIGURATIONS)
    return SearchMesh.build(mesh_of_blocks(blocks), most)


def mixed_costed(
    patterns: Patterns,
    blocks: Blocks,
    options: Options,
    progress: Progress,
    micro_batches: int = 1,
    links_of: Callable[[Blocks], JointLinks] = JointLinks,
    probed: Probed | None = None,
) -> MixedCosted:
    """Computes the costs of every group's computation at every place of a cluster.

    `patterns` have the batch of one of the `micro_batches`; `links_of` returns the links between
    blocks; `probed` are the proportions, if already known. Raises `BadInput` for pins that match
    nothing or leave nothing.
    """
    coarsened = patterns.coarsened
    search = searched_mesh(blocks, options.max_configurations)
    group_patterns = [patterns.pattern(group) for group in coarsened.groups]
    links = links_of(blocks)
    bare = context_of(patterns, links.view(0), search, options, micro_batches)
    if probed is None:
        probed = catalogue(bare, group_patterns, blocks)
    cluster = Cluster(
        blocks,
        search,
        links,
        probed.proportions,
        coarsened.graph.batch_size or 1,
        probed.servers,
        probed.states,
    )
    contexts = contexts_of(bare, cluster)
    samples = sample_variables(coarsened)
    kinds: list[Hashable] = [
        (group_kind(bare, pattern), samples[pattern.group.index]) for pattern in group_patterns
    ]
    terms: dict[Hashable, list[GroupTerms]] = {}
    for position, (kind, pattern) in enumerate(zip(kinds, group_patterns, strict=True)):
        if kind not in terms:
            go_on(progress, "costs", 0.5 * position / max(len(group_patterns), 1))
            rows = mixed_assignments(contexts[0], cluster, pattern, samples[pattern.group.index])
            first = GroupWork(contexts[0], pattern, *rows)
            works = [first, *(first.at(context) for context in contexts[1:])]
            terms[kind] = [GroupTerms(work) for work in works]
    return MixedCosted(cluster, contexts, coarsened, group_patterns, terms, kinds)


def contexts_of(bare: CostContext, cluster: Cluster) -> list[CostContext]:
    """Returns the context of every place, and of what says where places are joined."""
    numbers: Sequence[int | None] = (*range(len(cluster.places)), None)
    search = cluster.search
    meshes = [
        PlaceMesh(search.mesh, search.axes, cluster=cluster, place=n, sums=sums_at(cluster, n))
        for n in numbers
    ]
    reschedulers = Reschedulers(cluster, meshes)
    unpacked = replace(cluster.places[0].hardware, packing=False)
    hardwares = [*(place.hardware for place in cluster.places), unpacked]
    return [
        replace(bare, hardware=hardware, mesh=mesh, rescheduler=partial(reschedulers.view, number))
        for number, (hardware, mesh) in enumerate(zip(hardwares, meshes, strict=True))
    ]
