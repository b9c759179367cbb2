"""Light operators that run as one pass: what a compiler writes, or a library of fused kernels has.

Eager PyTorch runs every operator by itself, with all that it reads and writes in memory. A
**region** is a set of light operators (element-wise ones, normalisations, softmax, losses, with the
views between them) of one group that are connected by tensors; run as one pass it reads what comes
from outside and writes what is used outside, once each. Its backward reads the gradients of what it
wrote and what they are made of, and writes the gradients of what it read. What backward needs and
what is not in memory anyway is computed again from what is, as torch.compile's partitioner has it
(min-cut rematerialisation).

A region never takes longer than its operators one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shardwise.hardware.operator_tables import Direction
from shardwise.sharding.coarsen import LIGHT, Member
from shardwise.sharding.pattern import GroupPattern, Patterns

Names = tuple[str, ...]


@dataclass(frozen=True)
class Region:
    """Members of a group that run as one pass, by position, with the tensors at its border.

    `needed` is what backward reads besides gradients.
    """

    members: tuple[int, ...]
    reads: Names
    writes: Names
    needed: Names

    def moved(self, direction: Direction, carries_gradient: Callable[[str], bool]) -> Names:
        """Returns the tensors that a pass moves, each as large as its gradient."""
        if direction == "forward":
            return (*self.reads, *self.writes)
        gradients = (name for name in (*self.reads, *self.writes) if carries_gradient(name))
        return (*self.needed, *gradients)


def regions(
    patterns: Patterns, pattern: GroupPattern, cut: frozenset[str], *, by_module: bool
) -> Iterator[Region]:
    """Yields the regions of at least two operators that compute something.

    Tensors in `cut` join nothing: they are moved in between. With `by_module` only operators of one
    module are joined, as fused kernels of a library have it.
    """
    light = [p for p, member in enumerate(pattern.members) if _is_light(member)]
    maker = {out: p for p in light for out in pattern.members[p].operator.outputs}
    root = {p: p for p in light}

    def find(position: int) -> int:
        while root[position] != position:
            position = root[position]
        return position

    for p in light:
        for name in pattern.members[p].operator.inputs:
            source = maker.get(name)
            if source is None or name in cut or (by_module and _apart(pattern, p, source)):
                continue
            root[find(p)] = find(source)
    together: dict[int, list[int]] = {}
    for p in light:
        together.setdefault(find(p), []).append(p)
    for positions in together.values():
        if sum(pattern.members[p].semantics.category != "view" for p in positions) > 1:
            yield _region(patterns, pattern, positions)


def _is_light(member: Member) -> bool:
    """Returns whether an operator may be part of a pass: no lookup in a table of parameters."""
    return member.semantics.category in LIGHT and not member.operator.kind.startswith(
        "aten.embedding"
    )


def _apart(pattern: GroupPattern, one: int, other: int) -> bool:
    """Returns whether two members are of different modules."""
    return pattern.members[one].operator.scope != pattern.members[other].operator.scope


def _region(patterns: Patterns, pattern: GroupPattern, positions: list[int]) -> Region:
    members = [pattern.members[p] for p in positions]
    names = {member.operator.name for member in members}
    made = [out for member in members for out in member.operator.outputs]
    inside = frozenset(made)
    reads = dict.fromkeys(n for m in members for n in m.operator.inputs if n not in inside)
    consumers = patterns.graph.consumers
    writes = [
        out for out in made if not consumers[out] or {op.name for op in consumers[out]} - names
    ]
    in_memory = frozenset((*reads, *writes))
    producers = {out: member for member in members for out in member.operator.outputs}
    needed: dict[str, None] = {}
    seen: set[str] = set()

    def need(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        if name in in_memory or name not in producers:
            needed[name] = None
        else:
            for source in producers[name].operator.inputs:
                need(source)

    for member in members:
        if any(patterns.carries_gradient(out) for out in member.operator.outputs):
            for name in patterns.saved(member):
                need(name)
    return Region(tuple(positions), tuple(reads), tuple(writes), tuple(needed))
