"""What stages hold: micro-batches as the simulated step has them, and tensors on the way."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from shardwise.pipeline.actions import Kind
from shardwise.pipeline.lists import lists_of
from shardwise.pipeline.on_the_way import Held, on_the_way
from shardwise.pipeline.schedules import schedule
from shardwise.pipeline.simulate import StageTimes, simulate

NAMES = ("1f1b", "1f1b-eager", "gpipe")


@pytest.mark.parametrize("seed", range(30))
def test_it_is_what_the_simulated_step_keeps_and_what_the_lists_have_begun(seed: int) -> None:
    chance = random.Random(seed)
    stages, parts, name = chance.randint(2, 6), chance.randint(1, 12), NAMES[seed % 3]
    made = schedule(name, ranks=stages, micro_batches=parts)
    step = simulate(made, [StageTimes(1.0, 1.0, 0.0)] * stages)
    lists = lists_of(made, [True] * (stages - 1), [True] * (stages - 1))
    for stage, ways in enumerate(on_the_way(name, stages, parts)):
        assert max(held.kept for held in ways) == step.peak_kept(stage)
        # Every moment of the list, told anew: what has been asked for and not been done yet.
        done: Counter[Kind] = Counter()
        asked: Counter[bool] = Counter()
        for item in lists[stage]:
            if item.action is None:
                assert item.transfer is not None
                asked[item.transfer.is_forward] += item.transfer.target == stage
                continue
            forward = item.action.kind is Kind.FORWARD
            kept = done[Kind.FORWARD] + forward - done[Kind.BACKWARD]
            ahead = asked[True] - done[Kind.FORWARD] - forward if stage else 0
            gradients = asked[False] - done[Kind.BACKWARD] if stage < stages - 1 else 0
            now = Held(kept, ahead, gradients)
            assert any(all(a >= b for a, b in zip(w, now, strict=True)) for w in ways), now
            done[item.action.kind] += 1


def test_what_is_sent_counts_until_the_next_backward() -> None:
    first, last = on_the_way("1f1b", 2, 8)
    # In its last but one backward: what was just sent, the gradient that is read, and the last one.
    assert first == (Held(2, 0, 3),)
    # The next tensors, and the last gradient that was sent.
    assert last == (Held(1, 2, 0),)
    assert Held(2, 1, 1).of(10.0, 3.0, 0.5) == 2 * 10.0 + 3 * 3.0 + 0.5
    assert on_the_way("1f1b", 1, 4) == ((Held(1, 0, 0),),)
