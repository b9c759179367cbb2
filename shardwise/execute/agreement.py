"""What backward makes again it makes at one place on every rank.

Making a tensor again communicates, so all ranks must do it between the same collectives. But when
it is wanted first is not the same everywhere: of a tensor that is made again autograd saves here a
view, there a copy, for kernels copy or not by strides and extents of the local part, and operators
on shares by the rank's place on the mesh (the first rank's offset is 0).

So ranks tell each other after their first forward pass which instructions saved what. Where they
differ, each thing is made before the backward of the last instruction that wants it on any rank;
where nobody differs, when it is first wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

Pairs = set[tuple[int, int]]


class Thing(Protocol):
    """A tensor, or all tensors of a segment."""

    def prepare(self) -> None:
        """Make it again, unless it is there; keep it only for those on this rank who want it."""
        ...


class ForwardPass:
    """The things of one forward pass, numbered as they come, and who wants them.

    `now` is the instruction that runs.
    """

    def __init__(self, places: Mapping[int, Sequence[int]] | None) -> None:
        self.now = -1
        self.things: dict[int, Thing] = {}
        self.wanted: Pairs = set()
        """Thing, instruction that saved it."""
        self.needed: Pairs = set()
        """Thing, thing that is made from it."""
        self._places = places

    def add(self, thing: Thing) -> int:
        """Its number."""
        self.things[len(self.things)] = thing
        return len(self.things) - 1

    def watch(self, inputs: Sequence[Any], made: Sequence[Any]) -> Sequence[Any]:
        """What the present instruction made, such that its backward begins with what is due then.

        In the first pass nobody knows yet what that will be.
        """
        if self._places is not None and self.now not in self._places:
            return made
        given = {id(tensor) for tensor in inputs}
        return [self._watched(tensor, id(tensor) in given) for tensor in made]

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

    def end(self, places: Mapping[int, Sequence[int]]) -> None:
        """The pass is over; from now on things are kept only for their places."""
        self._places = places
        due = {number for numbers in places.values() for number in numbers}
        self.things = {number: self.things[number] for number in due}


class Agreement:
    """Where the things of a program are made, the same in all its forward passes."""

    def __init__(self) -> None:
        self._places: dict[int, list[int]] | None = None

    def begin(self) -> ForwardPass:
        """A forward pass begins."""
        return ForwardPass(self._places)

    def end(self, done: ForwardPass) -> None:
        """A forward pass is over; after the first one collective."""
        if self._places is None:
            everybody = _everybody((done.wanted, done.needed))
            differ = any(found != everybody[0] for found in everybody)
            self._places = agreed(everybody) if differ else {}
        done.end(self._places)


def agreed(everybody: Sequence[tuple[Pairs, Pairs]]) -> dict[int, list[int]]:
    """By instruction the things to make before its backward, in order; of all ranks' pairs."""
    wanted = set().union(*(wanted for wanted, _ in everybody))
    needed = set().union(*(needed for _, needed in everybody))
    latest: dict[int, int] = {}
    for thing, instruction in wanted:
        latest[thing] = max(instruction, latest.get(thing, -1))
    users: dict[int, set[int]] = {}
    parts: dict[int, set[int]] = {}
    for thing, by in needed:
        users.setdefault(thing, set()).add(by)
        parts.setdefault(by, set()).add(thing)

    def place(thing: int) -> int:
        return max([latest.get(thing, -1), *(place(by) for by in users.get(thing, ()))])

    order: list[int] = []

    def put(thing: int) -> None:
        if thing not in order:
            for part in sorted(parts.get(thing, ())):
                put(part)
            order.append(thing)

    for thing in sorted({*latest, *parts, *users}):
        put(thing)
    places: dict[int, list[int]] = {}
    for thing in order:
        if place(thing) >= 0:
            places.setdefault(place(thing), []).append(thing)
    return places


def _everybody(mine: tuple[Pairs, Pairs]) -> list[Any]:
    if not dist.is_initialized():
        return [mine]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found
