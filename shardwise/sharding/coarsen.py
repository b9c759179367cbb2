"""Coarsening: operators that share one strategy become one group (Tofu §5.1).

A group's operators are tied by **group variables**: index variables of its operators that run
over the same tensor dimension are one variable, and a configuration assigns mesh axes to group
variables. What joins a group:

1. operators that read the same parameter (unrolled time steps, a tied embedding), directly or
   what operators on parameters alone make of it (a transpose, a slice, a conversion): those
   belong to their readers (`on_parameters.py`);
2. sibling operators of one kind that read the same activation inside one module (the query,
   key and value projections);
3. element-wise runs, views and other light operators, which follow their light producer unless
   that would close a cycle of groups (the residual addition starts a new group);
4. light runs alike in structure that are fed by the same unrolled operators (the cells of one
   recurrent layer);
5. operators that depend on neither a parameter nor an input (position tables, causal masks):
   constants, computed in full by every device.

Every rule restricts the space to strategies that the group can express; none changes what a
strategy costs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from shardwise.graph.graph import Graph, Operator
from shardwise.graph.semantics import RING, Access, OperatorSemantics
from shardwise.sharding.batch import batch_dims, batch_variables
from shardwise.sharding.disjoint_sets import NamedSets, VariableLinks
from shardwise.sharding.on_parameters import operators_on_parameters
from shardwise.sharding.once import Once
from shardwise.sharding.recipes import Recipe
from shardwise.sharding.routing import ROUTED, Routing, with_routing
from shardwise.sharding.zigzag import constant_operators, with_zigzag

Analyse = Callable[[Operator], OperatorSemantics]
Within = Callable[[Operator], Hashable]
"""Returns what an operator belongs to, such as its block."""
LIGHT = frozenset({"elementwise", "view", "light"})


@dataclass(frozen=True)
class Member:
    """One operator of a group; `variables[v]` is the group variable of its own variable v.

    `on_parameters`: it reads parameters alone, for the other members (`on_parameters.py`).
    """

    operator: Operator
    semantics: OperatorSemantics
    variables: tuple[int, ...]
    on_parameters: bool = False


@dataclass(frozen=True)
class Group:
    """Operators that share one assignment of mesh axes to `variables` (their names, in order)."""

    index: int
    members: tuple[Member, ...]
    variables: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its first operator that does not read parameters alone, if any."""
        first = next((m for m in self.members if not m.on_parameters), self.members[0])
        return first.operator.name

    @cached_property
    def anchor(self) -> Member:
        """The member that a person would call the group by: the heaviest one."""
        return max(self.members, key=lambda m: m.semantics.forward_flops)


@dataclass(frozen=True)
class Coarsened:
    """The groups of a graph in topological order, and the operators computed in full by all.

    No split of samples reaches the `unreached` parameters: no operator that reads one has samples
    to split (a table of positions). `recipes` are those of operators that compute in 8 or 4 bits,
    by name. `of_names` holds what follows from names and wiring: the same of any batch and any
    dtypes.
    """

    graph: Graph
    groups: tuple[Group, ...]
    constants: tuple[Operator, ...]
    undescribed: tuple[Operator, ...]
    unreached: frozenset[str] = frozenset()
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    of_names: Once = field(default_factory=Once, compare=False, repr=False)

    @cached_property
    def group_of(self) -> dict[str, int]:
        """Group index by operator name; constants are in no group."""
        return {m.operator.name: g.index for g in self.groups for m in g.members}

    @cached_property
    def batch_dims(self) -> dict[str, int]:
        """The dimension of each tensor that the batch runs along, where it has one."""
        members = (m for g in self.groups for m in g.members)
        return batch_dims(self.graph, {m.operator.name: m.semantics for m in members})


def coarsen(
    graph: Graph, analyse: Analyse, *, join: bool = True, within: Within | None = None
) -> Coarsened:
    """Groups the operators of `graph`; `analyse` gives each operator's semantics.

    Without `join` every operator is searched on its own: only rules 1 and 5 hold, which say what
    a strategy is (a parameter has one layout, a constant none) and not what is worth searching.
    Light operators follow only producers that are `within` the same as they are (rule 3), where
    that is given: so that a cut between blocks goes through no group.
    """
    routing = with_routing(graph, {op.name: analyse(op) for op in graph.operators})
    graph = routing.graph
    constants = constant_operators(graph)
    semantics = with_zigzag(graph, routing.semantics, constants).semantics
    operators = [op for op in graph.operators if op.name not in constants]
    made_of = operators_on_parameters(graph, lambda op: semantics[op.name])
    readers = [op for op in operators if not made_of.keys() & op.outputs]
    sets = NamedSets(op.name for op in operators)
    _join_shared_parameters(graph, readers, made_of, sets)
    if join:
        _join_siblings(graph, readers, made_of, semantics, sets)
        _join_light_runs(graph, readers, semantics, sets, _inside(within, routing))
        _join_unrolled_runs(graph, readers, semantics, sets)
    _join_to_readers(graph, operators, made_of, sets)
    dims = batch_dims(graph, semantics)
    batch = {op.name: batch_variables(op, semantics[op.name], dims) for op in operators}
    groups = tuple(
        _group(graph, index, ops, made_of, semantics, batch)
        for index, ops in enumerate(_members(operators, made_of, sets))
    )
    undescribed = tuple(op for op in graph.operators if not semantics[op.name].described)
    fixed = tuple(op for op in graph.operators if op.name in constants)
    sampled = {name for op in readers if batch[op.name] for name in _read(graph, op, made_of)}
    unreached = frozenset(n for n, t in graph.tensors.items() if t.role == "parameter") - sampled
    return Coarsened(graph, groups, fixed, undescribed, unreached)


def _inside(within: Within | None, routing: Routing) -> Within:
    """Returns what a light operator and those that it follows must share: what they are `within`,
    and the experts to which their rows may be sent."""
    regions = routing.regions
    return lambda op: (within(op) if within else None, regions.get(op.name))


MadeOf = Mapping[str, frozenset[str]]
"""By tensor the parameters of which operators on parameters alone have made it."""


def _join_shared_parameters(
    graph: Graph, operators: list[Operator], made_of: MadeOf, sets: NamedSets
) -> None:
    readers: dict[str, str] = {}
    for op in operators:
        for parameter in _read(graph, op, made_of):
            sets.join(readers.setdefault(parameter, op.name), op.name)


def _read(graph: Graph, op: Operator, made_of: MadeOf) -> Iterator[str]:
    """Yields the parameters that an operator reads, directly or what is made of them alone."""
    for name in op.inputs:
        yield from {name} if graph.tensors[name].role == "parameter" else made_of.get(name, ())


def _join_to_readers(
    graph: Graph, operators: list[Operator], made_of: MadeOf, sets: NamedSets
) -> None:
    """Applies the rest of rule 1: operators on parameters alone join what reads their results."""
    reader: dict[str, str] = {}
    for op in reversed(operators):
        for name in op.outputs:
            if name in made_of and name in reader:
                sets.join(reader[name], op.name)
        for name in op.inputs:
            if name in made_of:
                sets.join(reader.setdefault(name, op.name), op.name)


def _members(operators: list[Operator], made_of: MadeOf, sets: NamedSets) -> list[list[Operator]]:
    """Returns the operators of each set, sets in the order of what they compute for samples."""
    members: dict[str, list[Operator]] = {}
    for of_samples in (True, False):
        for op in operators:
            if of_samples != bool(made_of.keys() & op.outputs):
                members.setdefault(sets.find(op.name), []).append(op)
    place = {op.name: number for number, op in enumerate(operators)}
    return [sorted(ops, key=lambda op: place[op.name]) for ops in members.values()]


def _join_siblings(
    graph: Graph,
    operators: list[Operator],
    made_of: MadeOf,
    semantics: dict[str, OperatorSemantics],
    sets: NamedSets,
) -> None:
    seen: dict[tuple[str, str, str, int], Operator] = {}
    for op in operators:
        if semantics[op.name].category != "heavy":
            continue
        weights = {n for n in op.inputs if graph.tensors[n].role == "parameter" or n in made_of}
        data = [n for n in op.inputs if n not in weights and graph.tensors[n].role != "buffer"]
        if len(data) != 1 or not weights:
            continue
        shape = graph.tensors[data[0]].shape
        key = (data[0], op.kind, op.scope.rpartition(".")[0], len(shape))
        other = seen.setdefault(key, op)
        if other is not op and _same_strides(graph, other, op):
            sets.join(other.name, op.name)


def _same_strides(graph: Graph, first: Operator, op: Operator) -> bool:
    """Returns whether siblings agree on every output dimension but one, the feature dimension."""
    a, b = graph.tensors[first.outputs[0]].shape, graph.tensors[op.outputs[0]].shape
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) <= 1


def _join_light_runs(
    graph: Graph,
    operators: list[Operator],
    semantics: dict[str, OperatorSemantics],
    sets: NamedSets,
    within: Within,
) -> None:
    """Applies rule 3: a light operator joins the latest light producer if no cycle would close."""
    known = {op.name: within(op) for op in operators}
    feeding: dict[str, set[str]] = {op.name: set() for op in operators}
    for op in operators:
        made_by = (graph.producer.get(name) for name in op.inputs)
        feeding[op.name] = {p.name for p in made_by if p is not None and p.name in known}
    for op in operators:
        if semantics[op.name].category not in LIGHT or len(sets.members[sets.find(op.name)]) > 1:
            continue
        sources = {sets.find(name) for name in feeding[op.name]}
        light = [s for s in sources if known[s] == known[op.name] and _is_light(s, semantics, sets)]
        for candidate in sorted(light, key=sets.order.__getitem__, reverse=True):
            if not _reaches(candidate, sources - {candidate}, feeding, sets):
                sets.join(candidate, op.name)
                break


def _reaches(
    ancestor: str, sets_from: set[str], feeding: dict[str, set[str]], sets: NamedSets
) -> bool:
    """Returns whether a path of groups leads from `ancestor` to one of `sets_from`."""
    earliest = sets.order[ancestor]
    stack, seen = list(sets_from), set(sets_from)
    while stack:
        for member in sets.members[stack.pop()]:
            if sets.order[member] < earliest:
                continue  # older than anything that the ancestor can feed
            for name in feeding[member]:
                source = sets.find(name)
                if source == ancestor:
                    return True
                if source not in seen:
                    seen.add(source)
                    stack.append(source)
    return False


def _is_light(name: str, semantics: dict[str, OperatorSemantics], sets: NamedSets) -> bool:
    return all(semantics[m].category in LIGHT for m in sets.members[name])


def _join_unrolled_runs(
    graph: Graph,
    operators: list[Operator],
    semantics: dict[str, OperatorSemantics],
    sets: NamedSets,
) -> None:
    """Applies rule 4: light sets of one signature, fed by one set of unrolled heavy operators."""
    by_name = {op.name: op for op in operators}
    producer = graph.producer
    seen: dict[tuple[object, ...], str] = {}
    for root in [n for n in sets.members if n in by_name and _is_light(n, semantics, sets)]:
        feeders = set()
        signature = []
        for member in sorted(sets.members[root], key=sets.order.__getitem__):
            op = by_name[member]
            signature.append((op.kind, tuple(graph.tensors[o].shape for o in op.outputs)))
            for name in op.inputs:
                made_by = producer.get(name)
                if made_by is None or made_by.name not in by_name:
                    continue
                source = sets.find(made_by.name)
                if len(sets.members[source]) > 1 and not _is_light(source, semantics, sets):
                    feeders.add(source)
        if feeders and all(_is_unrolled(f, graph, by_name, sets) for f in feeders):
            key = (tuple(signature), tuple(sorted(feeders)))
            sets.join(seen.setdefault(key, root), root)


def _is_unrolled(root: str, graph: Graph, by_name: dict[str, Operator], sets: NamedSets) -> bool:
    """Returns whether operators of one kind share a parameter: the same work at many time steps."""
    ops = [by_name[m] for m in sets.members[root]]
    shared = set.intersection(*(set(op.inputs) for op in ops))
    return len({op.kind for op in ops}) == 1 and any(
        graph.tensors[name].role == "parameter" for name in shared
    )


def _group(
    graph: Graph,
    index: int,
    operators: list[Operator],
    made_of: MadeOf,
    semantics: dict[str, OperatorSemantics],
    batch: Mapping[str, Collection[int]],
) -> Group:
    """Unifies the index variables of operators through the tensor dimensions that they share."""
    links = VariableLinks()
    inside = {op.name for op in operators}
    readers = Counter(name for op in operators for name in set(op.inputs))
    for op in operators:
        sem = semantics[op.name]
        for v in range(len(sem.variables)):
            links.add((op.name, v))
        for position, name in enumerate(op.inputs):
            made_by = graph.producer.get(name)
            constant = made_by is None and graph.tensors[name].role == "buffer"
            # An outside tensor that only one member reads ties nothing.
            free = made_by is not None and made_by.name not in inside and readers[name] < 2
            if constant or free:
                continue
            for v, access in sem.inputs[position].items():
                links.tie((op.name, v), (name, _tied_dim(sem, v, access)))
        for position, name in enumerate(op.outputs):
            for v, access in sem.outputs[position].items():
                links.tie((op.name, v), (name, _tied_dim(sem, v, access)))
    _tie_positions(graph, operators, semantics, links)
    _tie_alike(operators, graph, semantics, links)
    order = _variable_order(graph, operators, semantics, links)
    order.update((links.find((op.name, v)), "batch") for op in operators for v in batch[op.name])
    number = {root: position for position, root in enumerate(order)}
    members = tuple(
        Member(
            op,
            semantics[op.name],
            tuple(
                number[links.find((op.name, v))] for v in range(len(semantics[op.name].variables))
            ),
            bool(made_of.keys() & op.outputs),
        )
        for op in operators
    )
    return Group(index, members, tuple(_unique([order[root] for root in order])))


_APART = {ROUTED: -1, RING: -2}
"""Variables that are tied to none over the same dimension, and the dimension that they have for
ties instead."""


def _tied_dim(sem: OperatorSemantics, variable: int, access: Access) -> int:
    """Returns the dimension by which a variable is tied to those of other operators: experts to
    which rows are sent stay apart from experts that every device sees the rows of, and rows whose
    keys go round from rows that see all keys."""
    return _APART.get(sem.variables[variable].name, access.dim)


def _tie_positions(
    graph: Graph,
    operators: list[Operator],
    semantics: dict[str, OperatorSemantics],
    links: VariableLinks,
) -> None:
    """Ties output positions of operators joined by a parameter or as siblings.

    Siblings (one kind) tie every variable by position. Others (an embedding and its tied head)
    tie output variables at the same position and of the same extent, unless both already
    belong to one operator's other variable.
    """
    heavy = [op for op in operators if semantics[op.name].category == "heavy"]
    if not heavy:
        return
    first = heavy[0]
    sem = semantics[first.name]
    for op in heavy[1:]:
        other = semantics[op.name]
        if op.kind == first.kind and len(other.variables) == len(sem.variables):
            for v in range(len(sem.variables)):
                links.join((first.name, v), (op.name, v))
            continue
        mine = _output_dims(sem)
        theirs = _output_dims(other)
        for dim, v in mine.items():
            w = theirs.get(dim)
            if w is None or sem.variables[v].extent != other.variables[w].extent:
                continue
            taken = {links.find((op.name, u)) for u in range(len(other.variables)) if u != w}
            owned = {links.find((first.name, u)) for u in range(len(sem.variables)) if u != v}
            if links.find((first.name, v)) not in taken and links.find((op.name, w)) not in owned:
                links.join((first.name, v), (op.name, w))


def _tie_alike(
    operators: list[Operator],
    graph: Graph,
    semantics: dict[str, OperatorSemantics],
    links: VariableLinks,
) -> None:
    """Ties the variables of operators of one kind and output shape (unrolled time steps).

    Tensors tie most of them already; what they do not reach (gates that are cut in pieces in
    every step) would be a variable of its own per step. Variables stay apart where tying them
    would make two variables of one operator the same.
    """
    first: dict[tuple[object, ...], str] = {}
    for op in operators:
        shape = (op.kind, *(graph.tensors[o].shape for o in op.outputs))
        alike = first.setdefault(shape, op.name)
        count = len(semantics[op.name].variables)
        if alike == op.name or count != len(semantics[alike].variables):
            continue
        for v in range(count):
            mine, theirs = links.find((op.name, v)), links.find((alike, v))
            others = {links.find((op.name, u)) for u in range(count) if u != v}
            others_there = {links.find((alike, u)) for u in range(count) if u != v}
            if theirs not in others and mine not in others_there:
                links.join((alike, v), (op.name, v))


def _output_dims(sem: OperatorSemantics) -> dict[int, int]:
    return {access.dim: v for v, access in sem.outputs[0].items()} if sem.outputs else {}


def _variable_order(
    graph: Graph,
    operators: list[Operator],
    semantics: dict[str, OperatorSemantics],
    links: VariableLinks,
) -> dict[tuple[str, int], str]:
    """Returns group variables by name, batch-like first: by output position, reductions last.

    Canonical assignments give the outermost mesh axes to the first variable, so groups that
    split the same dimensions line up without re-scheduling. Each is named as its description
    names it.
    """
    rank: dict[tuple[str, int], tuple[int, int, int]] = {}
    names: dict[tuple[str, int], str] = {}
    by_weight = sorted(
        range(len(operators)),
        key=lambda i: (-semantics[operators[i].name].forward_flops, i),
    )
    for precedence, i in enumerate(by_weight):
        op = operators[i]
        sem = semantics[op.name]
        for v, variable in enumerate(sem.variables):
            root = links.find((op.name, v))
            dims = [a.dim for out in sem.outputs for u, a in out.items() if u == v]
            inner = int(variable.is_reduction)
            if not graph.tensors[op.outputs[0]].shape:
                # A loss has no output dimensions: go by its first input's.
                dims = [a.dim for u, a in sem.inputs[0].items() if u == v]
                inner = 0
            if variable.name == ROUTED:
                # Rows of experts are among the tokens' axes: before the columns of matrices.
                dims = [0]
            key = (inner, min(dims, default=v))
            if root not in rank:
                rank[root] = (precedence, *key)
                names[root] = variable.name
    # Variables of the heaviest operator come first, in its own order.
    return {root: names[root] for root in sorted(rank, key=rank.__getitem__)}


def _unique(names: list[str]) -> list[str]:
    seen: dict[str, int] = defaultdict(int)
    result = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return result
