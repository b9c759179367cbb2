"""Named dimensions: which dimensions of a model must bear one name (Mesh-TensorFlow, Shazeer 2018).

A group variable that runs along dimension d of a tensor, and every other group's variable that
runs along the same dimension of the same tensor, are one named dimension: names are the classes of
that relation (union-find over group variables and tensor dimensions). No tensor and no group may
hold one name twice: where a tie would make it so (query and key positions of self-attention, both
the sequence), the tie is cut, which in Mesh-TensorFlow is a renaming of that dimension.

Tensors that every device holds in full whatever is chosen (constants, buffers) tie nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.graph.semantics import Access
from shardwise.sharding.batch import batch_variables
from shardwise.sharding.coarsen import Coarsened, Group, Member
from shardwise.sharding.disjoint_sets import Forest

Slot = tuple[int, int]
"""(group, variable)."""

Cell = tuple[str, int]
"""(tensor, dimension)."""


@dataclass(frozen=True)
class NamedDimensions:
    """`name_of[group, variable]` numbers the names.

    `samples` are, per group, its variables that run over samples; `positions` are the names of
    inputs' other dimensions that no matrix or kernel has (tokens of a sequence, pixels).

    `ties` are pairs of slots of one name whose groups touch one tensor; they connect all slots of
    a name. `renamed` are the (group, variable, tensor, dimension) of the ties that were cut.
    """

    name_of: dict[Slot, int]
    samples: tuple[tuple[int, ...], ...]
    positions: frozenset[int]
    ties: tuple[tuple[Slot, Slot], ...]
    renamed: tuple[tuple[int, int, str, int], ...]

    @property
    def count(self) -> int:
        return len(set(self.name_of.values()))


def named_dimensions(coarsened: Coarsened) -> NamedDimensions:
    """Returns the named dimensions of a model."""
    classes = _Classes()
    touching: dict[Cell, list[Slot]] = defaultdict(list)
    renamed = []
    for group in coarsened.groups:
        for v in range(len(group.variables)):
            classes.add((group.index, v), ("group", group.index), v)
        for variable, (tensor, dim) in _touches(coarsened, group):
            classes.add((tensor, dim), ("tensor", tensor), dim)
            slot = (group.index, variable)
            if classes.join(slot, (tensor, dim)):
                touching[tensor, dim].append(slot)
            else:
                renamed.append((*slot, tensor, dim))
    numbers: dict[object, int] = {}
    name_of = {
        (g.index, v): numbers.setdefault(classes.find((g.index, v)), len(numbers))
        for g in coarsened.groups
        for v in range(len(g.variables))
    }

    def name(cell: Cell) -> int | None:
        return numbers.get(classes.find(cell)) if classes.known(cell) else None

    samples = sample_variables(coarsened)
    batch = {name_of[g, v] for g, variables in enumerate(samples) for v in variables}
    inputs = [t for t in coarsened.graph.tensors.values() if t.role == "input"]
    others = [(t.name, d) for t in inputs for d in range(len(t.shape)) if d != t.batch_dim]
    positions = {n for cell in others if (n := name(cell)) is not None} - batch
    positions -= _matrix_names(coarsened, name_of)
    for g, variable, source, dim in renamed:
        if name((source, dim)) in positions:
            positions.add(name_of[g, variable])
    ties = dict.fromkeys(
        (slots[0], other) for slots in touching.values() for other in slots if other != slots[0]
    )
    return NamedDimensions(
        name_of,
        samples,
        frozenset(positions),
        tuple(ties),
        tuple(dict.fromkeys(renamed)),
    )


def sample_variables(coarsened: Coarsened) -> tuple[tuple[int, ...], ...]:
    """Returns per group its variables that run over samples, in the order of its members."""
    groups, dims = coarsened.groups, coarsened.batch_dims
    return tuple(
        tuple(
            dict.fromkeys(
                m.variables[v]
                for m in group.members
                for v in sorted(batch_variables(m.operator, m.semantics, dims))
            )
        )
        for group in groups
    )


def _matrix_names(coarsened: Coarsened, name_of: dict[Slot, int]) -> set[int]:
    """Returns the names that index a parameter of a heavy operator."""
    tensors = coarsened.graph.tensors
    return {
        name_of[group.index, member.variables[v]]
        for group in coarsened.groups
        for member in group.members
        if member.semantics.category == "heavy"
        for name, accesses in zip(member.operator.inputs, member.semantics.inputs, strict=True)
        if tensors[name].role == "parameter"
        for v in accesses
    }


def _touches(coarsened: Coarsened, group: Group) -> Iterator[tuple[int, Cell]]:
    """Yields the dimensions that the variables of a group run along, of tensors that others may
    touch."""
    graph, group_of = coarsened.graph, coarsened.group_of
    for member in group.members:
        op, sem = member.operator, member.semantics
        for name, accesses in zip(op.inputs, sem.inputs, strict=True):
            maker = graph.producer.get(name)
            constant = maker is not None and maker.name not in group_of
            if not constant and graph.tensors[name].role not in ("buffer", "parameter"):
                yield from _along(member, name, accesses)
        for name, accesses in zip(op.outputs, sem.outputs, strict=True):
            yield from _along(member, name, accesses)


def _along(member: Member, tensor: str, accesses: dict[int, Access]) -> Iterator[tuple[int, Cell]]:
    for v, access in accesses.items():
        yield member.variables[v], (tensor, access.dim)


class _Classes(Forest[object]):
    """Union-find in which no holder (a group, a tensor) has two places in one class."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[object, dict[object, int]] = {}

    def known(self, item: object) -> bool:
        return item in self._parent

    def add(self, item: object, holder: object, place: int) -> None:
        if item not in self._parent:
            self._parent[item] = item
            self._places[item] = {holder: place}

    def join(self, a: object, b: object) -> bool:
        """Merges two classes. Returns False if a holder would have two places in the result."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return True
        if len(self._places[a]) < len(self._places[b]):
            a, b = b, a
        large, small = self._places[a], self._places[b]
        if any(large.get(holder, place) != place for holder, place in small.items()):
            return False
        large.update(self._places.pop(b))
        self._parent[b] = a
        return True
