"""Roles of a group's variables, in the terms of parallel training.

    batch      a share is whole samples
    position   tokens of a sequence, pixels: a dimension of an input that no matrix has
    expert     a share is whole experts of a mixture, to which rows are sent where they can be
    model      everything else: columns, rows, heads, vocabulary, channels

Batch and position come from the inputs of the graph (`sharding/names.py`); the queries of attention
and the experts of a mixture are variables of their descriptions (docs/tdl.md).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum

from shardwise.graph.graph import FLOAT_DTYPES, Graph
from shardwise.graph.inspect import is_product
from shardwise.graph.semantics import QUERY, RING
from shardwise.sharding.coarsen import Coarsened, Group
from shardwise.sharding.experts import EXPERT_VARIABLE
from shardwise.sharding.names import NamedDimensions, named_dimensions
from shardwise.sharding.routing import ROUTED
from shardwise.sharding.segments import SMALL, items

INTEGERS = frozenset({"int32", "int64"})


class Role(IntEnum):
    """The role of a variable: what an axis divides that splits it."""

    MODEL = 0
    EXPERT = 1
    POSITION = 2
    BATCH = 3


class Kind(IntEnum):
    """Classes of groups that a strategy of the whole model splits the same way: products by
    weights, experts of a mixture with the operators between their products, products without
    weights (the core of attention), and everything else."""

    WEIGHTS = 0
    EXPERTS = 1
    ATTENTION = 2
    LIGHT = 3


@dataclass(frozen=True)
class GroupRoles:
    """A group: the roles of its variables, and its layer.

    `product`: it has a product, a convolution or attention; `weighted`: one of them reads a
    parameter; `parameters` is the number of its parameters' elements. `layer` is None outside the
    repeated blocks. `ring` is the variable whose shares of keys and values travel around a ring.
    """

    roles: tuple[Role, ...]
    product: bool
    weighted: bool
    parameters: int
    layer: str | None
    ring: int | None = None

    @property
    def kind(self) -> Kind:
        """The class of the group for strategies of the whole model."""
        if self.has(Role.EXPERT):
            return Kind.EXPERTS
        if not self.product:
            return Kind.LIGHT
        return Kind.WEIGHTS if self.weighted else Kind.ATTENTION

    def has(self, role: Role) -> bool:
        """Returns whether some variable has the role."""
        return role in self.roles


def group_roles(coarsened: Coarsened) -> list[GroupRoles]:
    """Returns the roles of every group of a model."""
    names = named_dimensions(coarsened)
    layers = _layers(coarsened)
    tensors = coarsened.graph.tensors
    seen: set[str] = set()
    result = []
    for group in coarsened.groups:
        members = group.members
        read = dict.fromkeys(name for m in members for name in m.operator.inputs)
        owned = [
            tensors[name] for name in read if tensors[name].role == "parameter" and name not in seen
        ]
        seen.update(tensor.name for tensor in owned)
        products = [m.operator for m in members if is_product(m.operator)]
        result.append(
            GroupRoles(
                tuple(_role(group, v, names) for v in range(len(group.variables))),
                bool(products),
                any(tensors[name].role == "parameter" for op in products for name in op.inputs),
                sum(tensor.elements for tensor in owned),
                layers[group.index],
                group.variables.index(RING) if RING in group.variables else None,
            )
        )
    return result


def _role(group: Group, variable: int, names: NamedDimensions) -> Role:
    if group.variables[variable] == ROUTED:
        return Role.EXPERT
    if variable in names.samples[group.index]:
        return Role.BATCH
    if names.name_of[group.index, variable] in names.positions:
        return Role.POSITION
    own = {
        member.semantics.variables[v].name
        for member in group.members
        if is_product(member.operator)
        for v, of_group in enumerate(member.variables)
        if of_group == variable
    }
    if own in ({QUERY}, {RING}):
        return Role.POSITION
    # If rows can be sent to experts, operators whose rows all devices see are divided like columns.
    divides = own == {EXPERT_VARIABLE} and ROUTED not in group.variables
    return Role.EXPERT if divides else Role.MODEL


def _layers(coarsened: Coarsened) -> list[str | None]:
    """Returns the layer of each group: an item of a list of modules that contains modules.

    None outside of such items. Of nested lists it is the outermost whose items contain no list of
    equal blocks: the blocks of a stage are layers, and so is a block of different sublayers.
    """
    operators: dict[str, list[tuple[str, str]]] = {}
    for group in coarsened.groups:
        for member in group.members:
            op = member.operator
            for item in items(op.scope):
                operators.setdefault(item, []).append((op.kind, op.scope.removeprefix(item)))
    alike = Counter(
        (_list_of(item), tuple(ops)) for item, ops in operators.items() if len(ops) >= SMALL
    )
    repeating = {name for (name, _), count in alike.items() if count > 1}
    layers = {
        item
        for item, ops in operators.items()
        if len({inner for _, inner in ops if inner}) > 1
        and not any(name.startswith(f"{item}.") for name in repeating)
    }
    scopes = [group.anchor.operator.scope for group in coarsened.groups]
    return [next((item for item in items(scope) if item in layers), None) for scope in scopes]


def _list_of(item: str) -> str:
    return item.rpartition(".")[0]


def tokens(graph: Graph) -> int | None:
    """Returns the tokens of the graph's batch: samples times the longest sequence of ids.

    None if samples are not only tokens: another kind of input (an image, sound) has samples too, or
    no integer input has a second dimension.
    """
    inputs = [t for t in graph.tensors.values() if t.role == "input" and t.batch_dim is not None]
    if any(t.dtype in FLOAT_DTYPES for t in inputs):
        return None
    sequences = [t.elements for t in inputs if t.dtype in INTEGERS and len(t.shape) == 2]
    return max(sequences, default=None)
