"""The assignments of a group, with the layouts of its tensors and the resulting terms.

Each assignment has a proportion (n,), the devices' shares if they are of several kinds. Terms are
for one micro-batch, forward and backward separately, one column per member: shape (n, M) for n
assignments of a group of M members.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.attention import KINDS, Attention
from shardwise.cost.context import CostContext
from shardwise.cost.data_loading import arriving
from shardwise.cost.fast_convolution import saving
from shardwise.cost.merging import fraction_of_work
from shardwise.cost.passes import Kernel, Passes, Work
from shardwise.cost.pins import forbidden_end
from shardwise.cost.ports import halos, looked_up, shard_shapes, taps
from shardwise.cost.products import Product, operands
from shardwise.cost.reschedule import Rescheduling
from shardwise.cost.rounded_work import RoundedWork
from shardwise.graph.graph import DTYPE_BYTES
from shardwise.hardware.operator_tables import Direction
from shardwise.hardware.sources import INTERPOLATED, MODELLED, Codes
from shardwise.sharding.coarsen import Member
from shardwise.sharding.fusion import Region, regions
from shardwise.sharding.layout import (
    Floats,
    Layouts,
    local_elements,
    shard_of,
)
from shardwise.sharding.operator_layouts import (
    LayoutRows,
    input_layouts,
    output_layouts,
    splits_of,
)
from shardwise.sharding.pattern import GroupPattern
from shardwise.sharding.recipes import WHOLE


class GroupWork:
    """The assignments of a group with their layouts, derived once, and its cost terms."""

    def __init__(
        self,
        context: CostContext,
        pattern: GroupPattern,
        assignment: NDArray[np.int8],
        proportion: NDArray[np.int8],
    ) -> None:
        self.context = context
        self.pattern = pattern
        self.assignment = assignment
        self.proportion = proportion
        self.sizes = context.mesh.sizes_of(proportion)
        self.tensors = context.graph.tensors
        self.device = context.device
        self.count = assignment.shape[0]
        self.forbidden = forbidden_end(context.pins, pattern.group)
        self._known_elements: dict[tuple[str, int], tuple[Layouts, Floats]] = {}
        self.inputs: list[list[LayoutRows]] = []
        self.outputs: list[list[LayoutRows]] = []
        self.output_layouts: dict[str, LayoutRows] = {}
        self.input_layouts: dict[str, LayoutRows] = {}
        for member in pattern.members:
            sem = member.semantics
            splits = splits_of(member.variables, assignment, on_parameters=member.on_parameters)
            ins = [input_layouts(accesses, splits) for accesses in sem.inputs]
            outs = [output_layouts(sem, accesses, splits) for accesses in sem.outputs]
            self.inputs.append(ins)
            self.outputs.append(outs)
            self.output_layouts.update(zip(member.operator.outputs, outs, strict=True))
            for name, layouts in zip(member.operator.inputs, ins, strict=True):
                self.input_layouts.setdefault(name, layouts)

    def at(self, context: CostContext) -> GroupWork:
        """Returns the same assignments at another place of a cluster.

        Layouts are the same at all places; `context` may differ in its hardware, its mesh's shares
        and its view of re-scheduling.
        """
        other = copy(self)
        other.context = context
        other.sizes = context.mesh.sizes_of(self.proportion)
        other.device = context.device
        other._known_elements = {}
        return other

    def register(self) -> None:
        """Registers all layouts between which tensors may be re-scheduled."""
        ports = [(name, self.input_layouts[name]) for name in self.pattern.entries]
        ports += [(name, self.output_layouts[name]) for name in self.pattern.exits]
        for _, name, source, wanted in self.moves:
            ports += [(name, source), (name, wanted)]
        for name, (forward, gradient) in ports:
            paths = self.paths(name)
            paths.register(self.placed(forward))
            if self.context.patterns.carries_gradient(name):
                paths.register(self.placed(gradient))
        for _, name in self.loads:
            self.paths(name).register(self.placed(self.arriving_layouts(name)))
            self.paths(name).register(self.placed(self.input_layouts[name][0]))

    def placed(self, layouts: Layouts) -> Layouts:
        """Returns layouts (n, axes) in the form that re-scheduling distinguishes."""
        return self.context.mesh.placed(layouts, self.proportion)

    def where_present(self, values: Floats) -> Floats:
        """Returns values (n, …), 0 where this device has no share of the group."""
        return self.context.mesh.where_present(values, self.proportion)

    def parts(self, variable: int) -> Floats:
        parts = np.where(self.assignment == variable, self.sizes, 1)
        return np.asarray(parts.prod(axis=1), dtype=np.float64)

    def local_bytes(self, name: str, layouts: Layouts) -> Floats:
        """Returns bytes of the largest shard of a tensor under each layout."""
        return self._elements(name, layouts) * DTYPE_BYTES[self.tensors[name].dtype]

    def _elements(self, name: str, layouts: Layouts) -> Floats:
        """Returns elements of the largest shard of a tensor under each layout, found once for each
        of the arrays of layouts."""
        # With the layouts, to keep their ids from being reused.
        key = (name, id(layouts))
        if key not in self._known_elements:
            elements = local_elements(self.tensors[name].extents, layouts, self.sizes)
            elements.flags.writeable = False  # shared by all who ask
            self._known_elements[key] = layouts, elements
        return self._known_elements[key][1]

    def kept_bytes(self, names: tuple[str, ...]) -> Floats:
        """Returns the bytes of tensors made or read here, in their layout here."""
        total = np.zeros(self.count)
        for name in names:
            total += self.local_bytes(
                name, (self.output_layouts.get(name) or self.input_layouts[name])[0]
            )
        return total

    @cached_property
    def kept_still(self) -> tuple[str, ...]:
        """The storages made or loaded here that are kept despite recomputation."""
        context, pattern = self.context, self.pattern
        exits = zip(pattern.exits, pattern.exit_deferred, strict=True)
        on_edges = {name for name, deferred in exits if deferred}
        made = context.rerun.kept(pattern, context.patterns) & self.output_layouts.keys()
        return (*pattern.loaded, *sorted(made - on_edges))

    def window_bytes(self, position: int, port: int) -> Floats:
        """Returns the bytes of an input with neighbours' rows or zeros, where that is a copy."""
        member = self.pattern.members[position]
        name, layouts = member.operator.inputs[port], self.inputs[position][port][0]
        local = self.local_bytes(name, layouts)
        split, factor = self.splits_taps(member, port), np.ones(self.count)
        for variable, dim, rows in halos(member, port):
            parts = self.parts(variable)
            split |= parts > 1
            share = shard_of(self.tensors[name].shape[dim], parts)
            factor *= np.where(parts > 1, 1.0 + rows / share, 1.0)
        return np.where(split, local * factor, 0.0)

    def splits_taps(self, member: Member, port: int) -> NDArray[np.bool_]:
        """Returns where a window's taps are split: each share then reads other rows and zeros."""
        split = np.zeros(self.count, dtype=bool)
        for variable in taps(member, port):
            split |= self.parts(variable) > 1
        return split

    def own_bytes(self, position: int) -> Floats:
        """Returns the bytes that a member keeps for backward besides the graph's tensors: copies
        with neighbours' rows, and rounded data."""
        windows = (self.window_bytes(m, port) for m, port in self.kept_windows if m == position)
        total = sum(windows, np.zeros(self.count))
        rounded = self.rounded(position)
        return total if rounded is None else total + rounded.kept_bytes

    def rounded(self, position: int) -> RoundedWork | None:
        """Returns a member's product in 8 or 4 bits, or None."""
        op = self.pattern.members[position].operator
        how = self.context.patterns.rounded(self.pattern.members[position])
        if how is None:
            return None
        places = how.port, how.port + 1
        data, weight = (self.elements_at(op.inputs[p], position, p) for p in places)
        result = self.local_bytes(op.outputs[0], self.outputs[position][0][0])
        carries = [self.context.patterns.carries_gradient(op.inputs[p]) for p in places]
        result = result / DTYPE_BYTES[self.tensors[op.outputs[0]].dtype]
        flops, wide = self.work_of(position)[0].flops, self.tensors[op.inputs[how.port]].dtype
        sizes = flops, data, weight, result
        return RoundedWork(how, op, self.device, *sizes, wide, (carries[0], carries[1]))

    @cached_property
    def kept_windows(self) -> list[tuple[int, int]]:
        """Members and their inputs whose neighbours' rows backward also needs."""
        return [
            (position, port)
            for position, member in enumerate(self.pattern.members)
            for port, kept in enumerate(self.context.patterns.saves_inputs(member))
            if kept and halos(member, port)
        ]

    def compute(self) -> Passes:
        """Returns the members' times on local shapes: measured, interpolated or by the roofline."""
        passes = Passes.none(self.count, len(self.pattern.members))
        known = {p: self.work_of(p) for p in range(len(self.pattern.members))}
        for position, of_member in known.items():
            rounded = self.rounded(position)
            for work in of_member:
                times, codes = rounded.time(work) if rounded else self._time(position, work)
                times = times + self._restoring_s(position, work.direction)
                passes.set(position, work.direction, times, codes)
        joins = self.context.options.fusing.joins
        if joins is not None:
            moved = frozenset(name for _, name, _, _ in self.moves)
            for region in regions(self.context.patterns, self.pattern.members, joins, moved):
                done = [work for p in region.members for work in known[p]]
                self._shorten(passes, region, "forward", done)
                self._shorten(passes, region, "backward", done)
        return passes

    def _shorten(
        self, passes: Passes, region: Region, direction: Direction, work: list[Work]
    ) -> None:
        """Limits the members of a region to the time of one pass over its memory traffic."""
        done = [one for one in work if one.direction == direction]
        if not done:
            return
        flops = sum((one.flops for one in done), np.zeros(self.count))
        moved = self.kept_bytes(region.moved(direction, self.context.patterns.carries_gradient))
        most_s = self.device.roofline_times(flops, moved, done[0].dtype)
        passes.shorten(list(region.members), direction, most_s)

    def _time(self, position: int, work: Work) -> tuple[Floats, Codes]:
        times = self.device.roofline_times(work.flops, work.moved_bytes, work.dtype)
        codes = np.full(self.count, MODELLED, dtype=np.int8)
        tables = self.context.hardware.operator_times
        if tables.known:
            family = self.context.families.of(self.pattern.members[position], work.direction)
            times, codes = tables.times(
                family, lambda: self.local_shapes(position), work.flops, work.moved_bytes, times
            )
        if work.kernel_s is None or (codes != MODELLED).all():
            return times, codes
        modelled = codes == MODELLED
        return (
            np.where(modelled, work.kernel_s(work) + self.device.kernel_latency_s, times),
            np.where(modelled, INTERPOLATED, codes).astype(np.int8),
        )

    def _restoring_s(self, position: int, direction: Direction) -> Floats:
        """Returns the seconds to expand a member's operands from another stored form: a pass that
        reads it and writes the numbers for computing."""
        member, total = self.pattern.members[position], np.zeros(self.count)
        for name, layouts in zip(member.operator.inputs, self.inputs[position], strict=True):
            tensor = self.tensors[name]
            reads = direction == "forward" or self.context.patterns.backward_reads(member, name)
            if tensor.stored is not None and reads:
                moved = self.stored_bytes(name) + self.local_bytes(name, layouts[0])
                total += self.device.roofline_times(np.zeros(self.count), moved, tensor.dtype)
        return total

    def stored_bytes(self, name: str) -> Floats:
        """Returns the bytes of a device's share of a parameter as it is stored, shape (n,)."""
        tensor, layouts = self.tensors[name], self.input_layouts[name][0]
        return local_elements(tensor.shape, layouts, self.sizes) * tensor.stored_item_bytes

    def gathered_bytes(self, name: str) -> Floats:
        """Returns the bytes of a device's share of a parameter as ZeRO gathers it, shape (n,)."""
        recipe, step = self.context.patterns.rounded_weights.get(name), self.context.options.step
        stored = self.stored_bytes(name)
        if recipe is None or not (recipe.once and step.stores_rounded):
            return stored
        narrow = recipe.weight_block == WHOLE
        return (
            stored / self.tensors[name].stored_item_bytes * recipe.item_bytes if narrow else stored
        )

    def _kernel(self, position: int, flops: Floats, dtype: str) -> Kernel | None:
        """Returns a member's time in one direction by measured kernels of the device, or None
        without such in this dtype. `flops` are those of forward."""
        op = self.pattern.members[position].operator
        places = operands(op)
        product = self.product(position, flops, dtype)
        if places is not None and product is not None:
            carries = self.context.patterns.carries_gradient
            gradients = tuple(carries(op.inputs[place]) for place in places)
            return lambda work: product.times(
                self.device, dtype, gradients if work.direction == "backward" else None
            )
        head_size = self.tensors[op.inputs[0]].shape[-1] if op.kind in KINDS else 0
        table = self.device.attention_table(dtype, head_size) if head_size else None
        if table is not None:
            shares = self.local_shapes(position)[:, : len(self.tensors[op.inputs[0]].shape)]
            heads = shares[:, :-2].prod(axis=1).astype(np.float64)
            attention = Attention(table, heads, shares[:, -2].astype(np.float64))
            return lambda work: attention.times(
                work.flops, self.device, dtype, backward=work.direction == "backward"
            )
        return None

    def product(self, position: int, flops: Floats, dtype: str) -> Product | None:
        """Returns the product equivalent to a member of `flops` (n,) operations, or None if there
        is none or the device has no measured products of this dtype."""
        op = self.pattern.members[position].operator
        places, table = operands(op), self.device.product_table(dtype)
        if places is None or table is None:
            return None
        left, right = (self.elements_at(op.inputs[p], position, p) for p in places)
        layouts = self.outputs[position][0][0]
        result = self._elements(op.outputs[0], layouts)
        is_window = op.kind.startswith("aten.conv")
        return Product(table, flops, left, right, result, DTYPE_BYTES[dtype], is_window)

    def elements_at(self, name: str, position: int, port: int) -> Floats:
        """Returns the elements of an input of a member on a device, shape (n,)."""
        layouts = self.inputs[position][port][0]
        return self._elements(name, layouts)

    def local_shapes(self, position: int) -> NDArray[np.int64]:
        """Returns local extents of a member's inputs, then outputs, one row per assignment."""
        op = self.pattern.members[position].operator
        names = (*op.inputs, *op.outputs)
        ports = (*self.inputs[position], *self.outputs[position])
        columns = [
            shard_shapes(self.tensors[name], layouts[0], self.sizes)
            for name, layouts in zip(names, ports, strict=True)
        ]
        return np.concatenate(columns, axis=1).astype(np.int64)

    def work_of(self, position: int) -> list[Work]:
        """Returns a member's work forward and, if anything needs its gradients, backward."""
        member = self.pattern.members[position]
        sem, op = member.semantics, member.operator
        if sem.category == "view":
            return []
        share = np.ones(self.count)
        for v, of_group in enumerate(member.variables):
            share *= fraction_of_work(sem, v, self.parts(of_group))
        read = np.zeros(self.count)
        for name, layouts in zip(op.inputs, self.inputs[position], strict=True):
            if not looked_up(member, name, self.tensors[name].shape):
                read += self.local_bytes(name, layouts[0])
        written = np.zeros(self.count)
        for name, layouts in zip(op.outputs, self.outputs[position], strict=True):
            written += self.local_bytes(name, layouts[0])
        dtype = self.tensors[op.outputs[0]].dtype
        for name in op.inputs:
            if self.tensors[name].differentiable:
                dtype = self.tensors[name].dtype
                break
        share /= saving(self.device, self.context.graph, op, dtype)
        flops = sem.forward_flops * share
        kernel_s = self._kernel(position, flops, dtype)
        work = [Work("forward", flops, read + written, dtype, kernel_s)]
        if any(self.context.patterns.carries_gradient(o) for o in op.outputs):
            # Backward reads the output's gradient and what was kept, and writes the inputs'.
            moved = written + self._needed_bytes(position, member)
            moved += self._gradient_bytes(position, member)
            flops = self.context.patterns.backward_flops(member) * share
            work.append(Work("backward", flops, moved, dtype, kernel_s))
        return work

    def _needed_bytes(self, position: int, member: Member) -> Floats:
        """Returns the bytes that backward reads besides gradients; an addition needs neither of its
        terms."""
        sem, op = member.semantics, member.operator
        total = np.zeros(self.count)
        for names, kept, layouts in (
            (op.inputs, self.context.patterns.needs_inputs(member), self.inputs[position]),
            (op.outputs, sem.saves_outputs, self.outputs[position]),
        ):
            for name, needed, (forward, _) in zip(names, kept, layouts, strict=True):
                if needed and not looked_up(member, name, self.tensors[name].shape):
                    total += self.local_bytes(name, forward)
        return total

    def _gradient_bytes(self, position: int, member: Member) -> Floats:
        total = np.zeros(self.count)
        for name, layouts in zip(member.operator.inputs, self.inputs[position], strict=True):
            if self.context.patterns.carries_gradient(name):
                total += self.local_bytes(name, layouts[0])
        return total

    def collective_s(self, operation: str, masks: NDArray[np.int64], sizes: Floats) -> Floats:
        """Returns time of one collective over the axes in each bit mask (n,), sizes in bytes."""
        time = np.zeros(len(masks))
        hardware, mesh = self.context.hardware, self.context.mesh
        like = mesh.alike_for_collectives(self.proportion)
        for proportion in np.unique(like).tolist():
            of_proportion = like == proportion
            for mask in np.unique(masks[of_proportion & (masks > 0)]).tolist():
                chosen = of_proportion & (masks == mask)
                time[chosen] = mesh.collective_times(
                    hardware, operation, mask, sizes[chosen], proportion
                )
        return time

    def masks(self, split: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Returns bit masks of the axes marked in `split` (n, axes)."""
        return np.asarray(split @ (1 << np.arange(split.shape[1], dtype=np.int64)))

    def staged_bytes(self, position: int) -> Floats:
        """Returns the maximum bytes that moves of a member's inputs hold besides source and
        result."""
        most = np.zeros(self.count)
        for reader, name, source, wanted in self.moves:
            if reader == position:
                paths = self.paths(name)
                ends = [paths.register(self.placed(end[0])) for end in (source, wanted)]
                most = np.maximum(most, paths.staged_bytes(*ends))
        return most

    def loading_s(self) -> Floats:
        """Returns seconds of re-scheduling inputs, shape (n, M).

        Inputs arrive split by the batch (TensorOpt §4.2).
        """
        time = np.zeros((self.count, len(self.pattern.members)))
        for position, name in self.loads:
            here, there = self.arriving_layouts(name), self.input_layouts[name][0]
            time[:, position] += self.paths(name).between(self.placed(here), self.placed(there))
        return time

    @cached_property
    def loads(self) -> list[tuple[int, str]]:
        """Inputs with the member that reads them first here."""
        loads: dict[str, int] = {}
        for position, member in enumerate(self.pattern.members):
            for name in member.operator.inputs:
                if self.tensors[name].role == "input":
                    loads.setdefault(name, position)
        return [(position, name) for name, position in loads.items()]

    def arriving_layouts(self, name: str) -> Layouts:
        """Returns the layouts in which an input arrives, (n, axes)."""
        layout = arriving(self.tensors[name], self.context.mesh)
        return np.broadcast_to(layout, self.assignment.shape)

    @cached_property
    def moves(self) -> list[tuple[int, str, LayoutRows, LayoutRows]]:
        """Tensors that a member reads in another layout than theirs: member, name, from, to."""
        moves = []
        for position, member in enumerate(self.pattern.members):
            for name, wanted in zip(member.operator.inputs, self.inputs[position], strict=True):
                source = self.output_layouts.get(name) or self.input_layouts[name]
                if not self.is_fixed(name) and not self.agree(name, source, wanted):
                    moves.append((position, name, source, wanted))
        return moves

    def agree(self, name: str, source: LayoutRows, wanted: LayoutRows) -> bool:
        if source is wanted:
            return True
        # A gradient that is partial must be summed if the producer needs it whole.
        backward = self.context.patterns.carries_gradient(name)
        return np.array_equal(source[0], wanted[0]) and (
            not backward or np.array_equal(source[1], wanted[1])
        )

    def paths(self, name: str) -> Rescheduling:
        tensor = self.tensors[name]
        return self.context.rescheduler(tensor.extents, DTYPE_BYTES[tensor.dtype], self.forbidden)

    def is_fixed(self, name: str) -> bool:
        """Returns whether a tensor is available in every layout: a parameter, buffer, input or
        constant."""
        return self.tensors[name].role in ("parameter", "buffer", "input") or (
            name not in self.output_layouts and name not in self.pattern.entries
        )
