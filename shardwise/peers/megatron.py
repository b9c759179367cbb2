"""Megatron-style tensor parallelism (Shoeybi et al. 2019 §3; Korthikanti et al. 2022 §4).

The mesh is a grid dp × tp, tp on the innermost axes (inside a node first) and taken as one. For
each factorisation:

    dp   the batch, in every operator that has one
    tp   one dimension of an operator or none: columns or rows of its matrix, its heads, its
         vocabulary; never samples, never positions, and never the hidden size of the residual
         stream, that is, a dimension that a normalisation reduces and scales
    sp   with sequence parallelism operators without a matrix may have tp on positions instead
    ep   of a mixture: experts over the innermost axes of dp, to which rows are sent, where tp is on
         the experts' columns and rows as it is elsewhere; or whole experts over the innermost axes
         of all, those of tp among them (`--expert-tensor-parallel-size 1`)
    cp   positions, between dp and tp: in every operator that has them, and in attention in one of
         three forms: its queries, with keys and values gathered; these go round (ring); or its
         heads (Ulysses)

Which of these an operator takes is not written down per layer as in Megatron-LM: the fastest
choice is found (memory left out of account), so that columns, then rows, then an all_reduce come
out where the paper puts them by hand, and other models than transformers have an answer too.
Its pipeline is in `pipelines.py`; ZeRO and recomputation on top are in `practitioners.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import Options, Progress
from shardwise.documents.parallelism import ContextForm
from shardwise.graph.semantics import QUERY, RING
from shardwise.peers.answer import Answer, proven
from shardwise.peers.bundles import AxisClasses, Bundle, Bundles
from shardwise.peers.evaluate import Point, evaluate
from shardwise.peers.restrict import least_time
from shardwise.sharding.coarsen import Group, Member
from shardwise.sharding.names import NamedDimensions, named_dimensions
from shardwise.sharding.routing import COPY, ROUTED

METHOD = "megatron"
TITLE = "Megatron-style"
CONTEXT_FORMS = get_args(ContextForm)
HEAD = "head"
"""The variable of attention's heads."""


def megatron(
    problem: SearchProblem,
    options: Options,
    progress: Progress,
    names: NamedDimensions | None = None,
) -> Answer:
    """Returns one point per factorisation (`dp4·tp2`), one more where sequence parallelism is
    faster."""
    space = MegatronSpace(problem, names)
    points: list[Point] = []
    worst = 0.0
    for grid in space.grids():
        chosen, epsilon = least_time(problem, space.masks(grid), options, progress)
        worst = max(worst, epsilon)
        point = evaluate(problem, chosen, label=grid.label)
        if not grid.sequence or point.time_s < points[-1].time_s:
            points.append(point)
    return Answer(
        METHOD,
        TITLE,
        "tensor parallelism on the innermost axes, data parallelism on the others, every "
        "factorisation; the fastest columns, rows, heads and vocabulary splits",
        tuple(points),
        epsilon=proven(worst),
    )


@dataclass(frozen=True)
class Grid:
    """The mesh as dp × tp; with `sequence` also sequence parallelism.

    `shares` are the devices along dp, among which samples are split; `expert` those along `ep`, of
    them the ones that have different experts, of all devices with `whole_experts`; `context` those
    along `cp`, attention in a `form`.
    """

    dp: Bundle
    tp: Bundle
    sequence: bool
    shares: int
    label: str
    ep: Bundle
    cp: Bundle
    expert: int = 1
    context: int = 1
    form: ContextForm = "gather"
    whole_experts: bool = False


class MegatronSpace:
    """What each factorisation allows in every group."""

    def __init__(self, problem: SearchProblem, names: NamedDimensions | None = None) -> None:
        self._problem = problem
        self._names = names or named_dimensions(problem.coarsened)
        self._classes = AxisClasses.of(problem.context.mesh.axes)
        self._bundles = Bundles(problem, self._classes)
        self._hidden = _hidden(problem, self._names)

    def grids(
        self, *, experts: bool = False, whole_experts: bool = False, context: bool = False
    ) -> Iterator[Grid]:
        """Yields every factorisation, from data parallelism alone to tensor parallelism alone.

        Where there are positions each is followed by the one with sequence parallelism; with
        `experts` each by those with experts over some axes of dp, where rows can be sent to them,
        and with `whole_experts` by those with whole ones over the axes of tp and some of dp; with
        `context` by those with positions over some, in each form.
        """
        classes = self._classes
        axes = len(classes.of_axis)
        none = tuple(0 for _ in classes.sizes)
        for count in range(axes + 1):
            tp = classes.of_last(count)
            dp = classes.without(tp)
            most = axes - count if experts and self._routes else 0
            for sequence in (False, True) if any(tp) and self._names.positions else (False,):
                for more in range(most + 1):
                    ep = _difference(classes.of_last(count + more), tp)
                    shares, expert = classes.size(dp), classes.size(ep)
                    label = f"dp{shares}·tp{classes.size(tp)}" + ("·sp" if sequence else "")
                    label += f"·ep{expert}" if more else ""
                    yield Grid(dp, tp, sequence, shares, label, ep, none, expert)
                whole = whole_experts and self._routes and any(tp)
                for more in range(axes - count + 1 if whole else 0):
                    ep = classes.of_last(count + more)
                    shares, expert = classes.size(dp), classes.size(ep)
                    label = f"dp{shares}·tp{classes.size(tp)}" + ("·sp" if sequence else "")
                    label += f"·ep{expert}·etp1"
                    grid = Grid(dp, tp, sequence, shares, label, ep, none, expert)
                    yield replace(grid, whole_experts=True)
                for more in range(1, axes - count + 1 if context and self._names.positions else 1):
                    cp = _difference(classes.of_last(count + more), tp)
                    of_samples = _difference(dp, cp)
                    shares, positions = classes.size(of_samples), classes.size(cp)
                    label = f"dp{shares}·cp{positions}·tp{classes.size(tp)}"
                    for form in CONTEXT_FORMS:
                        name = label + ("·sp" if sequence else "") + f"·{form}"
                        yield Grid(
                            of_samples, tp, sequence, shares, name, none, cp, 1, positions, form
                        )

    @property
    def _routes(self) -> bool:
        return any(ROUTED in group.variables for group in self._problem.coarsened.groups)

    def masks(self, grid: Grid, *, divided: bool = False) -> list[NDArray[np.bool_]]:
        """Returns per group the configurations that a factorisation allows.

        With `divided` groups with a matrix are split along tp wherever they can be, as programs
        that are written for tensor parallelism have it, even where to repeat them takes less; with
        sequence parallelism so is everything else that is computed for samples, which is split by
        position where nothing else can be (Korthikanti et al. 2022 §4.2.2).
        """
        masks = [
            self._mask(group, grid, sequence=grid.sequence)
            for group in self._problem.coarsened.groups
        ]
        if not divided:
            return masks
        return [
            self._divided(group, mask, grid)
            for group, mask in zip(self._problem.coarsened.groups, masks, strict=True)
        ]

    def _divided(self, group: Group, mask: NDArray[np.bool_], grid: Grid) -> NDArray[np.bool_]:
        """Returns those of a group's configurations that split along tp; all where none does."""
        samples = self._names.samples[group.index]
        heavy = any(member.semantics.category == "heavy" for member in group.members)
        if not (heavy or (grid.sequence and samples)):
            return mask
        split = np.zeros_like(mask)
        for v, variable in enumerate(group.variables):
            # Of as many devices as tp has samples or experts may be cut too.
            if variable != ROUTED and v not in samples:
                split |= self._bundles.has(group.index, v, grid.tp)
                if any(grid.tp) and any(grid.cp):
                    split |= self._bundles.has(group.index, v, _sum(grid.cp, grid.tp))
        split &= mask
        return split if split.any() else mask

    def _mask(self, group: Group, grid: Grid, *, sequence: bool) -> NDArray[np.bool_]:
        g, dp, tp = group.index, grid.dp, grid.tp
        sends = ROUTED in group.variables and any(grid.ep)
        if sends and grid.whole_experts:
            dp, tp = self._classes.without(grid.ep), self._classes.of_last(0)
        elif sends:
            dp = _difference(dp, grid.ep)
        fits = self._bundles.on(g, (dp, tp, grid.cp, *([grid.ep] if sends else []))).copy()
        both = _sum(grid.cp, tp)
        positions = self._positions(group, grid) if any(grid.cp) else None
        if positions is not None and any(tp):
            fits |= self._bundles.on(g, (dp, both))
        samples = self._names.samples[g]
        # The first variable of samples that can be cut into dp shares, as in data parallelism.
        batch = next((v for v in samples if (fits & self._bundles.has(g, v, dp)).any()), None)
        none = tuple(0 for _ in tp)
        for v in range(len(group.variables)):
            whole = self._bundles.has(g, v, none)
            if group.variables[v] == ROUTED:
                fits &= self._bundles.has(g, v, grid.ep)
            elif v == batch:
                fits &= self._bundles.has(g, v, dp)
            elif v == positions:
                divided = self._bundles.has(g, v, grid.cp)
                if self._may_be_cut(group, v, samples, sequence=sequence):
                    divided = divided | self._bundles.has(g, v, both)
                fits &= divided
            elif self._may_be_cut(group, v, samples, sequence=sequence):
                fits &= whole | self._bundles.has(g, v, tp)
            else:
                fits &= whole
        if any(grid.cp) and positions is None and group.anchor.semantics.category == "heavy":
            # Its rows are positions of several samples in one dimension, or it has none.
            fits[:] = False
        return fits

    def _positions(self, group: Group, grid: Grid) -> int | None:
        """Returns the variable of a group that is split along cp; None where it has none."""
        if QUERY in group.variables:
            name = {"gather": QUERY, "ring": RING, "ulysses": HEAD}[grid.form]
            return group.variables.index(name) if name in group.variables else None
        return next(
            (
                v
                for v in range(len(group.variables))
                if self._names.name_of[group.index, v] in self._names.positions
                and v not in self._names.samples[group.index]
            ),
            None,
        )

    def _may_be_cut(
        self, group: Group, variable: int, samples: tuple[int, ...], *, sequence: bool
    ) -> bool:
        name = self._names.name_of[group.index, variable]
        if variable in samples or name in self._hidden:
            return False
        if ROUTED in group.variables and group.variables[variable] == COPY:
            # Each device of tp sees every copy of a token, and has columns or rows of experts.
            return False
        if name in self._names.positions:
            return sequence and not any(m.semantics.category == "heavy" for m in group.members)
        return True


def _difference(one: Bundle, other: Bundle) -> Bundle:
    return tuple(a - b for a, b in zip(one, other, strict=True))


def _sum(one: Bundle, other: Bundle) -> Bundle:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _hidden(problem: SearchProblem, names: NamedDimensions) -> frozenset[int]:
    """Returns the names that a normalisation both reduces and scales with a parameter."""
    return frozenset(
        names.name_of[group.index, variable]
        for group in problem.coarsened.groups
        for variable in _reduced(group) & _scaled(problem, group)
        if group.anchor.semantics.category != "heavy"
    )


def _reduced(group: Group) -> set[int]:
    variables = set()
    for member in group.members:
        sem = member.semantics
        reduced = {v for v, variable in enumerate(sem.variables) if variable.is_reduction}
        for statistic in sem.statistics:
            reduced |= statistic.reduced
        variables |= {member.variables[v] for v in reduced}
    return variables


def _scaled(problem: SearchProblem, group: Group) -> set[int]:
    tensors = problem.context.graph.tensors

    def scales(member: Member, position: int) -> bool:
        return tensors[member.operator.inputs[position]].role == "parameter"

    return {
        member.variables[v]
        for member in group.members
        for position, accesses in enumerate(member.semantics.inputs)
        if scales(member, position)
        for v in accesses
    }
