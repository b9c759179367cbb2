"""Makes every rank rebuild a tensor at the same point of backward.

Rebuilding a tensor communicates, so all ranks must do it between the same collectives. But they do
not all need it first at the same point. Of a tensor that can be rebuilt, autograd may save a view
on one rank and a copy on another: kernels copy or not depending on the strides and extents of the
local part, and operators on shares depend on the rank's place on the mesh (the first rank's offset
is 0).

So after their first forward pass the ranks tell each other which instructions saved what. Where
they differ, each thing is rebuilt before the backward of the last instruction that needs it on any
rank; where all agree, when it is first needed. What runs again goes as far as the last instruction
that saved some of it on any rank.

With devices of several kinds ranks do not compute all operators, but their programs have the same
instructions in the same order (`absent.py`), and each collective belongs to one. What a rank calls
is then a part of one order of all, which `require_one_order` checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Protocol

import torch
import torch.distributed as dist

from shardwise.errors import BadInput, ShardwiseError
from shardwise.execute.rank_mesh import RankMesh
from shardwise.hardware.kinds import same_kind

Pairs = set[tuple[int, int]]


def require_one_order(names: Sequence[str]) -> None:
    """Compares the instructions of all ranks; collective.

    Raises `ShardwiseError` where they differ: the ranks would wait for each other for ever.
    """
    of_all: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, list(names))
    for rank, others in enumerate(of_all):
        if others != of_all[0]:
            pairs = enumerate(zip_longest(of_all[0], others))
            number, (first, here) = next((n, pair) for n, pair in pairs if pair[0] != pair[1])
            raise ShardwiseError(
                f"instruction {number} is {first!r} on rank 0 and {here!r} on rank {rank}"
            )


def require_kinds(planned: Sequence[str], mine: str, field: str) -> None:
    """Compares the kinds of device of all ranks with those that a plan has for them; collective.

    `planned` are the plan's by rank, `mine` is this rank's own. Raises `BadInput`, on all ranks
    alike, where they differ, with the plan's field that says what it has.
    """
    of_all: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, mine)
    for rank, (wanted, kind) in enumerate(zip(planned, of_all, strict=True)):
        if not same_kind(wanted, kind):
            raise BadInput(
                f"rank {rank} has a device of kind {kind!r}",
                field=field,
                expected=f"{wanted!r}, by the plan: hosts in the order of its devices, or a label "
                "($SHARDWISE_KIND, --kinds) where a device has another name",
            )


class Thing(Protocol):
    """A tensor, or all tensors of a segment."""

    def prepare(self) -> None:
        """Rebuilds it unless it exists already; keeps it only for its users on this rank."""
        ...


class ForwardPass:
    """What can be rebuilt in one forward pass, numbered in order of appearance, and who needs it.

    `now` is the instruction that is running.
    """

    def __init__(self, places: Mapping[int, Sequence[int]] | None) -> None:
        self.now = -1
        self.things: dict[int, Thing] = {}
        self.wanted: Pairs = set()
        """Pairs (thing, instruction that saved it)."""
        self.needed: Pairs = set()
        """Pairs (thing, thing rebuilt from it)."""
        self._places = places
        self.last: Mapping[int, int] = {}
        """The last instruction that saved something of each thing on any rank; known at the end."""

    def add(self, thing: Thing) -> int:
        """Adds a thing and returns its number."""
        self.things[len(self.things)] = thing
        return len(self.things) - 1

    def watch(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """Returns what an instruction made, hooked to rebuild what is due before its backward.

        In the first pass it is not yet known what will be due.
        """
        if self._places is not None and self.now not in self._places:
            return outputs
        given = {id(tensor) for tensor in inputs}
        return [self._watched(tensor, id(tensor) in given) for tensor in outputs]

    def _watched(self, tensor: Any, passed_on: bool) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.grad_fn is None:
            return tensor
        if passed_on:
            tensor = tensor.view_as(tensor)
        place = self.now

        def due(_: torch.Tensor) -> None:
            for number in (self._places or {}).get(place, ()):
                thing = self.things.pop(number, None)
                if thing is not None:
                    thing.prepare()

        tensor.register_hook(due)
        return tensor

    def end(self, places: Mapping[int, Sequence[int]], last: Mapping[int, int]) -> None:
        """Ends the pass; from now on only things that have a place are kept."""
        self._places, self.last = places, last
        due = {number for numbers in places.values() for number in numbers}
        self.things = {number: self.things[number] for number in due}


class Agreement:
    """Where a program's tensors are rebuilt, the same in all its forward passes.

    `turns` are the places of instructions in backward, where that is not forward reversed. The
    ranks of `mesh`, by default all, run the program.
    """

    def __init__(
        self, turns: Mapping[int, int] | None = None, mesh: RankMesh | None = None
    ) -> None:
        self._turns = turns
        self._mesh = mesh
        self._places: dict[int, list[int]] | None = None
        self._last: dict[int, int] = {}

    def begin(self) -> ForwardPass:
        """Begins a forward pass."""
        return ForwardPass(self._places)

    def end(self, done: ForwardPass) -> None:
        """Ends a forward pass; the first call is collective."""
        if self._places is None:
            all_pairs = _gather_pairs((done.wanted, done.needed), self._mesh)
            differ = any(pairs != all_pairs[0] for pairs in all_pairs)
            self._places = agreed(all_pairs, self._turns) if differ else {}
            self._last = latest(all_pairs)
        done.end(self._places, self._last)


def latest(all_pairs: Sequence[tuple[Pairs, Pairs]]) -> dict[int, int]:
    """Maps each thing to the last instruction that saved something of it on any rank."""
    wanted = set().union(*(wanted for wanted, _ in all_pairs))
    last: dict[int, int] = {}
    for thing, instruction in wanted:
        last[thing] = max(instruction, last.get(thing, -1))
    return last


def agreed(
    all_pairs: Sequence[tuple[Pairs, Pairs]], turns: Mapping[int, int] | None = None
) -> dict[int, list[int]]:
    """Maps instructions to what all ranks rebuild before their backward, in order.

    `turns` as in `Agreement`.
    """
    needed = set().union(*(needed for _, needed in all_pairs))
    last = latest(all_pairs)
    users: dict[int, set[int]] = {}
    parts: dict[int, set[int]] = {}
    for thing, by in needed:
        users.setdefault(thing, set()).add(by)
        parts.setdefault(by, set()).add(thing)
    savers: dict[int, set[int]] = {}
    for thing, instruction in set().union(*(wanted for wanted, _ in all_pairs)):
        savers.setdefault(thing, set()).add(instruction)

    def late(instruction: int) -> int:
        """The later in forward, the earlier in backward; nothing is before all."""
        if turns is None or instruction < 0:
            return instruction if turns is None else -len(turns) - 1
        return -turns[instruction]

    def place(thing: int) -> int:
        of = [*savers.get(thing, ()), *(place(by) for by in users.get(thing, ()))]
        return max(of, key=late, default=-1)

    order: list[int] = []

    def put(thing: int) -> None:
        if thing not in order:
            for part in sorted(parts.get(thing, ())):
                put(part)
            order.append(thing)

    for thing in sorted({*last, *parts, *users}):
        put(thing)
    places: dict[int, list[int]] = {}
    for thing in order:
        if place(thing) >= 0:
            places.setdefault(place(thing), []).append(thing)
    return places


def _gather_pairs(mine: tuple[Pairs, Pairs], mesh: RankMesh | None) -> list[Any]:
    if not dist.is_initialized() or (mesh is not None and mesh.world_size == 1):
        return [mine]
    group = None if mesh is None else mesh.program_group
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, mine, group=group)
    return gathered
