"""Light operators that run as one pass: what a compiler writes, or a library of fused kernels has.

Eager PyTorch runs every operator by itself, with all that it reads and writes in memory. A
**region** is a set of light operators (element-wise ones, normalisations, softmax, losses, with the
views between them) of one group that are connected by tensors; run as one pass it reads what comes
from outside and writes what is used outside, once each. Its backward reads the gradients of what it
wrote and what they are made of, and writes the gradients of what it read. What backward needs and
what is not in memory anyway is computed again from what is, as torch.compile's partitioner has it
(min-cut rematerialisation).

A region never takes longer than its operators one by one. What is made and used inside it alone is
never in memory, and what of that backward would need is not kept but computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from shardwise.graph.graph import Graph, Operator
from shardwise.sharding.coarsen import LIGHT, Member

Names = tuple[str, ...]

GROUP, MODULE = "group", "module"
"""What a pass joins: all of a group, as a compiler does, or operators of one module, as fused
kernels of a library have it."""

ALONE, CONVERTED, IN_PLACE, CHUNKED = "eager", "compiled", "in-place", "chunked"
LOSS = (ALONE, CONVERTED, IN_PLACE, CHUNKED)
"""How a cross entropy runs: by itself; as one pass with the conversions of its scores, as compiled;
in the scores' own storage, as Megatron-LM's; with the product before it, a few samples at a time,
so that scores are never in memory as a whole, as Liger's fused linear cross entropy."""

CROSS_ENTROPY = "aten.cross_entropy_loss.default"


@dataclass(frozen=True)
class Fusing:
    """What runs as one pass: `joins` is GROUP, MODULE or None, `loss` one of LOSS."""

    joins: str | None = None
    loss: str = ALONE


@dataclass(frozen=True)
class Region:
    """Members of a group that run as one pass, by position, with the tensors at its border.

    `needed` is what backward reads besides gradients, `inside` what is never in memory.
    """

    members: tuple[int, ...]
    reads: Names
    writes: Names
    needed: Names
    inside: frozenset[str]

    def moved(self, direction: str, carries_gradient: Callable[[str], bool]) -> Names:
        """Returns the tensors that a pass moves, each as large as its gradient."""
        if direction == "forward":
            return (*self.reads, *self.writes)
        gradients = (name for name in (*self.reads, *self.writes) if carries_gradient(name))
        return (*self.needed, *gradients)


class Analysed(Protocol):
    """What is known of a graph's tensors apart from fusing."""

    graph: Graph

    def has_backward(self, member: Member) -> bool:
        """Returns whether backward of an operator runs."""
        ...

    def storage_of(self, tensor: str) -> str:
        """Returns the tensor that owns this one's storage."""
        ...

    def described(self, member: Member) -> list[str]:
        """Returns what backward of an operator by itself needs of its inputs and outputs."""
        ...


def regions(
    patterns: Analysed,
    members: Sequence[Member],
    joins: str,
    cut: frozenset[str] = frozenset(),
) -> Iterator[Region]:
    """Yields the regions of a group that have at least two operators that compute something.

    `joins` is GROUP or MODULE. Tensors in `cut` join nothing: they are moved in between.
    """
    light = [p for p, member in enumerate(members) if _is_light(member)]
    maker = {out: p for p in light for out in members[p].operator.outputs}
    root = {p: p for p in light}
    functions = _functions(patterns.graph, [members[p] for p in light]) if joins == MODULE else ()

    def find(position: int) -> int:
        while root[position] != position:
            position = root[position]
        return position

    for p in light:
        for name in members[p].operator.inputs:
            source = maker.get(name)
            if source is None or name in cut:
                continue
            if joins == MODULE and _are_apart(members[p], members[source], functions):
                continue
            root[find(p)] = find(source)
    together: dict[int, list[int]] = {}
    for p in light:
        together.setdefault(find(p), []).append(p)
    for positions in together.values():
        if sum(members[p].semantics.category != "view" for p in positions) > 1:
            yield _region(patterns, members, positions)


def loss_pass(
    patterns: Analysed, loss: Member, joins: Callable[[str], bool], ends: Callable[[str], bool]
) -> Region:
    """Returns the pass of a loss with the operators before it that make its scores.

    They may be in other groups: `members` is empty. `joins` says of an operator, by name, whether
    it may be part of the pass, `ends` whether the pass begins with it.
    """
    graph = patterns.graph
    source, inside = loss.operator.inputs[0], list[str]()
    while True:
        producer = graph.producer.get(source)
        if producer is None or len(graph.consumers[source]) > 1 or not joins(producer.name):
            break
        inside.append(source)
        source = producer.inputs[0]
        if ends(producer.name):
            break
    others = (name for name in patterns.described(loss) if name != loss.operator.inputs[0])
    needed = (source, *others)
    return Region((), (source,), loss.operator.outputs, needed, frozenset(inside))


def _is_light(member: Member) -> bool:
    """Returns whether an operator may be part of a pass: no lookup in a table of parameters."""
    return member.semantics.category in LIGHT and not member.operator.kind.startswith(
        "aten.embedding"
    )


def _functions(graph: Graph, light: Sequence[Member]) -> frozenset[str]:
    """Returns the modules that are a function of one tensor: an activation, one operator."""
    computing = [m for m in light if m.semantics.category != "view"]
    sizes = Counter(m.operator.scope for m in computing)
    return frozenset(
        m.operator.scope
        for m in computing
        if sizes[m.operator.scope] == 1
        and len(m.operator.inputs) == 1
        and graph.tensors[m.operator.inputs[0]].role != "parameter"
        and not _is_of(m.operator.scope, graph.producer.get(m.operator.inputs[0]))
    )


def _is_of(scope: str, operator: Operator | None) -> bool:
    return operator is not None and operator.scope == scope


def _are_apart(one: Member, other: Member, functions: Container[str]) -> bool:
    """Returns whether kernels of a library compute two operators apart: those of two modules. An
    activation function belongs to the module that calls it: a SwiGLU is one kernel."""
    scopes = [
        scope.rpartition(".")[0] if scope in functions else scope
        for scope in (one.operator.scope, other.operator.scope)
    ]
    return one.operator.scope != other.operator.scope and scopes[0] != scopes[1]


def _region(patterns: Analysed, members: Sequence[Member], positions: list[int]) -> Region:
    joined = [members[p] for p in positions]
    names = {member.operator.name for member in joined}
    made = [out for member in joined for out in member.operator.outputs]
    reads = dict.fromkeys(n for m in joined for n in m.operator.inputs if n not in set(made))
    consumers = patterns.graph.consumers
    writes = [
        out for out in made if not consumers[out] or {op.name for op in consumers[out]} - names
    ]
    # What is made is in memory where a view of it leaves.
    stored = {patterns.storage_of(name) for name in (*reads, *writes)}
    inside = frozenset(out for out in made if patterns.storage_of(out) not in stored)
    producers = {out: member for member in joined for out in member.operator.outputs}
    needed: dict[str, None] = {}
    seen: set[str] = set()

    def need(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        if name not in inside:
            needed[name] = None
        else:
            for source in producers[name].operator.inputs:
                need(source)

    for member in joined:
        if patterns.has_backward(member):
            for name in patterns.described(member):
                need(name)
    return Region(tuple(positions), tuple(reads), tuple(writes), tuple(needed), inside)
