"""Orders of instructions: forward from a list of operators, backward in stretches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from shardwise.execute.instruction import Instruction
from shardwise.execute.order import BackwardOrder, backward_order, in_order

pytestmark = pytest.mark.torch


def instruction(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Instruction:
    """Returns an operator; what moves a tensor has a name with a space, and no tensors."""
    one = Instruction(name, lambda *x: x, inputs, outputs)
    one.tensors = () if " " in name else (name,)
    return one


def diamond() -> list[Instruction]:
    """a → (b, move → c → d) → e; slot 9 is a parameter that b and d read."""
    return [
        instruction("a", (0,), (1,)),
        instruction("b", (1, 9), (2,)),
        instruction("move 1", (1,), (3,)),
        instruction("c", (3,), (4,)),
        instruction("d", (4, 9), (5,)),
        instruction("e", (2, 5), (6,)),
        instruction("move 6", (6,), (7,)),
    ]


def names(instructions: list[Instruction], order: BackwardOrder) -> list[list[str]]:
    return [[instructions[n].name for n in s.instructions] for s in order.stretches]


def test_moves_come_just_before_their_first_reader() -> None:
    listed = in_order(diamond(), ["a", "c", "d", "b", "e"])
    assert [i.name for i in listed] == ["a", "move 1", "c", "d", "b", "e", "move 6"]
    same = diamond()
    assert [i.name for i in in_order(same, ["a", "b", "c", "d", "e"])] == [i.name for i in same]


def test_forward_reversed_is_one_stretch_and_nothing_is_cut() -> None:
    listed = diamond()
    order = backward_order(listed, [9], [7], ["e", "d", "c", "b", "a"])
    assert names(listed, order) == [["move 6", "e", "d", "c", "move 1", "b", "a"]]
    assert not order.entries and order.cut == {7}


def test_another_order_begins_stretches() -> None:
    listed = diamond()
    order = backward_order(listed, [9], [7], ["e", "b", "d", "c", "a"])
    assert names(listed, order) == [["move 6", "e", "b"], ["d", "c", "move 1", "a"]]
    # b reads what a makes; the parameter is whole after d.
    assert order.stretch_of[1] == 0 and order.parameters[9] == 1
    assert {n: list(slots) for n, slots in order.entries.items()} == {1: [1, 9], 5: [5]}
    assert order.cut == {1, 5, 7, 9}
    turns = sorted(order.turns, key=order.turns.__getitem__)
    assert [listed[n].name for n in turns] == ["move 6", "e", "b", "d", "c", "move 1", "a"]


def drawn(draw: np.random.Generator) -> tuple[list[Instruction], list[str], list[str]]:
    """Returns a random graph's instructions, and orders of its operators: forward, backward."""
    count = int(draw.integers(3, 12))
    made: list[Instruction] = []
    before: dict[int, set[int]] = {}
    slot = 100
    for n in range(count):
        sources = sorted(set(draw.integers(0, n, int(draw.integers(1, 4))).tolist())) if n else []
        before[n] = set(sources)
        inputs = [s + 1 for s in sources] or [0]
        for k, source in enumerate(inputs):
            if draw.random() < 0.4:
                made.append(instruction(f"move {source} for {n}", (source,), (slot,)))
                inputs[k], slot = slot, slot + 1
        made.append(instruction(f"op{n}", tuple(inputs), (n + 1,)))
    forward = topological(before, draw)
    after = {n: {m for m in before if n in before[m]} for n in before}
    return made, [f"op{n}" for n in forward], [f"op{n}" for n in topological(after, draw)]


def topological(before: dict[int, set[int]], draw: np.random.Generator) -> list[int]:
    order: list[int] = []
    while len(order) < len(before):
        ready = [n for n in before if n not in order and before[n] <= set(order)]
        order.append(int(draw.choice(ready)))
    return order


def meet(programs: list[list[int]], members: dict[int, set[int]]) -> int:
    """Runs ranks' calls of collectives, each of which waits for all its members; returns how many
    calls are left when nothing moves any more."""
    at = [0] * len(programs)
    moved = True
    while moved:
        moved = False
        for rank, calls in enumerate(programs):
            if at[rank] == len(calls):
                continue
            call = calls[at[rank]]
            waiting = {r for r in members[call] if at[r] < len(programs[r])}
            if all(programs[r][at[r]] == call for r in waiting) and waiting == members[call]:
                for r in waiting:
                    at[r] += 1
                moved = True
    return sum(len(calls) - n for calls, n in zip(programs, at, strict=True))


def test_what_ranks_call_is_part_of_one_order() -> None:
    """10,000 random projections: every rank has some instructions, those of others are left out;
    each instruction of several ranks is a collective, forward and backward."""
    draw = np.random.default_rng(11)
    projections = 0
    while projections < 10_000:
        instructions, forward, backward = drawn(draw)
        listed = in_order(instructions, forward)
        assert sorted(i.name for i in listed) == sorted(i.name for i in instructions)
        assert [i.name for i in listed if i.tensors] == forward
        order = backward_order(listed, [], [len(forward)], backward)
        turns = sorted(order.turns, key=order.turns.__getitem__)
        assert sorted(turns) == list(range(len(listed)))
        ranks = int(draw.integers(2, 6))
        members: dict[int, set[int]] = {}
        for n in range(len(listed)):
            some = draw.choice(ranks, int(draw.integers(1, ranks + 1)), replace=False)
            members[n] = {int(r) for r in some}
        check_backward(listed, order, turns, backward)
        for sequence in (list(range(len(listed))), turns):
            programs = [[n for n in sequence if rank in members[n]] for rank in range(ranks)]
            assert meet(programs, members) == 0
            projections += ranks


def check_backward(
    listed: list[Instruction], order: BackwardOrder, turns: list[int], backward: list[str]
) -> None:
    """A gradient is whole before it is used, and operators run in the order of the list."""
    assert [listed[n].name for n in turns if listed[n].tensors] == backward
    position = {n: turn for turn, n in enumerate(turns)}
    makers = {slot: n for n, i in enumerate(listed) for slot in i.outputs}
    for n, one in enumerate(listed):
        for slot in one.inputs:
            if slot in makers:
                assert position[n] < position[makers[slot]]
                crosses = order.stretch_of[n] != order.stretch_of[makers[slot]]
                assert (slot in order.entries.get(n, ())) == crosses
    for stretch in order.stretches:
        assert stretch.instructions == sorted(stretch.instructions, reverse=True)


def test_calls_in_two_orders_do_not_meet() -> None:
    """The simulated meeting tells: two ranks that call two collectives each first wait for ever."""
    both: Any = {0: {0, 1}, 1: {0, 1}}
    assert meet([[0, 1], [0, 1]], both) == 0
    assert meet([[0, 1], [1, 0]], both) == 4
