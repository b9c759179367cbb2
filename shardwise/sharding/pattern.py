"""The pattern of a group: its structure without names, so that repeated layers cost once.

Two groups with equal patterns (operator kinds, attributes, shapes, dtypes, wiring, what is kept
for backward) have the same configurations and costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from shardwise.graph.factors import FACTORS
from shardwise.graph.graph import Graph, Operator
from shardwise.sharding.coarsen import LIGHT, Coarsened, Group, Member
from shardwise.sharding.fusion import (
    CHUNKED,
    CONVERTED,
    CROSS_ENTROPY,
    MODULE,
    Fusing,
    Region,
    loss_pass,
    regions,
)
from shardwise.sharding.once import Once
from shardwise.sharding.recipes import Recipe
from shardwise.sharding.rounded import Rounded, rounded_products
from shardwise.sharding.routing import weighted_rows

T = TypeVar("T")


@dataclass(frozen=True)
class Boundary:
    """What a group reads, gives away and keeps.

    `entries` are activations made by other groups, `exits` those read by others (or by
    none: the loss), `parameters`, `inputs` the rest, each in order of first use.
    `loaded` are the inputs of the graph that it reads.
    `kept` are the storages made or loaded here that backward needs; `entry_kept[i]` says that
    backward needs entry i here; `exit_deferred[i]` that keeping exit i is decided on its edge.
    """

    entries: tuple[str, ...]
    exits: tuple[str, ...]
    parameters: tuple[str, ...]
    loaded: tuple[str, ...]
    kept: tuple[str, ...]
    entry_kept: tuple[bool, ...]
    exit_deferred: tuple[bool, ...]


@dataclass(frozen=True)
class GroupPattern(Boundary):
    """One group with its boundary and its key."""

    group: Group
    key: Hashable

    @property
    def members(self) -> tuple[Member, ...]:
        return self.group.members


@dataclass(frozen=True)
class Crossing:
    """A tensor that goes from one group to another."""

    tensor: str
    source: int
    target: int


@dataclass(frozen=True)
class _Outline:
    """A group's boundary, and its structure without the sizes and dtypes of its `tensors`."""

    boundary: Boundary
    tensors: tuple[str, ...]
    structure: Hashable


@dataclass(frozen=True)
class _Wiring:
    """What names follow from: storages, gradients and passes; `made` what follows from these."""

    root: Mapping[str, str]
    differentiated: frozenset[str]
    fused: Mapping[str, Region]
    rounded: Mapping[str, Rounded]
    made: Once = field(default_factory=Once, compare=False)


class Patterns:
    """The patterns of all groups of one coarsened graph, and the crossings between them."""

    def __init__(self, coarsened: Coarsened, fusing: Fusing | None = None) -> None:
        """`fusing` says which operators run as one pass (`sharding/fusion.py`), if any."""
        self.coarsened = coarsened
        self.graph: Graph = coarsened.graph
        self._differentiated = differentiated(self.graph)
        self._root = _storage_roots(coarsened)
        self._rounded = rounded_products(self.graph, coarsened.recipes)
        self.fusing = fusing or Fusing()
        self._made = Once()

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns what `make` returns, made once: what follows from these patterns alone.

        Problems on other numbers of devices have the same patterns.
        """
        return self._made.once(key, make)

    @cached_property
    def of_wiring(self) -> Once:
        """What follows from names and wiring: the same in the patterns of another batch or other
        dtypes where these have the same storages, gradients and passes."""
        known: list[_Wiring] = self.coarsened.of_names.once("wirings", list)
        own = _Wiring(self._root, self._differentiated, self._fused, self._rounded)
        if own not in known:
            known.append(own)
        return known[known.index(own)].made

    def carries_gradient(self, tensor: str) -> bool:
        """Returns whether backward computes a gradient of this tensor."""
        return tensor in self._differentiated

    def has_backward(self, member: Member) -> bool:
        """Returns whether backward of an operator runs: one of its outputs carries a gradient."""
        return any(self.carries_gradient(out) for out in member.operator.outputs)

    @cached_property
    def crossings(self) -> tuple[Crossing, ...]:
        """Each once per (tensor, reading group), in order of the reading groups."""
        return self.of_wiring.once("crossings", self._crossings)

    def _crossings(self) -> tuple[Crossing, ...]:
        group_of, producer = self.coarsened.group_of, self.graph.producer
        crossings: dict[Crossing, None] = {}
        for group in self.coarsened.groups:
            for member in group.members:
                for name in member.operator.inputs:
                    made_by = producer.get(name)
                    source = group_of.get(made_by.name) if made_by else None
                    if source is not None and source != group.index:
                        crossings[Crossing(name, source, group.index)] = None
        return tuple(crossings)

    @cached_property
    def _kept_in(self) -> tuple[frozenset[str], ...]:
        """Per group the storage roots that backward needs there."""
        return self.of_wiring.once("kept", self._kept_of_groups)

    def _kept_of_groups(self) -> tuple[frozenset[str], ...]:
        return tuple(
            frozenset(
                self._root[name]
                for member in group.members
                if self.has_backward(member)
                for name in self.saved(member)
            )
            for group in self.coarsened.groups
        )

    @cached_property
    def _fused(self) -> dict[str, Region]:
        """The pass that an operator is part of, by name."""
        joins, fused = self.fusing.joins, dict[str, Region]()
        for group in self.coarsened.groups if joins else ():
            for region in regions(self, group.members, joins or ""):
                fused |= {group.members[p].operator.name: region for p in region.members}
        return fused | self._losses(fused.keys())

    def _losses(self, elsewhere: Container[str]) -> dict[str, Region]:
        """The passes of losses, by the names of their operators."""
        if self.fusing.loss not in (CONVERTED, CHUNKED):
            return {}
        members = {m.operator.name: m for g in self.coarsened.groups for m in g.members}

        def is_product(name: str) -> bool:
            chunked = self.fusing.loss == CHUNKED and name in members
            return chunked and members[name].operator.kind in FACTORS

        def joins(name: str) -> bool:
            member = members.get(name)
            light = member is not None and member.semantics.category in LIGHT
            return is_product(name) or (light and name not in elsewhere)

        found: dict[str, Region] = {}
        for loss in members.values():
            if loss.operator.kind == CROSS_ENTROPY:
                region = loss_pass(self, loss, joins, is_product)
                found[loss.operator.name] = region
                found |= {self.graph.producer[name].name: region for name in region.inside}
        return found

    @cached_property
    def _inside(self) -> frozenset[str]:
        return frozenset(name for region in self._fused.values() for name in region.inside)

    def is_in_memory(self, tensor: str) -> bool:
        """Returns whether a tensor is written to memory, that is, not internal to a fused pass."""
        return tensor not in self._inside

    def is_fused(self, member: Member) -> bool:
        """Returns whether an operator is part of a fused pass."""
        return member.operator.name in self._fused

    def rounded(self, member: Member) -> Rounded | None:
        """Returns how a product is rounded to 8 or 4 bits; None where it is not."""
        return self._rounded.get(member.operator.name)

    @cached_property
    def rounded_weights(self) -> Mapping[str, Recipe]:
        """The recipes of parameters that products read rounded."""
        return {name: one.recipe for one in self._rounded.values() for name in one.parameters}

    def saved(self, member: Member) -> list[str]:
        """Returns what backward of an operator needs of its inputs and outputs."""
        return _marked(member.operator, self.saves_inputs(member), self.saves_outputs(member))

    def saves_inputs(self, member: Member) -> tuple[bool, ...]:
        """Returns which inputs backward needs, of the pass that the operator is part of."""
        region = self._fused.get(member.operator.name)
        if region is None:
            return self.needs_inputs(member)
        return tuple(name in region.needed for name in member.operator.inputs)

    def saves_outputs(self, member: Member) -> tuple[bool, ...]:
        """Returns which outputs backward needs, of the pass that the operator is part of."""
        region = self._fused.get(member.operator.name)
        if region is None:
            return member.semantics.saves_outputs
        return tuple(name in region.needed for name in member.operator.outputs)

    def described(self, member: Member) -> list[str]:
        """Returns what backward of an operator by itself needs of its inputs and outputs."""
        inputs = self.needs_inputs(member)
        return _marked(member.operator, inputs, member.semantics.saves_outputs)

    def needs_inputs(self, member: Member) -> tuple[bool, ...]:
        """Returns which inputs backward of an operator by itself needs: as described, but no factor
        of what has no gradient.

        A tensor that is multiplied by a constant is not kept for the constant's sake.
        """
        op, saves = member.operator, list(member.semantics.saves_inputs)
        factors = FACTORS.get(op.kind, ())
        # torch's convolutions keep both whatever is needed.
        if factors and not op.kind.startswith("aten.conv") and max(factors) < len(saves):
            for factor, other in zip(factors, factors[::-1], strict=True):
                saves[factor] = saves[factor] and self.carries_gradient(op.inputs[other])
        rounded = self.rounded(member)
        if rounded is not None and rounded.recipe.keeps_rounded:
            # What is kept of data is rounded, a buffer of its own.
            saves[rounded.port] = False
        weighted = weighted_rows(self.graph, op) if self.fusing.joins == MODULE else None
        if weighted is not None:
            saves[weighted] = False
        return tuple(saves)

    def gradient_products(self, member: Member) -> int:
        """Returns how many of the two products of a backward are computed: one for each factor
        that needs its gradient; of what has no factors both, if its backward runs."""
        op = member.operator
        factors = FACTORS.get(op.kind)
        if factors is None or not self.has_backward(member):
            return 2 * self.has_backward(member)
        return sum(self.carries_gradient(op.inputs[factor]) for factor in factors)

    def backward_reads(self, member: Member, parameter: str) -> bool:
        """Returns whether backward of an operator reads one of its parameters, whole."""
        op = member.operator
        if not self.has_backward(member):
            return False
        if self.carries_gradient(parameter):
            return True
        needed = zip(op.inputs, self.needs_inputs(member), strict=True)
        return any(name == parameter and is_needed for name, is_needed in needed)

    def backward_flops(self, member: Member) -> float:
        """Returns the operations of the gradients that are needed."""
        flops = member.semantics.backward_flops
        if member.semantics.category != "heavy":
            return flops
        return flops * self.gradient_products(member) / 2

    def storage_of(self, tensor: str) -> str:
        """Returns the tensor that owns this one's storage: itself unless it is a view."""
        return self._root[tensor]

    def kept_by(self, tensor: str, group: int) -> bool:
        """Returns whether backward needs this tensor's storage in this group."""
        return self._root[tensor] in self._kept_in[group]

    @cached_property
    def _keeping_readers(self) -> dict[str, int]:
        """How many other groups keep each crossing tensor's storage."""
        readers: dict[str, set[int]] = {}
        for c in self.crossings:
            if self.kept_by(c.tensor, c.target):
                readers.setdefault(self._root[c.tensor], set()).add(c.target)
        return {root: len(groups) for root, groups in readers.items()}

    def deferred(self, tensor: str, source: int) -> bool:
        """Returns whether the producer's copy is counted on the edge: kept on both sides of one
        edge."""
        root = self._root[tensor]
        return (
            root == tensor
            and self.kept_by(tensor, source)
            and self._keeping_readers.get(root, 0) == 1
            and self._readers[tensor, source] == 1
        )

    @cached_property
    def _readers(self) -> Counter[tuple[str, int]]:
        """How many groups read what a group makes."""
        return Counter((c.tensor, c.source) for c in self.crossings)

    @cached_property
    def _by_source(self) -> dict[int, list[Crossing]]:
        by_source: dict[int, list[Crossing]] = {}
        for c in self.crossings:
            by_source.setdefault(c.source, []).append(c)
        return by_source

    def pattern(self, group: Group) -> GroupPattern:
        """Returns the boundary and the key of one group."""
        return self.once(("pattern", group.index), lambda: self._pattern(group))

    def _pattern(self, group: Group) -> GroupPattern:
        own = self.of_wiring.once(("outline", group.index), lambda: self._outline(group))
        tensors = [self.graph.tensors[name] for name in own.tensors]
        sizes = tuple((tensor.extents, tensor.dtype, tensor.stored) for tensor in tensors)
        key = (own.structure, sizes)
        return GroupPattern(**vars(own.boundary), group=group, key=key)

    def _outline(self, group: Group) -> _Outline:
        tensors = self.graph.tensors
        inside = {o for m in group.members for o in m.operator.outputs}
        read = list(dict.fromkeys(n for m in group.members for n in m.operator.inputs))
        entries = tuple(
            c for c in read if c not in inside and self._group_making(c) not in (None, group.index)
        )
        exits = tuple(dict.fromkeys(c.tensor for c in self._by_source.get(group.index, ())))
        parameters = tuple(n for n in read if tensors[n].role == "parameter")
        loaded = tuple(n for n in read if tensors[n].role == "input")
        deferred = tuple(self.deferred(name, group.index) for name in exits)
        skip = {name for name, d in zip(exits, deferred, strict=True) if d}
        mine = inside | set(loaded)
        kept = tuple(sorted(r for r in self._kept_in[group.index] if r in mine and r not in skip))
        entry_kept = tuple(self.kept_by(name, group.index) for name in entries)
        names, structure = _structure(group, self, (entries, exits, kept, entry_kept, deferred))
        boundary = Boundary(entries, exits, parameters, loaded, kept, entry_kept, deferred)
        return _Outline(boundary, names, structure)

    def _group_making(self, tensor: str) -> int | None:
        made_by = self.graph.producer.get(tensor)
        return self.coarsened.group_of.get(made_by.name) if made_by else None


def differentiated(graph: Graph) -> frozenset[str]:
    """Returns the tensors of which backward computes a gradient: parameters that are not frozen,
    and what depends on them."""
    names = {name for name, tensor in graph.tensors.items() if tensor.trains}
    for op in graph.operators:
        if any(name in names for name in op.inputs):
            names.update(o for o in op.outputs if graph.tensors[o].differentiable)
    return frozenset(names)


def _marked(op: Operator, inputs: Sequence[bool], outputs: Sequence[bool]) -> list[str]:
    """Returns the inputs and outputs that are marked."""
    names = [name for name, mark in zip(op.inputs, inputs, strict=True) if mark]
    return names + [name for name, mark in zip(op.outputs, outputs, strict=True) if mark]


def _storage_roots(coarsened: Coarsened) -> dict[str, str]:
    """Returns the tensor that owns each tensor's storage: views own none."""
    graph = coarsened.graph
    views = {
        m.operator.name
        for g in coarsened.groups
        for m in g.members
        if m.semantics.category == "view"
    }
    root = {name: name for name in graph.tensors}
    for op in graph.operators:
        if op.name in views and op.inputs and _same_item(graph, op):
            for out in op.outputs:
                if graph.tensors[out].elements == graph.tensors[op.inputs[0]].elements:
                    root[out] = root[op.inputs[0]]
    return root


def _same_item(graph: Graph, op: Operator) -> bool:
    return all(graph.tensors[o].dtype == graph.tensors[op.inputs[0]].dtype for o in op.outputs)


def _structure(
    group: Group, patterns: Patterns, boundary: tuple[tuple[object, ...], ...]
) -> tuple[tuple[str, ...], Hashable]:
    """Returns the tensors of a group and its structure without their names, sizes and dtypes."""
    tensors, producer = patterns.graph.tensors, patterns.graph.producer
    number: dict[str, int] = {}

    def local(name: str) -> int:
        return number.setdefault(name, len(number))

    members = tuple(
        (
            m.operator.kind,
            repr(sorted(m.operator.attributes.items())),
            tuple(local(n) for n in m.operator.inputs),
            tuple(local(n) for n in m.operator.outputs),
            m.variables,
            None if (rounded := patterns.rounded(m)) is None else rounded.key,
            (patterns.saves_inputs(m), patterns.saves_outputs(m)) if patterns.is_fused(m) else (),
            tuple(patterns.is_in_memory(name) for name in m.operator.outputs),
        )
        for m in group.members
    )
    names = tuple(number)
    unreached = patterns.coarsened.unreached
    kinds = tuple(
        (
            tensors[name].role,
            patterns.carries_gradient(name),
            name not in producer,
            name in unreached,
        )
        for name in names
    )
    numbered = tuple(
        tuple(local(x) if isinstance(x, str) else x for x in part) for part in boundary
    )
    return names, (members, kinds, numbered)
