"""Parameters, gradients and optimizer state: memory, time, and synchronisation.

ZeRO (Rajbhandari et al. 2020) shards over axes Z what all ranks along them would repeat, with W the
bytes of a parameter on this device, G of its gradient, S of its state, |Z| ranks, Q the axes that
repeat the parameter beyond Z, and A micro-batches:

    stage   memory                  time of a step
    0       W + G + S               all_reduce(G)
    1       W + G + S/|Z|           reduce_scatter(G) + all_reduce over Q (G/|Z|) + all_gather(W)
    2       W + (G + S)/|Z|         A reduce_scatter(G) + all_reduce over Q (G/|Z|) + all_gather(W)
    3       (W + G + S)/|Z|         A (2 all_gather(W) + reduce_scatter(G)) + all_reduce over Q

A frozen parameter has no gradient, no state and no update: W under stages 0 to 2, and in stage 3
W/|Z| and a gather for forward, and for backward where that reads it. Its W is that of the form that
it is stored in.

With states on the host (`--offload states`) S is there, and so is the update: gradients are copied
down and parameters up, of each device's own share.

Where rounded weights are stored alone (`StepSettings.weights`), W is the bytes of these, and with
one scale for a tensor they are gathered in 8 bits, to be transposed where they arrive; blocks are
gathered in 16 bits, since both of their forms have to be made of these.

Where gradients add up whole between micro-batches (`StepSettings.accumulation`), stages 2 and 3
keep G and reduce it once.

Stage 3 gathers a parameter for forward and again for backward. Z is every axis along which the
parameter is repeated, or those of them inside a node (hybrid sharding, Zhao et al. 2023 §3.2.2), or
inside a unit of any other level of links but the outermost, or of the options' `shard_units`.

Where all ranks along an axis compute the same gradient of a parameter, because the axis splits
nothing that reads it, it is not summed but cut: with Z' those of the axes Z and |Z'| their ranks, a
reduce_scatter is over the others alone, of G/|Z'|. A group shards over such axes where no split of
samples reaches its parameters (tables of positions), so that they are not whole on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.gradient_sums import COLLECTIVE, GradientSum
from shardwise.cost.group_work import GroupWork
from shardwise.cost.offloading import devices_of_node, host_memory_of
from shardwise.cost.operator_family import update_family
from shardwise.cost.rounded_work import pass_s, weight_copies
from shardwise.cost.space import SearchMesh
from shardwise.graph.graph import DTYPE_BYTES
from shardwise.hardware.sources import MODELLED, Codes
from shardwise.sharding.layout import PARTIAL, REPLICATE, Floats, local_elements


@dataclass(frozen=True)
class ParameterTerms:
    """A group's parameters under one ZeRO stage; arrays (n, P) of bytes and of seconds.

    `gather_s` is one all_gather of a parameter for use, `gathers` (P,) how many a micro-batch needs
    (0, or in stage 3 one for each pass that reads it); `reduce_s` one reduction of a gradient,
    `reduces` how many a step needs, `scatters` whether every micro-batch has one (stages 2 and 3);
    `finish_s` the reduction over the axes beyond Z; `spread_s` the all_gather after the update;
    `down_s` and `up_s` the copies of gradients to the host and of parameters back.
    """

    weight_bytes: Floats
    gradient_bytes: Floats
    state_bytes: Floats
    update_s: Floats
    update_codes: Codes
    gather_s: Floats
    gathers: NDArray[np.int64]
    reduce_s: Floats
    reduces: int
    scatters: bool
    finish_s: Floats
    spread_s: Floats
    down_s: Floats
    up_s: Floats

    @property
    def bytes(self) -> Floats:
        """All memory, shape (n,)."""
        return np.asarray((self.weight_bytes + self.gradient_bytes + self.state_bytes).sum(axis=1))

    def hidden_apart_s(self) -> Floats:
        """Returns the times that a step may hide separately, shape (n, 8 P).

        Per parameter: update, gather, the reduction at the end of the step or in each micro-batch,
        the reduction over further axes, the gather after the update, and the copies to the host and
        back.
        """
        once, each = self.reduce_s, np.zeros_like(self.reduce_s)
        if self.scatters:
            once, each = each, once
        gathers = self.gathers * self.gather_s
        terms = (
            self.update_s, gathers, once, each, self.finish_s, self.spread_s, self.down_s, self.up_s
        )  # fmt: skip
        return np.concatenate(terms, axis=1)

    def sync_s(self, micro_batches: int) -> Floats:
        """Returns all communication of a step per parameter, shape (n, P)."""
        return np.asarray(
            micro_batches * self.gathers * self.gather_s
            + self.reduces * self.reduce_s
            + self.finish_s
            + self.spread_s
            + self.down_s
            + self.up_s
        )


def summed_axes(work: GroupWork) -> NDArray[np.int64]:
    """Returns bit masks of the axes along which gradients of the group are summed, or would be if
    it were not frozen, shape (n,)."""
    return _axes_where(work, PARTIAL, lambda name: True)


def equal_axes(work: GroupWork) -> NDArray[np.int64]:
    """Returns bit masks of the axes along which all ranks compute the same gradient of a parameter
    that no split of samples reaches, shape (n,)."""
    if not work.context.mesh.shards_equal_gradients:
        return np.zeros(work.count, dtype=np.int64)
    unreached = work.context.patterns.coarsened.unreached
    return _axes_where(work, REPLICATE, unreached.__contains__)


def _axes_where(work: GroupWork, state: int, of: Callable[[str], bool]) -> NDArray[np.int64]:
    """Returns bit masks of the axes on which a parameter's gradient is in a state."""
    masks = np.zeros(work.count, dtype=np.int64)
    for name in work.pattern.parameters:
        if work.tensors[name].differentiable and of(name):
            masks |= work.masks(work.input_layouts[name][1] == state)
    return masks


def inside_axes(work: GroupWork) -> list[int]:
    """Returns the bit masks of the axes inside the units of each level of links but the outermost,
    the largest units first: inside a rack, inside a node; then of the options' `shard_units`."""
    mesh = work.context.mesh
    names = mesh.mesh.levels
    levels = [
        sum(1 << a for a, axis in enumerate(mesh.axes) if axis.level in names[: boundary + 1])
        for boundary in reversed(range(len(names) - 1))
    ]
    units = (unit_axes(mesh, unit) for unit in work.context.options.shard_units)
    return levels + [mask for mask in units if mask not in (0, *levels)]


def unit_axes(mesh: SearchMesh, unit: int) -> int:
    """Returns the bit mask of the axes inside a unit of neighbouring devices, 0 if there is none of
    this size."""
    first = len(mesh.mesh.axes) - mesh.mesh.axes_of_unit(unit)
    return sum(1 << a for a, axis in enumerate(mesh.axes) if axis.base[0] >= first)


class Parameters:
    """The parameters of a group's assignments; the common part of all stages is computed once."""

    def __init__(self, work: GroupWork) -> None:
        self._work = work
        self._parameters = [_Parameter(work, name) for name in work.pattern.parameters]

    def terms(self, stage: int, gradient_sum: int, axes: NDArray[np.int64]) -> ParameterTerms:
        """Returns the terms under a ZeRO stage and a kind of gradient sum over `axes` (bit masks,
        shape (n,))."""
        count, context = self._work.count, self._work.context
        micro_batches = context.micro_batches
        scatters = context.options.step.scatters(stage, micro_batches)
        columns = [
            _Column(parameter, stage, gradient_sum, axes, scatters)
            for parameter in self._parameters
        ]

        def stack(field: str) -> Floats:
            terms = [getattr(column, field) for column in columns]
            return np.stack(terms, axis=1) if terms else np.zeros((count, 0))

        return ParameterTerms(
            stack("weight_bytes"),
            stack("gradient_bytes"),
            stack("state_bytes"),
            stack("update_s"),
            stack("update_codes").astype(np.int8),
            stack("gather_s"),
            np.array([p.gathers if stage == 3 else 0 for p in self._parameters], dtype=np.int64),
            stack("reduce_s"),
            micro_batches if scatters else 1,
            scatters,
            stack("finish_s"),
            stack("spread_s"),
            stack("down_s"),
            stack("up_s"),
        )

    def least_update_s(self, candidates: list[NDArray[np.int64]]) -> Floats:
        """Returns the least time of all updates, shape (n,): sharded over some of the candidates,
        or whole."""
        total = np.zeros(self._work.count)
        whole = np.zeros(self._work.count, dtype=np.int64)
        for parameter in self._parameters:
            if parameter.is_trained:
                of_each = [parameter.sharded(axes).update[0] for axes in (whole, *candidates)]
                total += np.min(of_each, axis=0)
        return total


class _Parameter:
    """One parameter under any stage: elements and bytes on a device, and its sharding."""

    def __init__(self, work: GroupWork, name: str) -> None:
        self.work = work
        tensor = work.tensors[name]
        self.dtype, self.item = tensor.dtype, DTYPE_BYTES[tensor.dtype]
        self.stored_item = tensor.stored_item_bytes
        self.gradient_item = work.context.options.step.gradient_bytes(self.item)
        self.is_trained = work.context.patterns.carries_gradient(name)
        recipe = work.context.patterns.rounded_weights.get(name)
        self._recipe = recipe if recipe is not None and recipe.once else None
        self.is_sharded = tensor.differentiable
        readers = [m for m in work.pattern.members if name in m.operator.inputs]
        patterns = work.context.patterns
        self.gathers = 1 + any(patterns.backward_reads(m, name) for m in readers)
        forward, gradient = work.input_layouts[name]
        self.elements = local_elements(tensor.shape, forward, work.sizes)
        self.stores_rounded = self._recipe is not None and work.context.options.step.stores_rounded
        self.bytes = work.gathered_bytes(name)
        self.repeated = work.masks(gradient == PARTIAL)
        is_equal = (gradient == REPLICATE) & work.context.mesh.shards_equal_gradients
        self.equal = work.masks(is_equal)
        self._sharded: dict[tuple[int, bytes], _Sharded] = {}

    def sharded(self, axes: NDArray[np.int64], gradient_sum: int = COLLECTIVE) -> _Sharded:
        """Returns the parameter sharded over those of `axes` along which all ranks have it."""
        axes = (self.repeated | self.equal) & axes
        key = gradient_sum, axes.tobytes()
        if key not in self._sharded:
            special = self.work.context.mesh.gradient_sums[gradient_sum]
            made = _Sharded(self, axes) if special is None else _Summed(self, axes, special)
            self._sharded[key] = made
        return self._sharded[key]

    @cached_property
    def rounded_s(self) -> Floats | None:
        """Seconds of rounding the weight once for the products that read it rounded, or None."""
        recipe, device = self._recipe, self.work.device
        if recipe is None:
            return None
        return pass_s(device, recipe, self.elements, self.item, recipe.weight_block, 2)

    @property
    def rounded_bytes(self) -> Floats:
        """Bytes of the weight's rounded copies kept for a step."""
        recipe = self._recipe
        if recipe is None:
            return np.zeros(self.work.count)
        return self.elements * (recipe.item_bytes * weight_copies(self.work.device, recipe))

    @cached_property
    def all_reduce_s(self) -> Floats:
        """Seconds of reducing the whole gradient."""
        size = self.elements * self.gradient_item
        return self.work.collective_s("all_reduce", self.repeated, size)


class _Sharded:
    """One parameter, sharded over some axes: the elements of a shard, updates and collectives."""

    def __init__(self, parameter: _Parameter, axes: NDArray[np.int64]) -> None:
        self._parameter, self._axes = parameter, axes
        self.elements = np.ceil(parameter.elements / _ranks(parameter.work, axes))

    @cached_property
    def update(self) -> tuple[Floats, Codes]:
        """Seconds of the optimizer's update, and their sources."""
        parameter, options = self._parameter, self._parameter.work.context.options
        if options.step.offloads_states:
            return self._host_update_s, np.full(parameter.work.count, MODELLED, dtype=np.int8)
        state = options.state_bytes_per_element(parameter.item)
        # The update reads weight, gradient and state, and writes all but the gradient.
        item = 2 * parameter.item + parameter.gradient_item
        moved = self.elements * (item + 2 * state)
        return _update(parameter.work, parameter.dtype, self.elements, moved)

    @property
    def _host_update_s(self) -> Floats:
        """Seconds of the update on the host, which updates for all devices of a node at once. It
        reads the gradient, reads and writes the states, and writes the parameter."""
        parameter, context = self._parameter, self._parameter.work.context
        kept = context.options.host_bytes_per_element(parameter.item)
        each = parameter.gradient_item + 2 * kept + parameter.item
        return host_memory_of(context.hardware).pass_s(
            self.elements * each, devices_of_node(context)
        )

    @property
    def copies_s(self) -> tuple[Floats, Floats]:
        """Seconds of copying the gradient to the host, and the parameter back; 0 where the device
        has the states."""
        parameter, context = self._parameter, self._parameter.work.context
        if not context.options.step.offloads_states:
            return np.zeros(parameter.work.count), np.zeros(parameter.work.count)
        memory = host_memory_of(context.hardware)
        down = memory.copy_s(self.elements * parameter.gradient_item)
        return down, memory.copy_s(self.elements * parameter.item)

    @cached_property
    def reduce_s(self) -> Floats:
        """Seconds of reducing the gradient: whole, or to shards where there are any."""
        parameter = self._parameter
        parts = _ranks(parameter.work, self._axes & parameter.equal)
        size = np.ceil(parameter.elements / parts) * parameter.gradient_item
        summed = self._axes & parameter.repeated
        scatter_s = parameter.work.collective_s("reduce_scatter", summed, size)
        return np.where(self._axes > 0, scatter_s, parameter.all_reduce_s)

    @cached_property
    def finish_s(self) -> Floats:
        """Seconds of reducing a shard of the gradient over all further axes."""
        parameter = self._parameter
        beyond = np.where(self._axes > 0, parameter.repeated & ~self._axes, 0)
        size = self.elements * parameter.gradient_item
        return parameter.work.collective_s("all_reduce", beyond, size)

    @cached_property
    def gather_s(self) -> Floats:
        """Seconds of gathering the parameter."""
        parameter = self._parameter
        return parameter.work.collective_s("all_gather", self._axes, parameter.bytes)


class _Summed(_Sharded):
    """One parameter whose gradients a server sums, or of which devices of several kinds have uneven
    shards.

    Without axes all have the state, and the sum comes back to all instead of the parameter.
    """

    def __init__(
        self, parameter: _Parameter, axes: NDArray[np.int64], special: GradientSum
    ) -> None:
        super().__init__(parameter, axes)
        self._special = special
        self._reaches = special.reaches(parameter.repeated, parameter.work.proportion)
        own = special.elements(parameter.elements, parameter.repeated, parameter.work.proportion)
        self.elements = np.where(self._reaches & (axes > 0), own, self.elements)

    @cached_property
    def reduce_s(self) -> Floats:
        """Seconds of bringing the gradient to its shards, and without axes of the way back."""
        parameter = self._parameter
        push_s = self._one_way_s(parameter.elements * parameter.gradient_item)
        there_s = np.where(self._axes > 0, push_s, 2.0 * push_s)
        return np.where(self._reaches, there_s, super().reduce_s)

    @cached_property
    def finish_s(self) -> Floats:
        """Seconds of reducing a shard any further: none, all ranks have taken part."""
        return np.where(self._reaches, 0.0, super().finish_s)

    @cached_property
    def gather_s(self) -> Floats:
        """Seconds of bringing the parameter back from its shards."""
        return np.where(self._reaches, self._one_way_s(self._parameter.bytes), super().gather_s)

    def _one_way_s(self, sizes_bytes: Floats) -> Floats:
        work = self._parameter.work
        return self._special.one_way_s(sizes_bytes, self._parameter.repeated, work.proportion)


class _Column:
    """One parameter under one stage and kind of gradient sum; `scatters`: every micro-batch
    scatters its gradient."""

    def __init__(
        self,
        parameter: _Parameter,
        stage: int,
        gradient_sum: int,
        axes: NDArray[np.int64],
        scatters: bool,
    ) -> None:
        work = parameter.work
        nothing = np.zeros(work.count)
        self.weight_bytes = parameter.elements * parameter.stored_item
        self.gradient_bytes = self.state_bytes = self.update_s = nothing
        self.update_codes = np.full(work.count, MODELLED, dtype=np.int8)
        self.gather_s = self.reduce_s = self.finish_s = self.spread_s = nothing
        self.down_s = self.up_s = nothing
        if not parameter.is_sharded:
            return
        options = work.context.options
        shards = parameter.sharded(axes if stage else np.zeros_like(axes), gradient_sum)
        if stage >= 3:
            self.weight_bytes = shards.elements * parameter.stored_item
            self.gather_s = shards.gather_s
        if not parameter.is_trained:
            return
        if not options.gradients_applied_at_once:
            kept = shards.elements if scatters else parameter.elements
            self.gradient_bytes = kept * parameter.gradient_item
        if not options.step.offloads_states:
            each = options.state_bytes_per_element(parameter.item)
            self.state_bytes = shards.elements * each
        self.down_s, self.up_s = shards.copies_s
        self.update_s, self.update_codes = shards.update
        self.reduce_s, self.finish_s = shards.reduce_s, shards.finish_s
        self.spread_s = shards.gather_s if stage in (1, 2) else nothing
        if parameter.rounded_s is not None:
            # Rounded once: after the update, or whenever it has been gathered, and then not kept.
            if stage >= 3 and parameter.stores_rounded:
                share = shards.elements / np.maximum(parameter.elements, 1.0)
                self.update_s = self.update_s + parameter.rounded_s * share
                self.weight_bytes = parameter.rounded_bytes * share
            elif stage >= 3:
                self.gather_s = self.gather_s + parameter.rounded_s
            else:
                self.update_s = self.update_s + parameter.rounded_s
                stored = 0.0 if parameter.stores_rounded else self.weight_bytes
                self.weight_bytes = stored + parameter.rounded_bytes


def _update(
    work: GroupWork, dtype: str, elements: Floats, moved_bytes: Floats
) -> tuple[Floats, Codes]:
    """Returns seconds of the optimizer's update of `elements` elements, and their sources."""
    nothing = np.zeros(work.count)
    roofline = work.device.roofline_times(nothing, moved_bytes, "float32")
    return work.context.hardware.operator_times.times(
        update_family(work.context.options.optimizer, dtype),
        lambda: elements[:, None].astype(np.int64),
        nothing,
        moved_bytes,
        roofline,
    )


def _ranks(work: GroupWork, masks: NDArray[np.int64]) -> Floats:
    """Returns the number of ranks that the axes of each mask span."""
    marked = masks[:, None] >> np.arange(work.assignment.shape[1]) & 1
    ranks = work.context.mesh.ranks_of(work.proportion)
    return np.asarray(np.where(marked, ranks, 1).prod(axis=1), dtype=np.float64)


def stages(work: GroupWork) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Yields the ZeRO stages that the options and pins allow, each with a kind of gradient sum and
    its axes.

    Every stage is stage 0 for a group without anything to shard.
    """
    repeated = summed_axes(work)
    everywhere = repeated | equal_axes(work)
    candidates = [everywhere]
    for inside in inside_axes(work):
        fewer = everywhere & inside
        if fewer.any() and all((fewer != other).any() for other in candidates):
            candidates.append(fewer)
    pins, group = work.context.pins, work.pattern.group
    offloads = work.context.options.step.offloads_states
    for stage in work.context.options.zero:
        if offloads and not stage:
            continue
        if not pins.allows(group, "zero", str(stage)):
            continue
        if not stage:
            yield stage, COLLECTIVE, np.zeros_like(repeated)
        for axes in candidates if stage else ():
            yield stage, COLLECTIVE, axes
        for number, special in enumerate(work.context.mesh.gradient_sums):
            if special is not None and stage in special.stages:
                reaches = special.reaches(repeated, work.proportion)
                yield stage, number, np.where(reaches, repeated, 0)
