"""The configurations of a group: assignments, ZeRO stages, recomputation; costed and thinned.

Configurations with the same layouts and recomputation look the same to other groups. One that
another equals or beats in memory and in every term of its time is never needed, whichever terms a
step hides behind others, and is dropped. The search by sums also leaves out those beaten in memory
and summed time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.context import CostContext
from shardwise.cost.gradient_sums import COLLECTIVE
from shardwise.cost.group_costs import GroupCosts, Port
from shardwise.cost.group_work import GroupWork
from shardwise.cost.legality import Legality, splits_twice
from shardwise.cost.parameters import stages
from shardwise.cost.pins import LEVELS, NO_VARIABLE, Pin, axis_rules, no_axis
from shardwise.cost.shares import by_source
from shardwise.cost.space import EVEN, NONE, assignments
from shardwise.cost.terms import GroupTerms
from shardwise.errors import BadInput
from shardwise.sharding.layout import Floats
from shardwise.sharding.operator_layouts import LayoutRows
from shardwise.sharding.pattern import GroupPattern


@dataclass(frozen=True)
class _Variant:
    """One ZeRO stage and kind of gradient sum under every assignment: parameter bytes and seconds,
    shape (n,).

    `terms` are the times that a step may hide separately, shape (n, terms).
    """

    stage: int
    gradient_sum: int
    axes: NDArray[np.int64]
    parameter_bytes: Floats
    compute_s: Floats
    compute_by_source_s: Floats
    communication_s: Floats
    terms: Floats
    host_s: Floats

    @property
    def time_s(self) -> Floats:
        return self.compute_s + self.communication_s


def group_work(context: CostContext, pattern: GroupPattern) -> GroupWork:
    """Returns the assignments that the group and the pins allow."""
    group = pattern.group
    rules = context.pins.all_of(group)
    allowed = assignments(
        context.mesh.axes,
        len(group.variables),
        legal_splits(context, pattern),
        pinned_axes(context, pattern),
    )
    allowed = allowed[~splits_twice(group.variables, allowed)]
    if len(allowed) == 0:
        raise no_configuration(context, pattern, rules)
    return GroupWork(context, pattern, allowed, np.full(len(allowed), EVEN, dtype=np.int8))


def group_costs(terms: GroupTerms) -> GroupCosts:
    """Returns the group's configurations that none with the same layouts beats in all terms.

    Raises `BadInput` if the pins leave none.
    """
    return group_costs_of_places([terms])[0]


def group_costs_of_places(
    places: Sequence[GroupTerms], *, judged: int | None = None, keep_beaten: bool = False
) -> list[GroupCosts]:
    """Returns the configurations at several places, the same rows for each.

    One is dropped if another with the same layouts beats it in all terms of the first `judged`
    places (None: of all); with `keep_beaten` only if an earlier one is equal in all. Raises
    `BadInput` if the pins leave none.
    """
    work = places[0].work
    every = [list(_variants(terms)) for terms in places]
    recomputations = _recomputations(work)
    if not every[0] or not recomputations:
        context, pattern = work.context, work.pattern
        raise no_configuration(context, pattern, context.pins.all_of(pattern.group))
    counted = list(zip(places, every, strict=True))[:judged]
    terms = [_of_variants(*one, ("memory", "terms", "host")) for one in counted]
    sums = [_of_variants(*one, ("memory", "time")) for one in counted]
    judge = _distinct if keep_beaten else _best
    keep = judge(np.concatenate(terms, axis=2))
    summed = _best(np.concatenate(sums, axis=2))
    rows = [
        (recompute, base, v)
        for recompute in recomputations
        for base in range(work.count)
        for v in range(len(every[0]))
        if keep[v, base]
    ]
    recomputed, base, which = (np.array(column) for column in zip(*rows, strict=True))
    return [
        _selected(terms, variants, recomputed, base, which, summed[which, base])
        for terms, variants in zip(places, every, strict=True)
    ]


def _of_variants(terms: GroupTerms, variants: Sequence[_Variant], what: Sequence[str]) -> Floats:
    """Returns the variants' costs for comparison, shape (variants, n, kinds of cost)."""
    columns = []
    for variant in variants:
        parts = {
            "memory": variant.parameter_bytes[:, None],
            "time": variant.time_s[:, None],
            "terms": variant.terms,
            "host": variant.host_s[:, None],
        }
        columns.append(np.concatenate([parts[name] for name in what], axis=1))
    return np.stack([terms.work.where_present(column) for column in columns])


def _selected(
    terms: GroupTerms,
    variants: Sequence[_Variant],
    recomputed: NDArray[np.bool_],
    base: NDArray[np.int64],
    which: NDArray[np.int64],
    summed: NDArray[np.bool_],
) -> GroupCosts:
    """Returns one place's configurations: recomputation, and the numbers of assignment and
    variant."""
    work = terms.work
    pattern = work.pattern

    def select(terms: list[Floats]) -> Floats:
        return np.asarray(np.stack(terms)[which, base])

    def present(values: Floats) -> Floats:
        return work.context.mesh.where_present(values, work.proportion[base])

    def port(layouts: LayoutRows) -> Port:
        forward, gradient = layouts
        return Port(work.placed(forward), work.placed(gradient)).take(base)

    compute_s, communication_s = terms.passes_compute_s(), terms.passes_communication_s()
    forward_by_source = terms.forward_by_source_s()
    passes_by_source = forward_by_source + terms.backward_by_source_s()
    rerun_by_source = terms.rerun_by_source_s()
    rerun_compute_s, rerun_communication_s = terms.rerun_compute_s(), terms.rerun_communication_s()
    kept, kept_still = terms.kept_bytes(), terms.kept_still_bytes()
    stage = np.array([variant.stage for variant in variants], dtype=np.int8)
    gradient_sum = np.array([variant.gradient_sum for variant in variants], dtype=np.int8)
    axes = np.stack([variant.axes for variant in variants])[which, base]
    return GroupCosts(
        work.assignment[base],
        # Without axes to shard over every stage is stage 0.
        np.where(axes > 0, stage[which], 0).astype(np.int8),
        axes,
        recomputed.astype(bool),
        present(select([v.parameter_bytes for v in variants])),
        present(np.where(recomputed, kept_still[base], kept[base])),
        present(
            compute_s[base]
            + select([v.compute_s for v in variants])
            + np.where(recomputed, rerun_compute_s[base], 0.0)
        ),
        present(
            passes_by_source[base]
            + select([v.compute_by_source_s for v in variants])
            + np.where(recomputed[:, None], rerun_by_source[base], 0.0)
        ),
        present(
            communication_s[base]
            + select([v.communication_s for v in variants])
            + np.where(recomputed, rerun_communication_s[base], 0.0)
        ),
        tuple(port(work.input_layouts[name]) for name in pattern.entries),
        tuple(port(work.output_layouts[name]) for name in pattern.exits),
        recomputed * work.count + base,
        summed,
        present(
            terms.passes_host_s()[base]
            + select([v.host_s for v in variants])
            + np.where(recomputed, terms.rerun_host_s()[base], 0.0)
        ),
        work.proportion[base],
        np.where(axes > 0, gradient_sum[which], 0).astype(np.int8),
        terms,
        base,
    )


def _variants(group: GroupTerms) -> list[_Variant]:
    variants = [_variant(group, *kind) for kind in stages(group.work)]
    nowhere = np.zeros(group.work.count, dtype=np.int64)
    if any((v.stage or v.gradient_sum) and (v.axes == 0).any() for v in variants):
        plain = _variant(group, 0, COLLECTIVE, nowhere)
        variants = [_where_sharded(v, plain) for v in variants]
    return variants


def _variant(group: GroupTerms, stage: int, gradient_sum: int, axes: NDArray[np.int64]) -> _Variant:
    terms = group.parameters(stage, gradient_sum, axes)
    return _Variant(
        stage,
        gradient_sum,
        axes,
        terms.bytes,
        terms.update_s.sum(axis=1),
        by_source(terms.update_s, terms.update_codes),
        terms.sync_s(group.micro_batches).sum(axis=1),
        terms.hidden_apart_s(),
        group.host.of_parameters_s(terms),
    )


def _where_sharded(variant: _Variant, plain: _Variant) -> _Variant:
    """Returns a variant that is stage 0 if there are no axes to shard over."""
    sharded = variant.axes > 0

    def chosen(own: Floats, other: Floats) -> Floats:
        where = sharded if own.ndim == 1 else sharded[:, None]
        return np.asarray(np.where(where, own, other))

    return replace(
        variant,
        parameter_bytes=chosen(variant.parameter_bytes, plain.parameter_bytes),
        compute_s=chosen(variant.compute_s, plain.compute_s),
        compute_by_source_s=chosen(variant.compute_by_source_s, plain.compute_by_source_s),
        communication_s=chosen(variant.communication_s, plain.communication_s),
        terms=chosen(variant.terms, plain.terms),
        host_s=chosen(variant.host_s, plain.host_s),
    )


def _best(costs: Floats) -> NDArray[np.bool_]:
    """Returns which variants are not beaten, nor preceded by an equal one.

    `costs` has the shape (variants, n, kinds of cost), the result (variants, n).
    """
    keep = np.ones(costs.shape[:2], dtype=bool)
    for v in range(len(costs)):
        for u in range(len(costs)):
            if u != v:
                no_worse = (costs[u] <= costs[v]).all(axis=1)
                better = (costs[u] < costs[v]).any(axis=1)
                keep[v] &= ~(no_worse & (better | (u < v)))
    return keep


def _distinct(costs: Floats) -> NDArray[np.bool_]:
    """Returns which variants have no equal predecessor; shapes as in `_best`."""
    keep = np.ones(costs.shape[:2], dtype=bool)
    for v in range(len(costs)):
        for u in range(v):
            keep[v] &= (costs[u] != costs[v]).any(axis=1)
    return keep


def _recomputations(work: GroupWork) -> list[bool]:
    """Returns whether forward may be recomputed, as options and pins allow and if it matters."""
    context, group = work.context, work.pattern.group
    wanted = {"never": [False], "always": [True], "auto": [False, True]}[
        context.options.recomputation
    ]
    pins = context.pins.of(group, "recompute")
    if pins:
        allowed = {word: all(p.allows(word) for p in pins) for word in ("yes", "no")}
        wanted = [flag for flag in (False, True) if allowed["yes" if flag else "no"]]
    if not _can_matter(work):
        return [False] if wanted else []
    return wanted


def _can_matter(work: GroupWork) -> bool:
    """Returns whether recomputing the group can save memory.

    It cannot without gradients (and so backward), for a group alone that keeps nothing, or if
    nothing would run again.
    """
    context, pattern = work.context, work.pattern
    if not any(context.patterns.has_backward(member) for member in pattern.members):
        return False
    keeps = any(name not in work.kept_still for name in pattern.kept) or any(pattern.exit_deferred)
    if not any(context.rerun.takes_part(member) for member in pattern.members):
        return False
    return keeps or context.shares_segment(pattern.group.index)


def legal_splits(context: CostContext, pattern: GroupPattern) -> Callable[[int, int], bool]:
    """Returns whether operators and pins let a variable be split into a number of shares."""
    possible = Legality(context.graph, pattern.group)
    rules = context.pins.of(pattern.group, "split")
    allowed = [all(r.allows(name) for r in rules) for name in pattern.group.variables]

    def legal(variable: int, parts: int) -> bool:
        return allowed[variable] and possible.even(variable, parts)

    return legal


def pinned_axes(context: CostContext, pattern: GroupPattern) -> dict[int, list[int]]:
    """Returns per pinned axis the variables (or NONE) that it may split.

    An axis pinned only to variables that the group lacks splits nothing there.
    """
    variables = pattern.group.variables
    allowed: dict[int, list[int]] = {}
    for rule in axis_rules(context.pins.all_of(pattern.group)):
        named = [
            a
            for a, axis in enumerate(context.mesh.axes)
            if rule.key in (axis.name, axis.level, axis.level.partition(" ")[0])
        ]
        if not named:
            if rule.key in LEVELS:
                continue
            raise no_axis(rule, [axis.name for axis in context.mesh.axes])
        choices = [v for v, name in enumerate(variables) if rule.allows(name)]
        if rule.allows(NO_VARIABLE) or (not rule.forbids and not choices):
            choices.append(NONE)
        for axis in named:
            allowed[axis] = [v for v in allowed.get(axis, choices) if v in choices]
    return allowed


def no_configuration(
    context: CostContext, pattern: GroupPattern, rules: tuple[Pin, ...]
) -> BadInput:
    """Returns the error for pins that leave a group no configuration."""
    constraints = "; ".join(str(rule) for rule in rules) or "the options"
    axes = ", ".join(f"{axis.name} ({axis.size})" for axis in context.mesh.axes)
    return BadInput(
        f"{constraints} leaves no configuration of {pattern.group.name}",
        field="pin",
        expected=f"its variables are {', '.join(pattern.group.variables)}, the mesh axes {axes}",
    )
