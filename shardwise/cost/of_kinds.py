"""One problem costed on devices of several kinds: the same configurations, row by row.

A stage of a pipeline is on devices of one kind, which differs between pipelines. Configurations
name the layouts on which stages agree, so all kinds have the same ones: one is dropped only if
another with its layouts beats it on every kind. All meshes have the same axis sizes, but an axis
may use different links.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from shardwise.cost.assemble import Costed, context_of, group_kind
from shardwise.cost.configurations import group_costs_of_places, group_work
from shardwise.cost.group_costs import GroupCosts
from shardwise.cost.options import Options, Progress, go_on
from shardwise.cost.space import SearchAxis, SearchMesh
from shardwise.cost.terms import GroupTerms
from shardwise.hardware import Hardware, Mesh
from shardwise.sharding.pattern import Patterns


@dataclass
class _Together:
    """The terms of every group by kind of device, and the configurations once they are chosen."""

    terms: dict[Hashable, list[GroupTerms]]
    known: dict[Hashable, list[GroupCosts]] = field(default_factory=dict)

    def costs(self, progress: Progress) -> dict[Hashable, list[GroupCosts]]:
        """Returns the configurations of every kind of group, by kind of device."""
        if not self.known:
            for of_kinds in self.terms.values():
                for terms in of_kinds:
                    terms.work.register()
            for position, (group, of_kinds) in enumerate(self.terms.items()):
                go_on(progress, "costs", 0.5 + 0.5 * position / len(self.terms))
                self.known[group] = group_costs_of_places(of_kinds)
        return self.known


@dataclass(frozen=True)
class CostedKind(Costed):
    """The groups of a problem on one of several kinds of devices, by its number."""

    together: _Together
    number: int

    def costs(self, progress: Progress) -> list[GroupCosts]:
        known = self.together.costs(progress)
        return [known[kind][self.number] for kind in self.kinds]


def alike(meshes: Sequence[Mesh]) -> bool:
    """Returns whether meshes have the same number of devices along each axis."""
    return len({tuple(axis.size for axis in mesh.axes) for mesh in meshes}) == 1


def costed_of_kinds(
    patterns: Patterns,
    kinds: Sequence[tuple[Hardware, Mesh]],
    options: Options,
    progress: Progress,
    micro_batches: int,
) -> list[CostedKind]:
    """Computes the costs of every group's computation on each kind of device, on meshes that are
    `alike`.

    `patterns` have the batch of one of the `micro_batches`. Raises `BadInput` for pins that match
    nothing or leave nothing.
    """
    meshes = _search_meshes([mesh for _, mesh in kinds], options.max_configurations)
    contexts = [
        context_of(patterns, hardware, mesh, options, micro_batches)
        for (hardware, _), mesh in zip(kinds, meshes, strict=True)
    ]
    # The mesh with the most link levels distinguishes the most assignments.
    finest = max(range(len(meshes)), key=lambda n: len({axis.level for axis in meshes[n].axes}))
    coarsened = patterns.coarsened
    group_patterns = [patterns.pattern(group) for group in coarsened.groups]
    numbers: list[Hashable] = [
        tuple(group_kind(context, pattern) for context in contexts) for pattern in group_patterns
    ]
    terms: dict[Hashable, list[GroupTerms]] = {}
    for position, (number, pattern) in enumerate(zip(numbers, group_patterns, strict=True)):
        if number not in terms:
            go_on(progress, "costs", 0.5 * position / max(len(group_patterns), 1))
            work = group_work(contexts[finest], pattern)
            terms[number] = [GroupTerms(work.at(context)) for context in contexts]
    together = _Together(terms)
    return [
        CostedKind(
            context,
            coarsened,
            group_patterns,
            {number: of_kinds[place] for number, of_kinds in terms.items()},
            numbers,
            together,
            place,
        )
        for place, context in enumerate(contexts)
    ]


def _search_meshes(meshes: Sequence[Mesh], max_configurations: int) -> list[SearchMesh]:
    """Returns meshes with axes merged as in the mesh that merges least."""
    built = [SearchMesh.build(mesh, max_configurations) for mesh in meshes]
    axes = max((mesh.axes for mesh in built), key=len)
    return [
        SearchMesh(
            mesh,
            tuple(
                SearchAxis(axis.name, axis.size, mesh.axes[axis.base[0]].level, axis.base)
                for axis in axes
            ),
        )
        for mesh in meshes
    ]
