"""The choices of what practitioners run in one problem (`practitioners.py` says which they are)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import Progress, go_on
from shardwise.cost.parameters import unit_axes
from shardwise.documents.parallelism import ContextForm, Parallelism, text_of, whole
from shardwise.graph.semantics import QUERY
from shardwise.peers.data_parallel import data_parallel_rows
from shardwise.peers.megatron import Grid, MegatronSpace
from shardwise.peers.methods import (
    FULL,
    HYBRID,
    IN_CONTEXT,
    MEGATRON,
    METHODS,
    NONE,
    RECOMPUTATIONS,
    RECOMPUTED,
    SELECTIVE,
    STAGE,
)
from shardwise.peers.parts import groups_of
from shardwise.peers.restrict import least_time
from shardwise.peers.rows_by_split import RowsBySplit
from shardwise.peers.unsharded import unsharded_text
from shardwise.sharding.layout import shard_fits

EVERYWHERE = -1
"""The bit mask of all axes."""

Choices = NDArray[np.uint32]
Allowed = Callable[[Parallelism], bool]
"""Says whether a strategy of the whole model is wanted."""


@dataclass(frozen=True)
class Named:
    """The choices of a strategy, (groups,), under its method and label."""

    method: str
    label: str
    parallelism: Parallelism
    choices: Choices


def is_offered(name: str, problem: SearchProblem) -> bool:
    """Returns whether options and mesh are such that practitioners would use a method."""
    axes, node = len(problem.context.mesh.axes), _axes_in_a_node(problem)
    inside_some = 0 < node < (1 << axes) - 1
    stages = set(METHODS[name].stages) & set(problem.context.options.zero)
    if name in IN_CONTEXT:
        samples = problem.context.graph.batch_size
        few = samples is not None and samples < problem.context.mesh.sizes.prod()
        return few and bool(stages) and any(QUERY in g.variables for g in problem.coarsened.groups)
    return bool(stages) and axes > 0 and (inside_some or name != HYBRID)


def _axes_in_a_node(problem: SearchProblem) -> int:
    """Returns the bit mask of the axes inside a node."""
    mesh = problem.context.mesh
    node = mesh.mesh.levels[0]
    return sum(1 << a for a, axis in enumerate(mesh.axes) if axis.level == node)


def _method_of(parallelism: Parallelism) -> str:
    """Returns what practitioners call a strategy: one of `METHODS`."""
    if max(parallelism.tensor, parallelism.expert, parallelism.context) > 1:
        return MEGATRON
    if parallelism.zero and parallelism.replicas > 1:
        return HYBRID
    return next(name for name, of in METHODS.items() if parallelism.zero in of.stages)


class Practices:
    """The strategies of one problem."""

    def __init__(self, problem: SearchProblem, progress: Progress) -> None:
        self._problem = problem
        self._stages = 1
        self._space = cache(lambda: MegatronSpace(problem))
        self._options = problem.context.options
        self._progress = progress
        self._known: dict[Grid, Choices | None] = {}
        sizes = problem.context.mesh.sizes
        self._rows = {id(cost): RowsBySplit(cost, sizes) for cost in problem.costs}

    def in_stages(self, stages: int) -> Practices:
        """Returns the strategies in stages with equal numbers of blocks, where the same blocks of
        each stage run again. Both share what is known of the problem."""
        other = copy(self)
        other._stages = stages
        return other

    def named(self, methods: Container[str]) -> Iterator[Named]:
        """Yields method, label and choices of each of these methods."""
        go_on(self._progress, STAGE, 0.0)
        if self._has_samples_for(int(self._problem.context.mesh.sizes.prod())):
            yield from self._data_parallel(methods)
        if MEGATRON in methods:
            space = self._space()
            for grid in space.grids(experts=True):
                go_on(self._progress, STAGE, 0.0)
                if (any(grid.tp) or any(grid.ep)) and self._has_samples_for(grid.shares):
                    yield from self._megatron(space, grid)
        for name, form in IN_CONTEXT.items():
            if name in methods and is_offered(name, self._problem):
                yield from self._context(name, form)

    @property
    def blocks(self) -> int:
        """Returns the number of blocks of a stage, of which some may run again and others not."""
        return (max(self._block_of, default=-1) + 1) // self._stages

    def marked(self, allowed: Allowed, partial: Collection[Parallelism] = ()) -> Iterator[Named]:
        """Yields the allowed strategies: every factorisation, stage, extent of shards and
        recomputation; what tensor parallelism can split it does. Of these in which all blocks run
        again also those that are named in `partial`, in which some do. Those are left out whose
        shards the model cannot have (`unsharded.py`)."""
        for named in self._marked(allowed, partial):
            if unsharded_text(self._problem, named.choices, named.parallelism.sharded) is None:
                yield named

    def refusal(self, given: Parallelism) -> str | None:
        """Returns why the model cannot have the shards of a strategy; None where it can."""
        partial = () if whole(given) == given else (given,)
        marked = self._marked(lambda one: one == given, partial)
        texts = (unsharded_text(self._problem, one.choices, given.sharded) for one in marked)
        return next(filter(None, texts), None)

    def _marked(self, allowed: Allowed, partial: Collection[Parallelism]) -> Iterator[Named]:
        space = self._space()
        for grid in space.grids(experts=True, whole_experts=True, context=True):
            go_on(self._progress, STAGE, 0.0)
            every = list(self._strategies(grid))
            wanted = [one for one in every if allowed(one[0])]
            wanted += [
                (other, recompute, within)
                for one, recompute, within in every
                for other in partial
                if whole(other) == one
            ]
            if not (wanted and self._has_samples_for(grid.shares)):
                continue
            splits = self._splits(space, grid)
            if splits is not None:
                for parallelism, recompute, within in wanted:
                    method = _method_of(parallelism)
                    again = self._again(parallelism, recompute)
                    rows = self._like(splits, parallelism.zero, within, again)
                    yield Named(
                        method, text_of(replace(parallelism, micro_batches=1)), parallelism, rows
                    )

    def _splits(self, space: MegatronSpace, grid: Grid) -> Choices | None:
        """Returns what a factorisation splits, None where the model cannot follow it."""
        if grid not in self._known:
            self._known[grid] = (
                self._least_sum(space, grid, divided=True)
                if any(grid.tp) or any(grid.ep) or any(grid.cp)
                else data_parallel_rows(self._problem).choices
            )
        return self._known[grid]

    def _again(self, parallelism: Parallelism, recompute: str) -> NDArray[np.bool_]:
        """Returns which groups run forward again: a mask over those of all blocks."""
        mask = self._recomputing[recompute]
        if parallelism.recompute_modules is not UNSET:
            mask = groups_of(parallelism.recompute_modules, self._problem.coarsened)
        if not (parallelism.in_part and self.blocks):
            return mask
        chosen = np.arange(self.blocks)[parallelism.recomputed_blocks]
        return mask & np.isin(np.array(self._block_of) % self.blocks, chosen)

    def _strategies(self, grid: Grid) -> Iterator[tuple[Parallelism, str, int]]:
        """Yields the strategies of a factorisation, each with its recomputation and the bit mask of
        the axes within which it shards. Without data or context shares, only ZeRO 0."""
        data, context = grid.shares, grid.context
        for stage in self._options.zero:
            if (stage and data * context == 1) or self._repeats_on_host(stage, data * context):
                continue
            extents = self._extents(grid) if stage else {context: EVERYWHERE}
            for extent, within in sorted(extents.items()):
                for recompute in self._recomputations:
                    parallelism = self._parallelism(grid, stage, extent // context, recompute)
                    yield parallelism, recompute, within

    def _extents(self, grid: Grid) -> dict[int, int]:
        """Returns over how many devices a factorisation may shard, with the bit mask of the axes
        that these span: over all, inside a node, and inside a unit of the options."""
        mesh, every = self._problem.context.mesh, grid.shares * grid.context
        extents = {every: EVERYWHERE, self._inside(grid): _axes_in_a_node(self._problem)}
        for unit in self._options.shard_units:
            extents.setdefault(unit * every // mesh.mesh.gpus, unit_axes(mesh, unit))
        return {
            extent: EVERYWHERE if extent == every else within
            for extent, within in extents.items()
            if extent > 1 and extent % grid.context == 0 and within
        }

    def _repeats_on_host(self, stage: int, data: int) -> bool:
        """Returns whether hosts would keep states once for each of their devices."""
        return self._options.step.offloads_states and not stage and data > 1

    def _parallelism(
        self, grid: Grid | None, stage: int, shards: int, recompute: str
    ) -> Parallelism:
        gpus = int(self._problem.context.mesh.sizes.prod())
        data = gpus if grid is None else grid.shares
        return Parallelism(
            replicas=data // shards,
            shards=shards,
            tensor=gpus // data // (1 if grid is None else grid.context),
            expert=1 if grid is None else grid.expert,
            context=1 if grid is None else grid.context,
            context_form="gather" if grid is None else grid.form,
            whole_experts=grid is not None and grid.whole_experts,
            sequence=grid is not None and grid.sequence,
            zero=stage,
            recompute=RECOMPUTED[recompute],
            micro_batches=self._problem.context.micro_batches,
        )

    def _inside(self, grid: Grid | None) -> int:
        """Returns over how many devices of a node samples and positions are divided; tensor
        parallelism is innermost."""
        mesh = self._problem.context.mesh
        node = mesh.mesh.levels[0]
        gpus = int(mesh.sizes.prod())
        of_node = prod(axis.size for axis in mesh.axes if axis.level == node)
        return max(of_node // (1 if grid is None else gpus // (grid.shares * grid.context)), 1)

    def _has_samples_for(self, shares: int) -> bool:
        """Returns whether a micro-batch can be cut into this many shares."""
        samples = self._problem.context.graph.batch_size
        return samples is None or shard_fits(samples, shares)

    def _data_parallel(self, methods: Container[str]) -> Iterator[Named]:
        splits = data_parallel_rows(self._problem).choices
        for name, method in METHODS.items():
            if name in methods and name != MEGATRON and is_offered(name, self._problem):
                for stage in method.stages:
                    label = f"zero-{stage}" if len(method.stages) > 1 else ""
                    yield from self._under(splits, name, label, stage, inside=name == HYBRID)

    def _megatron(self, space: MegatronSpace, grid: Grid) -> Iterator[Named]:
        splits = self._least_sum(space, grid)
        if splits is not None:
            for stage in METHODS[MEGATRON].stages:
                label = grid.label + (f"·zero-{stage}" if stage else "")
                yield from self._under(splits, MEGATRON, label, stage, grid=grid)

    def _context(self, method: str, form: ContextForm) -> Iterator[Named]:
        space = self._space()
        for grid in space.grids(context=True):
            go_on(self._progress, STAGE, 0.0)
            of_form = any(grid.cp) and not any(grid.tp) and grid.form == form
            if of_form and self._has_samples_for(grid.shares):
                splits = self._splits(space, grid)
                if splits is not None:
                    yield from self._under(splits, method, f"cp{grid.context}", 3, grid=grid)

    def _least_sum(
        self, space: MegatronSpace, grid: Grid, *, divided: bool = False
    ) -> Choices | None:
        """Returns the factorisation's strategy of the least sum, under the least ZeRO stage and
        recomputation; None where a group cannot follow the factorisation.

        `divided` as in `MegatronSpace.masks`.
        """
        stage, recompute = min(self._options.zero), self._recomputations[0]
        masks = []
        for g, mask in enumerate(space.masks(grid, divided=divided)):
            rows = self._rows[id(self._problem.costs[g])]
            of_splits = rows.by_split(stage, EVERYWHERE, bool(self._recomputing[recompute][g]))
            only = np.zeros(len(mask), dtype=bool)
            only[of_splits] = mask[of_splits]
            if not only.any():
                return None
            masks.append(only)
        chosen, _ = least_time(self._problem, masks, self._options, self._progress)
        return chosen

    def _under(
        self,
        splits: Choices,
        method: str,
        label: str,
        stage: int,
        *,
        grid: Grid | None = None,
        inside: bool = False,
    ) -> Iterator[Named]:
        """Yields the strategy that splits as `splits` do, under a ZeRO stage and each
        recomputation."""
        if stage not in self._options.zero:
            return
        data = int(self._problem.context.mesh.sizes.prod()) if grid is None else grid.shares
        if self._repeats_on_host(stage, data):
            return
        shards = 1 if not stage else self._inside(grid) if inside else data
        within = _axes_in_a_node(self._problem) if inside else EVERYWHERE
        for recompute in self._recomputations:
            rows = self._like(splits, stage, within, self._recomputing[recompute])
            words = "·".join(filter(None, (label, recompute)))
            yield Named(method, words, self._parallelism(grid, stage, shards, recompute), rows)

    def _like(self, splits: Choices, stage: int, within: int, again: NDArray[np.bool_]) -> Choices:
        """Returns the rows that split as `splits` do."""
        rows = [
            self._rows[id(cost)].like(int(splits[g]), stage, within, bool(again[g]))
            for g, cost in enumerate(self._problem.costs)
        ]
        return np.array(rows, dtype=np.uint32)

    @property
    def _recomputations(self) -> tuple[str, ...]:
        return RECOMPUTATIONS[self._options.recomputation]

    @cached_property
    def _block_of(self) -> list[int]:
        """Returns the block of each group by its place among the blocks, -1 outside of all."""
        segments = self._problem.context.segments
        counts = Counter(segments)
        order = {one: place for place, one in enumerate(o for o in counts if counts[o] > 1)}
        return [order.get(segment, -1) for segment in segments]

    @cached_property
    def _recomputing(self) -> dict[str, NDArray[np.bool_]]:
        """Which groups run forward again under each recomputation."""
        block = np.array(self._block_of) >= 0
        if not block.any():
            block = np.ones_like(block)
        weights = np.array([self._has_weights(g) for g in range(len(block))], dtype=bool)
        return {NONE: np.zeros_like(block), SELECTIVE: block & ~weights, FULL: block}

    def _has_weights(self, group: int) -> bool:
        """Returns whether a group multiplies by weights: has a heavy operator with a parameter."""
        tensors = self._problem.context.graph.tensors
        members = self._problem.coarsened.groups[group].members
        made = {name for m in members if m.on_parameters for name in m.operator.outputs}
        return any(
            tensors[name].role == "parameter" or name in made
            for member in members
            if member.semantics.category == "heavy"
            for name in member.operator.inputs
        )
