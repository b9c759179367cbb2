"""Turns a placement into the instructions of a rank: operators, loads, moves, crossings.

Everything is resolved here, once: which slot, which overload, which steps over which groups. The
order is the graph's; a tensor is moved just before its first reader in a group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shardwise.execute.block_mesh import is_alike
from shardwise.execute.collectives import Change, parse_path
from shardwise.execute.crossing import Route, prepare_groups
from shardwise.execute.instruction import Instruction, Rebuild, mark_dead
from shardwise.execute.loading import Argument
from shardwise.execute.order import in_order
from shardwise.execute.placement import CONSTANT, Placed, Placement
from shardwise.execute.rank_mesh import Layout, RankMesh
from shardwise.execute.redistribute import redistribute_between
from shardwise.execute.routed import Rows
from shardwise.graph.graph import Graph, Operator
from shardwise.graph.order import written_ports
from shardwise.sharding.operator_layouts import LayoutPair
from shardwise.sharding.rerun import MATRIX_PRODUCTS
from shardwise.sharding.zigzag import zigzag_order

PlacedPair = tuple[RankMesh, LayoutPair]
"""Layouts with the mesh that has their shares."""

Local = Callable[[Placed], Any]
"""Returns the operator of a placement on local parts (`shardwise.execute.local`)."""


@dataclass
class Built:
    """What `Program` runs.

    `arguments`, `parameters` and `buffers` name the slots that are filled before a run (an argument
    with the mesh that has its shares, a buffer with its mesh and layout). `constants` run once, or
    in every step if they are random. `results` are the slots of the graph's outputs, whole.
    In a stage of a pipeline `incoming` are slots of tensors that other stages made, `outgoing`
    those of its own that others read, both in the layouts in which they are made.
    `lasting` slots are never emptied.
    """

    slots: int = 0
    arguments: dict[Argument, int] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)
    buffers: dict[int, tuple[str, RankMesh, Layout]] = field(default_factory=dict)
    incoming: dict[str, int] = field(default_factory=dict)
    outgoing: dict[str, int] = field(default_factory=dict)
    constants: list[Instruction] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    results: dict[str, int] = field(default_factory=dict)
    pairs: dict[int, LayoutPair] = field(default_factory=dict)
    lasting: set[int] = field(default_factory=set)
    unpriced: list[str] = field(default_factory=list)

    def written(self) -> dict[str, tuple[RankMesh, Layout]]:
        """Returns the buffers that operators update, with the mesh and layout of the parts."""
        slots = [i.inputs[port] for i in self.instructions for port in i.written]
        return {self.buffers[slot][0]: self.buffers[slot][1:] for slot in slots}


class Builder:
    """Builds the program of one rank.

    `differentiated` are the tensors that have a gradient, as all ranks must agree where they run
    different operators.
    """

    def __init__(
        self,
        placement: Placement,
        local: Local,
        parameters: Parameters,
        differentiated: Collection[str] = frozenset(),
    ) -> None:
        self._placement = placement
        self._differentiated = differentiated
        self._graph: Graph = placement.graph
        self._mesh = placement.mesh
        self._local = local
        self._parameters = parameters
        self._slot: dict[Hashable, int] = {}
        self._random: set[str] = set()
        self._entered: dict[tuple[str, int], LayoutPair] = {}
        self._built = Built()

    def build(
        self,
        outputs: Sequence[str],
        order: Sequence[str] | None = None,
        incoming: Sequence[str] = (),
        outgoing: Sequence[str] = (),
    ) -> Built:
        """Returns the program that computes these tensors of the graph, operators in the graph's
        order or in `order`; `incoming` tensors are given, `outgoing` ones are left as made."""
        for name in incoming:
            self._arriving(name)
        for placed in self._placement.operators:
            if placed.group == CONSTANT:
                self._constant(placed)
            else:
                self._member(placed)
        for name in dict.fromkeys(outputs):
            self._result(name)
        built = self._built
        built.outgoing = {n: self._slot[n, self._placement.made_in[n]] for n in outgoing}
        if order is not None:
            built.instructions = in_order(built.instructions, order)
        built.slots = len(self._slot)
        built.lasting = self._lasting()
        mark_dead(built.instructions, built.lasting)
        return built

    def _lasting(self) -> set[int]:
        """Returns the slots that outlive a run: buffers, results, constants."""
        built = self._built
        once = {slot for i in built.constants for slot in i.outputs}
        left = {*built.results.values(), *built.outgoing.values()}
        return once | set(built.buffers) | left

    # Slots

    def _new(self, key: Hashable) -> int:
        return self._slot.setdefault(key, len(self._slot))

    def _emit(
        self, name: str, run: Callable[..., Any], inputs: Sequence[int], outputs: Sequence[int]
    ) -> Instruction:
        instruction = Instruction(name, run, tuple(inputs), tuple(outputs))
        self._built.instructions.append(instruction)
        return instruction

    def _route(
        self, name: str, forward: Sequence[Change], backward: Sequence[Change] = ()
    ) -> Route:
        tensor = self._graph.tensors[name]
        shape = tensor.shape
        proportions = self._placement.proportions
        prepare_groups(self._mesh, [*forward, *backward], shape, proportions.needed)
        agreed = name in self._differentiated if proportions.is_mixed else None
        rows = None
        if tensor.spread is not None:
            rows = Rows.of(shape, int(tensor.spread), [*forward, *backward])
        return Route(self._mesh, shape, tuple(forward), tuple(backward), agreed, rows)

    def _moved(self, key: Hashable, name: str, source: int, route: Route) -> int:
        """Returns the slot of a tensor after a route; the same slot if the route is empty."""
        if route.is_empty:
            return self._slot.setdefault(key, source)
        target = self._new(key)
        inputs = (source, *self._chosen(name, route))
        emitted = self._emit(f"move {name}", _one(route), inputs, (target,))
        emitted.early = route.is_local
        return target

    def _chosen(self, name: str, route: Route) -> tuple[int, ...]:
        """Returns the slot of the experts that a tensor's rows have chosen, if it has sent rows."""
        if route.rows is None:
            return ()
        chosen = self._placement.routes[name]
        made_in, known = self._placement.made_in[chosen], route.rows.known
        key = (chosen, "known", known)
        if key not in self._slot:
            mesh = self._placement.groups[made_in].mesh
            layout = self._placement.output_layouts[chosen].forward
            path = self._route(chosen, redistribute_between(mesh, layout, self._mesh, known))
            source = self._slot[chosen, made_in]
            if path.is_empty:
                return (source,)
            self._emit(f"cross {chosen}", _one(path), (source,), (self._new(key),))
        return (self._slot[key],)

    def _arriving(self, name: str) -> None:
        """Makes the slot of a tensor that another stage sends, as its group made it."""
        slot = self._new((name, self._placement.made_in[name]))
        self._built.incoming[name] = slot
        self._built.pairs[slot] = self._placement.output_layouts[name]

    # Operators

    def _constant(self, placed: Placed) -> None:
        op = placed.operator
        inputs = [self._whole(name) for name in op.inputs]
        outputs = [self._new((name, CONSTANT)) for name in op.outputs]
        instruction = Instruction(op.name, self._local(placed), tuple(inputs), tuple(outputs))
        instruction.tensors = op.outputs
        if _is_random(op) or any(name in self._random for name in op.inputs):
            self._random.update(op.outputs)
            self._built.instructions.append(instruction)
        else:
            self._built.constants.append(instruction)

    def _member(self, placed: Placed) -> None:
        op = placed.operator
        begin = len(self._built.instructions)
        inputs = [
            self._input(placed, port, name, placed.layouts.inputs[port])
            for port, name in enumerate(op.inputs)
        ]
        outputs = [self._new((name, placed.group)) for name in op.outputs]
        for slot, pair in zip(outputs, placed.layouts.outputs, strict=True):
            self._built.pairs[slot] = pair
        local = self._local(placed)
        emitted = self._emit(op.name, local, inputs, outputs)
        emitted.tensors = op.outputs
        emitted.deferred = getattr(local, "deferred", ())
        emitted.saves_first = op.kind in MATRIX_PRODUCTS
        emitted.written = written_ports(op, self._graph)
        if placed.segment is not None:
            for instruction in self._built.instructions[begin:]:
                # What another group keeps, or moves for this one to keep, is not recomputed.
                if instruction.rebuild is None and not instruction.name.startswith("cross"):
                    instruction.segment = placed.segment

    def _input(self, placed: Placed, port: int, name: str, wanted: LayoutPair) -> int:
        tensor, group = self._graph.tensors[name], placed.group
        if tensor.role == "input":
            return self._loaded(placed, name, wanted)
        if tensor.role == "parameter":
            return self._parameter(name, placed.mesh, wanted)
        made_in = self._placement.made_in.get(name)
        if made_in is None or made_in == CONSTANT:
            return self._cut(name, placed.mesh, wanted, ordered=True)
        source, there = self._seen(name, made_in, group, wanted)
        move = placed.moves.get(port)
        if move is None:
            return source
        mesh, path = placed.mesh, self._placement.path
        forward = path((mesh, there.forward), move.forward, (mesh, wanted.forward), name)
        backward: tuple[Change, ...] = ()
        if move.backward:
            backward = path((mesh, wanted.gradient), move.backward, (mesh, there.gradient), name)
        key = (name, group, wanted)
        if key in self._slot:
            return self._slot[key]
        return self._moved(key, name, source, self._route(name, forward, backward))

    def _seen(
        self, name: str, made_in: int, group: int, wanted: LayoutPair
    ) -> tuple[int, LayoutPair]:
        """Returns an activation as a group has it: made or moved there for its first reader."""
        key = (name, group)
        if made_in == group:
            return self._slot[key], self._placement.output_layouts[name]
        if key not in self._slot:
            self._cross(name, made_in, group, wanted)
        slot = self._slot[key]
        return slot, self._entered[name, group]

    def _cross(self, name: str, made_in: int, group: int, into: LayoutPair) -> None:
        path = self._placement.crossing_path(name, made_in, group, into)
        self._entered[name, group] = into
        source = self._slot[name, made_in]
        route = self._route(name, path.forward, path.backward)
        before = len(self._built.instructions)
        target = self._moved((name, group), name, source, route)
        if len(self._built.instructions) == before or not path.forward:
            return
        crossing = self._built.instructions[-1]
        if path.kept != "rebuilt":
            crossing.name = f"cross {name}"
        recompute = self._route(name, path.recompute)
        if path.kept == "before":
            chosen = self._chosen(name, recompute)
            crossing.rebuild = Rebuild(source, target, recompute.move, chosen)
        elif path.kept == "after" and path.recompute:
            chosen = self._chosen(name, recompute)
            crossing.rebuild = Rebuild(target, source, recompute.move, chosen)

    # Tensors that exist without being computed

    def _loaded(self, placed: Placed, name: str, wanted: LayoutPair) -> int:
        mesh = placed.mesh
        arrived = self._built.arguments.setdefault(
            (name, mesh), self._new((name, mesh, "argument"))
        )
        arrived = self._in_zigzag(name, arrived)
        load = placed.loads.get(name)
        key = (name, placed.group)
        if load is not None and key not in self._slot:
            start = self._placement.arrives(name)
            steps = parse_path(self._placement.proportions, mesh, start, load.steps)
            self._moved(key, name, arrived, self._route(name, steps))
            self._entered[name, placed.group] = wanted
        there = self._entered[name, placed.group]
        return self._bridged(name, self._slot[key], (mesh, there), (mesh, wanted))

    def _parameter(self, name: str, mesh: RankMesh, wanted: LayoutPair) -> int:
        stored = self._parameters.stored(name)
        slot = self._built.parameters.setdefault(name, self._new((name, "parameter")))
        return self._bridged(name, slot, (self._parameters.mesh[name], stored), (mesh, wanted))

    def _bridged(self, name: str, slot: int, there: PlacedPair, wanted: PlacedPair) -> int:
        """Returns the slot of a tensor that the cost model assumes to exist in any layout."""
        (here, has), (mesh, pair) = there, wanted
        gradient = self._graph.tensors[name].role == "parameter"
        alike = is_alike(here, mesh, has.forward)
        if alike and has.forward == pair.forward and (not gradient or has == pair):
            return slot
        key = (name, slot, mesh, pair)
        if key in self._slot:
            return self._slot[key]
        back: Sequence[Change] = ()
        if gradient:
            back = redistribute_between(mesh, pair.gradient, here, has.gradient)
        forward = redistribute_between(here, has.forward, mesh, pair.forward)
        route = self._route(name, forward, back)
        if any(step.operation not in ("slice", "mask") for step in (*forward, *back)):
            self._built.unpriced.append(name)
        return self._moved(key, name, slot, route)

    def _whole(self, name: str) -> int:
        """Returns the slot of a constant or buffer in full."""
        whole = LayoutPair(*[(-1,) * len(self._mesh.names)] * 2)
        return self._cut(name, self._mesh, whole)

    def _in_zigzag(self, name: str, source: int, *, constant: bool = False) -> int:
        """Returns the slot of a tensor that is whole along its sequence, in the order in which
        the plan's shares lie."""
        dim = self._placement.positions.get(name)
        if dim is None:
            return source
        key = (name, source, "zigzag")
        if key not in self._slot:
            order = zigzag_order(self._graph.tensors[name].shape[dim], self._placement.pieces)
            instruction = Instruction(
                f"order {name}", _by(order, dim), (source,), (self._new(key),)
            )
            (self._built.constants if constant else self._built.instructions).append(instruction)
        return self._slot[key]

    def _cut(self, name: str, mesh: RankMesh, wanted: LayoutPair, *, ordered: bool = False) -> int:
        """Returns the slot of a constant or buffer in a layout: this rank's part of the whole,
        positions `ordered` as the plan's shares lie."""
        ordered = ordered and name in self._placement.positions
        if name not in self._placement.made_in:
            layout = (-1,) * len(wanted.forward) if ordered else wanted.forward
            slot = self._new((name, "buffer", mesh, layout))
            self._built.buffers[slot] = (name, mesh, layout)
            if not ordered:
                return slot
            whole = slot
        else:
            whole = self._slot[name, CONSTANT]
        constant = name in self._placement.made_in and name not in self._random
        if ordered:
            whole = self._in_zigzag(name, whole, constant=constant)
        if mesh.world_size == self._mesh.world_size and all(s == -1 for s in wanted.forward):
            return whole
        key = (name, CONSTANT, mesh, wanted.forward, ordered)
        if key not in self._slot:
            shape, layout = self._graph.tensors[name].shape, wanted.forward
            target = self._new(key)
            instruction = Instruction(
                f"cut {name}", lambda x: (part_of(x, mesh, shape, layout),), (whole,), (target,)
            )
            (self._built.constants if constant else self._built.instructions).append(instruction)
        return self._slot[key]

    # Results

    def _result(self, name: str) -> None:
        made_in = self._placement.made_in[name]
        source = self._slot[name, made_in]
        if made_in == CONSTANT:
            self._built.results[name] = source
            return
        pair = self._placement.output_layouts[name]
        whole = (-1,) * len(self._mesh.names)
        mesh = self._placement.groups[made_in].mesh
        route = self._route(
            name,
            redistribute_between(mesh, pair.forward, self._mesh, whole),
            redistribute_between(self._mesh, whole, mesh, pair.gradient),
        )
        slot = self._moved((name, "result"), name, source, route)
        dim = self._placement.positions.get(name)
        if dim is not None:
            order = zigzag_order(self._graph.tensors[name].shape[dim], self._placement.pieces)
            target = self._new((name, "result", "order"))
            self._emit(f"order {name}", _by(order, dim, back=True), (slot,), (target,))
            slot = target
        self._built.results[name] = slot


class Parameters:
    """The layout that each parameter is kept in: the first reader's, its gradient summed once.

    Readers that share a layout may differ in their gradients (a tied embedding). The gradient is
    then partial if it is partial for any of them, and the others add their whole gradient on one
    rank.
    """

    def __init__(self, placement: Placement) -> None:
        self._pairs: dict[str, LayoutPair] = {}
        self.group: dict[str, int] = {}
        self.mesh: dict[str, RankMesh] = {}
        for placed in placement.operators:
            for name, pair in zip(placed.operator.inputs, placed.layouts.inputs, strict=True):
                if placement.graph.tensors[name].role == "parameter":
                    self.group.setdefault(name, placed.group)
                    self.mesh.setdefault(name, placed.mesh)
                    self._add(name, placed.mesh, pair)

    def _add(self, name: str, mesh: RankMesh, pair: LayoutPair) -> None:
        first = self._pairs.setdefault(name, pair)
        alike = is_alike(self.mesh[name], mesh, first.forward)
        if alike and first.forward == pair.forward and first.gradient != pair.gradient:
            both = zip(first.gradient, pair.gradient, strict=True)
            self._pairs[name] = LayoutPair(first.forward, tuple(min(two) for two in both))

    def stored(self, name: str) -> LayoutPair:
        """Returns the layout of a parameter and of its gradient."""
        return self._pairs[name]

    def all(self) -> Mapping[str, LayoutPair]:
        """Returns the layouts of all parameters that some operator reads."""
        return self._pairs


def part_of(
    whole: torch.Tensor, mesh: RankMesh, shape: Sequence[int], layout: Layout
) -> torch.Tensor:
    """Returns this rank's part (a view) of a whole tensor; empty if it has none."""
    return whole[mesh.local_slices(shape, layout)] if mesh.present else whole.new_empty(0)


def _by(
    order: Sequence[range], dim: int, *, back: bool = False
) -> Callable[[torch.Tensor], tuple[torch.Tensor]]:
    """Returns what puts positions in zigzag order, or from it back in that of the sequence."""
    positions = [position for piece in order for position in piece]
    if back:
        positions = sorted(range(len(positions)), key=positions.__getitem__)

    def ordered(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x.index_select(dim, torch.tensor(positions, device=x.device)),)

    return ordered


def _one(route: Route) -> Callable[[torch.Tensor], tuple[torch.Tensor]]:
    return lambda x, *chosen: (route(x, *chosen),)


def _is_random(op: Operator) -> bool:
    from shardwise.torch_operators import overload

    return torch.Tag.nondeterministic_seeded in overload(op.kind).tags
