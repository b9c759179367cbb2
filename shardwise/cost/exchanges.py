"""Communication inside operators: statistics, scales, neighbours' rows, rings of keys, and tensors
that a member reads in another layout than the group's."""

from __future__ import annotations

import numpy as np

from shardwise.cost.group_work import GroupWork
from shardwise.cost.merging import ACCUMULATED
from shardwise.cost.passes import Passes
from shardwise.cost.ports import halos
from shardwise.graph.graph import DTYPE_BYTES
from shardwise.sharding.coarsen import Member
from shardwise.sharding.layout import PARTIAL, Floats, shard_of


def communication(work: GroupWork) -> Passes:
    """Returns the seconds of statistics, halos and moves in the group, by waiting member."""
    passes = Passes.none(work.count, len(work.pattern.members))
    for position, member in enumerate(work.pattern.members):
        _statistics(work, position, member, passes)
        _windows(work, position, member, passes)
        _ring(work, position, member, passes)
        _maxima(work, position, member, passes)
    for position, name, source, wanted in work.moves:
        paths = work.paths(name)
        here, there = (work.placed(ends[0]) for ends in (source, wanted))
        passes.forward_s[:, position] += paths.between(here, there)
        if work.context.patterns.carries_gradient(name):
            here, there = (work.placed(ends[1]) for ends in (source, wanted))
            passes.backward_s[:, position] += paths.between(there, here)
    return passes


def _statistics(work: GroupWork, position: int, member: Member, passes: Passes) -> None:
    sem = member.semantics
    for statistic in sem.statistics:
        elements = np.full(work.count, float(statistic.values))
        for v in statistic.indexed:
            elements *= shard_of(sem.variables[v].extent, work.parts(member.variables[v]))
        split = np.zeros(work.assignment.shape, dtype=bool)
        for v in statistic.reduced:
            split |= work.assignment == member.variables[v]
        time = work.collective_s("all_reduce", work.masks(split), elements * 4)
        passes.forward_s[:, position] += time
        passes.backward_s[:, position] += time


def _maxima(work: GroupWork, position: int, member: Member, passes: Passes) -> None:
    """Adds the exchange of maxima, of data and of the output's gradient, if they have one scale and
    are split by anything but samples (which trainers scale separately)."""
    rounded, op = work.context.patterns.rounded(member), member.operator
    if rounded is None or not rounded.recipe.is_whole:
        return
    scale = np.full(work.count, 4.0)
    for name, (layouts, _), seconds, exchanged in (
        (rounded.data, work.inputs[position][rounded.port], passes.forward_s, rounded.is_first),
        (op.outputs[0], work.outputs[position][0], passes.backward_s, True),
    ):
        samples = work.context.patterns.coarsened.batch_dims.get(name, PARTIAL)
        masks = work.masks((layouts >= 0) & (layouts != samples))
        if exchanged:
            seconds[:, position] += work.collective_s("all_reduce", masks, scale)


def _windows(work: GroupWork, position: int, member: Member, passes: Passes) -> None:
    """Adds the exchange of rows beyond a share, and of their gradients, with the neighbours.

    They are copied, and so is what a share of a window's taps reads.
    """
    for i, name in enumerate(member.operator.inputs):
        if not halos(member, i):
            continue
        local = work.local_bytes(name, work.inputs[position][i][0])
        tapped = work.splits_taps(member, i)
        time = work.context.hardware.copy_times(np.where(tapped, 2.0 * local, 0.0))
        for variable, dim, rows in halos(member, i):
            split = work.masks(work.assignment == variable)
            share = shard_of(work.tensors[name].shape[dim], work.parts(variable))
            time = time + work.collective_s("send_receive", split, local / share * rows)
            time += work.context.hardware.copy_times(np.where(split > 0, 2.0 * local, 0.0))
        passes.forward_s[:, position] += time
        if work.context.patterns.carries_gradient(name):
            passes.backward_s[:, position] += time


def ring_bytes(work: GroupWork, position: int) -> tuple[Floats, Floats]:
    """Returns the bytes of keys and values that a device sends in one step of a ring, and of their
    gradients; 0 without a ring."""
    member, block, gradients = work.pattern.members[position], *np.zeros((2, work.count))
    merging = member.semantics.merging
    if merging is None or merging.ring is None:
        return block, gradients
    goes = ring_steps(work, position) > 1
    for port in merging.inputs:
        name = member.operator.inputs[port]
        item = DTYPE_BYTES[work.tensors[name].dtype]
        local = np.where(goes, work.local_bytes(name, work.inputs[position][port][0]), 0.0)
        block += local
        if work.context.patterns.carries_gradient(name):
            gradients += local * (max(item, ACCUMULATED) / item)
    return block, gradients


def ring_steps(work: GroupWork, position: int) -> Floats:
    """Returns the number of devices in a member's ring of keys and values; 1 without a ring."""
    member = work.pattern.members[position]
    merging = member.semantics.merging
    if merging is None or merging.ring is None:
        return np.ones(work.count)
    return work.parts(member.variables[merging.ring])


def _ring(work: GroupWork, position: int, member: Member, passes: Passes) -> None:
    """Adds the sending of keys and values around a ring, in backward with their gradients."""
    merging = member.semantics.merging
    if merging is None or merging.ring is None:
        return
    masks = work.masks(work.assignment == member.variables[merging.ring])
    sent_s = [
        (ring_steps(work, position) - 1.0) * work.collective_s("send_receive", masks, size)
        for size in ring_bytes(work, position)
    ]
    passes.forward_s[:, position] += sent_s[0]
    if any(work.context.patterns.carries_gradient(out) for out in member.operator.outputs):
        passes.backward_s[:, position] += sent_s[0] + sent_s[1]
