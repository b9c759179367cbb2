"""The lists of a pipeline's stages: one order of transfers, which ends, and a checker that sees."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from harness.cases import every
from harness.tiers import examples
from shardwise.errors import ShardwiseError
from shardwise.pipeline.actions import Action, Kind
from shardwise.pipeline.lists import Item, Transfer, forward_only, lists_of, require_end
from shardwise.pipeline.schedules import SCHEDULES, allows, schedule

NAMES = ("gpipe", "1f1b", "1f1b-eager", "interleaved", "zb-h1", "zbv", "dualpipev")


def drawn(seed: int) -> tuple[tuple[Item, ...], ...]:
    """Returns the lists of a random pipeline: some cuts carry no gradient, or nothing."""
    chance = random.Random(seed)
    name = NAMES[seed % len(NAMES)]
    rule = SCHEDULES[name]
    ranks, each = chance.randint(2, 6), rule.stages_per_rank or chance.randint(1, 4)
    counts = [
        parts
        for parts in range(1, 16)
        if allows(name, ranks=ranks, micro_batches=parts, stages_per_rank=each)
    ]
    carries = [chance.random() < 0.9 for _ in range(ranks * each - 1)]
    returns = [there and chance.random() < 0.8 for there in carries]
    parts = chance.choice(counts)
    made = schedule(name, ranks=ranks, micro_batches=parts, stages_per_rank=each)
    return lists_of(made, carries, returns)


def test_every_transfer_is_begun_by_both_sides_in_one_order() -> None:

    def holds(seed: int) -> None:
        lists = drawn(seed)
        require_end(lists)
        for pair in combinations(range(len(lists)), 2):
            here, there = (
                [item for item in lists[r] if isinstance(item, Transfer) and item.ranks == pair]
                for r in pair
            )
            assert here == there
            assert [t.number for t in here] == sorted(t.number for t in here)

    every(range(examples(21, 60)), holds)


def test_tensors_are_sent_when_made_and_asked_for_one_action_ahead() -> None:

    def holds(seed: int) -> None:
        for items in drawn(seed):
            actions = [item for item in items if isinstance(item, Action)]
            stages = {action.stage for action in actions}
            done = 0
            for item in items:
                if isinstance(item, Action):
                    done += 1
                    continue
                sends = item.source in stages
                assert (item.target in stages) != sends
                kinds = (Kind.FORWARD,) if item.is_forward else (Kind.BACKWARD, Kind.INPUTS)
                stage = item.source if sends else item.target
                wanted = [(kind, stage, item.micro_batch) for kind in kinds]
                of = next(n for n, action in enumerate(actions) if action.work in wanted)
                if sends:
                    assert of == done - 1
                else:
                    # Sooner only where it was asked for before something that is sent.
                    assert of >= done

    every(range(examples(21, 60)), holds)


@pytest.mark.parametrize("name", NAMES[:5])
def test_a_step_without_gradients_has_forwards_only(name: str) -> None:
    made = forward_only(schedule(name, ranks=3, micro_batches=4))
    lists = lists_of(made, [True, True], [False, False])
    require_end(lists)
    actions = [str(item) for item in lists[1] if isinstance(item, Action)]
    assert actions == ["1F0", "1F1", "1F2", "1F3"]


def test_lists_in_different_orders_are_seen() -> None:
    made = schedule("1f1b", ranks=2, micro_batches=3)
    lists = [list(items) for items in lists_of(made, [True], [True])]
    places = [n for n, item in enumerate(lists[1]) if isinstance(item, Transfer)]
    lists[1][places[0]], lists[1][places[1]] = lists[1][places[1]], lists[1][places[0]]
    with pytest.raises(ShardwiseError, match=r"rank 0 begins .* where rank 1 begins"):
        require_end(lists)


def test_a_stage_that_waits_for_what_is_never_sent_is_seen() -> None:
    made = schedule("1f1b", ranks=2, micro_batches=1)
    first, second = lists_of(made, [True], [True])
    sends = [item for item in second if isinstance(item, Transfer) and item.source == 1]
    with pytest.raises(ShardwiseError, match="rank 0 waits for ever: 0B0 comes next"):
        require_end([first, [item for item in second if item not in sends]])


def test_a_transfer_that_one_side_alone_begins_is_seen() -> None:
    made = schedule("gpipe", ranks=2, micro_batches=2)
    first, second = lists_of(made, [True], [True])
    last = [item for item in second if isinstance(item, Transfer)][-1]
    lacking = [i for i in first if i != last and str(i) != "0B1"]
    with pytest.raises(ShardwiseError, match="rank 1 alone begins gradients of micro-batch 1"):
        require_end([lacking, second])
