"""Costs of one group under each of its configurations (TensorOpt Eq. 1, COSTS.md).

    m(o, s) = parameters + gradients + optimizer state + activations kept for backward
    t(o, s) = t_compute + t_sync

    t_compute   forward and backward on local shapes, roofline, and the optimizer's update
    t_sync      gradients of parameters replicated along an axis (all_reduce), statistics of
                normalisations split along a reduced dimension, halo exchange, re-scheduling
                between members of the group

All in bytes and seconds, for every configuration at once (arrays of length K).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.advise.layout import PARTIAL, REPLICATE, Floats, Layouts, local_elements, shard_fits
from shardwise.advise.options import Options
from shardwise.advise.pattern import GroupPattern, Patterns
from shardwise.advise.reschedule import Rescheduler
from shardwise.advise.space import SearchMesh, assignments
from shardwise.graph.coarsen import Group, Member
from shardwise.graph.graph import DTYPE_BYTES, Graph
from shardwise.hardware import Hardware, collective_times
from shardwise.tdl.semantics import Access

ReschedulerFor = Callable[[tuple[int, ...], int], Rescheduler]


@dataclass(frozen=True)
class Port:
    """The layouts of one boundary tensor, forward and of its gradient, shape (K, axes)."""

    forward: Layouts
    gradient: Layouts


@dataclass(frozen=True)
class GroupCosts:
    """The configurations of a group and what each costs on one device (arrays of length K)."""

    assignment: NDArray[np.int8]
    parameter_bytes: Floats
    activation_bytes: Floats
    compute_s: Floats
    communication_s: Floats
    entries: tuple[Port, ...]
    exits: tuple[Port, ...]

    @property
    def memory_bytes(self) -> Floats:
        return self.parameter_bytes + self.activation_bytes

    @property
    def time_s(self) -> Floats:
        return self.compute_s + self.communication_s


@dataclass(frozen=True)
class CostContext:
    """What the cost of a group depends on beside the group itself."""

    graph: Graph
    hardware: Hardware
    mesh: SearchMesh
    options: Options
    patterns: Patterns
    rescheduler: ReschedulerFor


def legality(graph: Graph, group: Group) -> Callable[[int, int], bool]:
    """Whether a group variable may be split into so many shares, by every member's demands."""
    demands: dict[int, list[tuple[int, Access | None]]] = {}
    clashing = set()
    for member in group.members:
        if len(set(member.variables)) < len(member.variables):
            seen = list(member.variables)
            clashing |= {v for v in seen if seen.count(v) > 1}
        tensors = (*member.operator.inputs, *member.operator.outputs)
        accesses = (*member.semantics.inputs, *member.semantics.outputs)
        for v, variable in enumerate(member.semantics.variables):
            demand = demands.setdefault(member.variables[v], [])
            demand.append((variable.extent, None))
            for name, by_variable in zip(tensors, accesses, strict=True):
                access = by_variable.get(v)
                if access is not None:
                    demand.append((graph.tensors[name].shape[access.dim], access))
    distinct = {variable: list(dict.fromkeys(found)) for variable, found in demands.items()}

    def legal(variable: int, parts: int) -> bool:
        if variable in clashing:
            return False
        for extent, access in distinct[variable]:
            if not shard_fits(extent, parts):
                return False
            if access is None:
                continue
            if access.granularity and access.granularity % parts:
                return False
            if max(access.halo_before, access.halo_after) > extent // parts:
                return False
        return True

    return legal


class GroupWork:
    """Every configuration of a group: its layouts, derived once, and the terms of its cost."""

    def __init__(self, context: CostContext, pattern: GroupPattern) -> None:
        group = pattern.group
        assignment = assignments(
            context.mesh.axes, len(group.variables), legality(context.graph, group)
        )
        self.context = context
        self.pattern = pattern
        self.assignment = assignment
        self.sizes = context.mesh.sizes
        self.tensors = context.graph.tensors
        self.device = context.hardware.devices[0]
        self.count = assignment.shape[0]
        self.inputs: list[list[tuple[Layouts, Layouts]]] = []
        self.outputs: list[list[tuple[Layouts, Layouts]]] = []
        self.made: dict[str, tuple[Layouts, Layouts]] = {}
        self.read: dict[str, tuple[Layouts, Layouts]] = {}
        for member in pattern.members:
            ins = [self._input_layouts(member, i) for i in range(len(member.operator.inputs))]
            outs = [self._output_layouts(member, o) for o in range(len(member.operator.outputs))]
            self.inputs.append(ins)
            self.outputs.append(outs)
            self.made.update(zip(member.operator.outputs, outs, strict=True))
            for name, layouts in zip(member.operator.inputs, ins, strict=True):
                self.read.setdefault(name, layouts)

    def costs(self) -> GroupCosts:
        """All terms together."""
        compute_s = self.compute_s()
        communication_s = (
            self.synchronisation_s() + self.statistics_s() + self.halo_s() + self.internal_s()
        )
        return GroupCosts(
            self.assignment,
            self.parameter_bytes(),
            self.activation_bytes(),
            compute_s,
            communication_s,
            tuple(Port(*self.read[name]) for name in self.pattern.entries),
            tuple(Port(*self.made[name]) for name in self.pattern.exits),
        )

    def register(self) -> None:
        """Make all layouts known between which tensors may be re-scheduled."""
        ports = [(name, self.read[name]) for name in self.pattern.entries]
        ports += [(name, self.made[name]) for name in self.pattern.exits]
        for name, source, wanted in self._moves():
            ports += [(name, source), (name, wanted)]
        for name, (forward, gradient) in ports:
            paths = self._paths(name)
            paths.register(forward)
            if self.context.patterns.carries_gradient(name):
                paths.register(gradient)

    def _input_layouts(self, member: Member, position: int) -> tuple[Layouts, Layouts]:
        """Forward layout, and the gradient's: a share that reads all adds a term of the sum."""
        forward = np.full(self.assignment.shape, REPLICATE, dtype=np.int8)
        gradient = forward.copy()
        for v, variable in enumerate(member.variables):
            chosen = self.assignment == variable
            access = member.semantics.inputs[position].get(v)
            forward[chosen] = REPLICATE if access is None else access.dim
            gradient[chosen] = PARTIAL if access is None else access.dim
        return forward, gradient

    def _output_layouts(self, member: Member, position: int) -> tuple[Layouts, Layouts]:
        """Forward layout, and the layout in which backward wants the gradient."""
        forward = np.full(self.assignment.shape, REPLICATE, dtype=np.int8)
        gradient = forward.copy()
        for v, variable in enumerate(member.variables):
            chosen = self.assignment == variable
            access = member.semantics.outputs[position].get(v)
            if access is not None:
                forward[chosen] = gradient[chosen] = access.dim
            elif member.semantics.variables[v].is_reduction:
                forward[chosen] = PARTIAL
        return forward, gradient

    def _parts(self, variable: int) -> Floats:
        parts = np.where(self.assignment == variable, self.sizes, 1)
        return np.asarray(parts.prod(axis=1), dtype=np.float64)

    def _local_bytes(self, name: str, layouts: Layouts) -> Floats:
        tensor = self.tensors[name]
        return local_elements(tensor.shape, layouts, self.sizes) * DTYPE_BYTES[tensor.dtype]

    def parameter_bytes(self) -> Floats:
        total = np.zeros(self.count)
        for name in self.pattern.parameters:
            each = self._training_bytes(name)
            total += local_elements(self.tensors[name].shape, self.read[name][0], self.sizes) * each
        return total

    def _training_bytes(self, parameter: str) -> int:
        item = DTYPE_BYTES[self.tensors[parameter].dtype]
        if not self.context.patterns.carries_gradient(parameter):
            return item
        return self.context.options.training_bytes_per_element(item)

    def activation_bytes(self) -> Floats:
        total = np.zeros(self.count)
        for name in self.pattern.kept:
            layouts = self.made.get(name) or self.read[name]
            total += self._local_bytes(name, layouts[0])
        return total

    def compute_s(self) -> Floats:
        total = np.zeros(self.count)
        for position in range(len(self.pattern.members)):
            forward, backward = self._member_s(position)
            total += forward + backward
        for name in self.pattern.parameters:
            if self.context.patterns.carries_gradient(name):
                total += self._update_s(name)
        return total

    def _update_s(self, name: str) -> Floats:
        elements = local_elements(self.tensors[name].shape, self.read[name][0], self.sizes)
        # The update reads all of it and writes all but the gradient.
        item = DTYPE_BYTES[self.tensors[name].dtype]
        moved = elements * (2 * self._training_bytes(name) - item)
        return self.device.roofline_times(np.zeros(self.count), moved, "float32")

    def _member_s(self, position: int) -> tuple[Floats, Floats]:
        """Seconds of a member's forward and of its backward."""
        member = self.pattern.members[position]
        sem, op = member.semantics, member.operator
        if sem.category == "view":
            return np.zeros(self.count), np.zeros(self.count)
        share = np.ones(self.count)
        for v, variable in enumerate(sem.variables):
            parts = self._parts(member.variables[v])
            share *= np.ceil(variable.extent / parts) / variable.extent
        read = np.zeros(self.count)
        for name, layouts in zip(op.inputs, self.inputs[position], strict=True):
            if not _looked_up(member, name, self.tensors[name].shape):
                read += self._local_bytes(name, layouts[0])
        written = np.zeros(self.count)
        for name, layouts in zip(op.outputs, self.outputs[position], strict=True):
            written += self._local_bytes(name, layouts[0])
        dtype = self.tensors[op.outputs[0]].dtype
        for name in op.inputs:
            if self.tensors[name].differentiable:
                dtype = self.tensors[name].dtype
                break
        forward = self.device.roofline_times(sem.forward_flops * share, read + written, dtype)
        backward = np.zeros(self.count)
        if any(self.context.patterns.carries_gradient(o) for o in op.outputs):
            # Backward reads the output's gradient and what was kept, and writes the inputs'.
            moved = written + read + self._gradient_bytes(position, member)
            backward = self.device.roofline_times(sem.backward_flops * share, moved, dtype)
        return forward, backward

    def _gradient_bytes(self, position: int, member: Member) -> Floats:
        total = np.zeros(self.count)
        for name, layouts in zip(member.operator.inputs, self.inputs[position], strict=True):
            if self.context.patterns.carries_gradient(name):
                total += self._local_bytes(name, layouts[0])
        return total

    def _collective_s(self, operation: str, split: NDArray[np.bool_], sizes: Floats) -> Floats:
        """Time of one collective over the axes marked in `split` (K, axes), sizes in bytes."""
        time = np.zeros(self.count)
        masks = split @ (1 << np.arange(split.shape[1], dtype=np.int64))
        for mask in np.unique(masks[masks > 0]):
            chosen = masks == mask
            shape = self.context.mesh.group_shape(int(mask))
            time[chosen] = collective_times(self.context.hardware, operation, sizes[chosen], shape)
        return time

    def synchronisation_s(self) -> Floats:
        """Gradients of parameters that are replicated along an axis: one all_reduce each."""
        total = np.zeros(self.count)
        for name in self.pattern.parameters:
            if self.context.patterns.carries_gradient(name):
                total += self._synchronisation_s(name)
        return total

    def _synchronisation_s(self, name: str) -> Floats:
        forward, gradient = self.read[name]
        return self._collective_s(
            "all_reduce", gradient == PARTIAL, self._local_bytes(name, forward)
        )

    def statistics_s(self) -> Floats:
        total = np.zeros(self.count)
        for position in range(len(self.pattern.members)):
            total += 2 * self._statistics_s(position)
        return total

    def _statistics_s(self, position: int) -> Floats:
        """Of one member, in forward; backward takes as long again."""
        total = np.zeros(self.count)
        member = self.pattern.members[position]
        sem = member.semantics
        for statistic in sem.statistics:
            elements = np.full(self.count, float(statistic.values))
            for v in statistic.indexed:
                elements *= np.ceil(sem.variables[v].extent / self._parts(member.variables[v]))
            split = np.zeros(self.assignment.shape, dtype=bool)
            for v in statistic.reduced:
                split |= self.assignment == member.variables[v]
            total += self._collective_s("all_reduce", split, elements * 4)
        return total

    def halo_s(self) -> Floats:
        """Rows beyond a share come from the neighbours, and their gradients go back."""
        total = np.zeros(self.count)
        for position, member in enumerate(self.pattern.members):
            for i, name in enumerate(member.operator.inputs):
                both = 2 if self.context.patterns.carries_gradient(name) else 1
                total += both * self._halo_s(position, i)
        return total

    def _halo_s(self, position: int, port: int) -> Floats:
        """Of one input, in forward; the gradient takes as long again."""
        total = np.zeros(self.count)
        member = self.pattern.members[position]
        name = member.operator.inputs[port]
        for v, access in member.semantics.inputs[port].items():
            rows = access.halo_before + access.halo_after
            if not rows:
                continue
            split = self.assignment == member.variables[v]
            local = self._local_bytes(name, self.inputs[position][port][0])
            parts = self._parts(member.variables[v])
            share = np.ceil(self.tensors[name].shape[access.dim] / parts)
            total += self._collective_s("send_receive", split, local / share * rows)
        return total

    def internal_s(self) -> Floats:
        """Re-scheduling between members: the assignment is one, their layouts may differ."""
        total = np.zeros(self.count)
        for name, source, wanted in self._moves():
            total += self._reschedule_s(name, source, wanted)
        return total

    def _moves(self) -> list[tuple[str, tuple[Layouts, Layouts], tuple[Layouts, Layouts]]]:
        """Tensors that a member reads otherwise than they are there: name, from, to."""
        moves = []
        for position, member in enumerate(self.pattern.members):
            for name, wanted in zip(member.operator.inputs, self.inputs[position], strict=True):
                source = self.made.get(name) or self.read[name]
                if not self._is_fixed(name) and not self._agree(name, source, wanted):
                    moves.append((name, source, wanted))
        return moves

    def _agree(
        self, name: str, source: tuple[Layouts, Layouts], wanted: tuple[Layouts, Layouts]
    ) -> bool:
        if source is wanted:
            return True
        # A gradient that is partial where the producer wants it whole must be summed.
        backward = self.context.patterns.carries_gradient(name)
        return np.array_equal(source[0], wanted[0]) and (
            not backward or np.array_equal(source[1], wanted[1])
        )

    def _paths(self, name: str) -> Rescheduler:
        tensor = self.tensors[name]
        return self.context.rescheduler(tensor.shape, DTYPE_BYTES[tensor.dtype])

    def _is_fixed(self, name: str) -> bool:
        """Parameters, buffers, inputs and constants are there in whatever layout is read."""
        return self.tensors[name].role in ("parameter", "buffer", "input") or (
            name not in self.made and name not in self.pattern.entries
        )

    def _reschedule_s(
        self, name: str, source: tuple[Layouts, Layouts], wanted: tuple[Layouts, Layouts]
    ) -> Floats:
        paths = self._paths(name)
        time = paths.distance(paths.register(source[0]), paths.register(wanted[0]))
        if self.context.patterns.carries_gradient(name):
            time = time + paths.distance(paths.register(wanted[1]), paths.register(source[1]))
        return time


def _looked_up(member: Member, name: str, shape: tuple[int, ...]) -> bool:
    """A table of which only a few rows are read costs what is written, not its whole size."""
    return (
        member.operator.kind.startswith("aten.embedding")
        and len(shape) == 2
        and (name == member.operator.inputs[0])
    )
