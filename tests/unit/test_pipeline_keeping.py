"""What ranks hold: micro-batches as the simulated step has them, tensors on the way, gradients."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from harness.cases import every
from harness.tiers import examples
from shardwise.pipeline.actions import Kind
from shardwise.pipeline.keeping import BACKWARD, FIRST, FORWARD, LAST, WEIGHTS, Moments, keeping
from shardwise.pipeline.lists import Transfer, lists_of
from shardwise.pipeline.schedules import SCHEDULES, allows
from shardwise.pipeline.simulate import StageTimes, simulate

NAMES = tuple(SCHEDULES)


def drawn(seed: int) -> tuple[str, int, int, int]:
    """Returns a name and sizes that the schedule allows."""
    chance, name = random.Random(seed), NAMES[seed % len(NAMES)]
    each = SCHEDULES[name].stages_per_rank or chance.randint(1, 3)
    while True:
        ranks, parts = chance.randint(2, 5), chance.randint(1, 16)
        if allows(name, ranks=ranks, micro_batches=parts, stages_per_rank=each):
            return name, ranks, parts, each


def way(moments: Moments) -> list[tuple[int, int]]:
    """Returns what is on the way at each moment of a rank with one stage: before and behind."""
    return list(zip(moments.before[:, 0].tolist(), moments.behind[:, 0].tolist(), strict=True))


def test_micro_batches_are_those_of_the_simulated_step() -> None:

    def holds(seed: int) -> None:
        keeps = keeping(*drawn(seed))
        made = keeps.order
        step = simulate(made, [StageTimes(1.0, 1.2, 0.7)] * made.stages)
        for rank, moments in enumerate(keeps.moments):
            held = (moments.kept + moments.waiting).sum(axis=1)
            assert held.max() == step.rank_peaks[rank]
            for place, stage in enumerate(made.placement.stages_of(rank)):
                assert moments.kept[:, place].max() == step.peak_kept(stage)
            rows = np.arange(len(held))
            running = np.where(
                moments.part == WEIGHTS,
                moments.waiting[rows, moments.place],
                moments.kept[rows, moments.place],
            )
            assert (running > 0).all() and min(of.min() for of in moments) >= 0

    every(range(examples(21, 70)), holds)


def test_tensors_are_held_while_they_may_be_on_their_way() -> None:
    """Every moment of the list, told anew: what was asked for and not used yet, what was sent and
    is not known to have come, and what waits for the rank's other stages."""

    def holds(seed: int) -> None:
        keeps = keeping(*drawn(seed))
        made, every = keeps.order, [True] * (keeps.order.stages - 1)
        for rank, items in enumerate(lists_of(made, every, every)):
            own, moments = made.placement.stages_of(rank), keeps.moments[rank]
            there: set[tuple[int, bool, int]] = set()
            asked: dict[tuple[int, bool, int], Transfer] = {}
            sent: list[tuple[Transfer, int]] = []
            calls, number = 0, -1
            for item in items:
                if isinstance(item, Transfer):
                    if item.target in own:
                        asked[item.target, item.is_forward, item.micro_batch] = item
                        there.add((item.target, item.is_forward, item.micro_batch))
                    else:
                        sent.append((item, calls))
                    continue
                number += 1
                kind, stage, part, _ = item
                forward = kind is Kind.FORWARD
                if kind is not Kind.WEIGHTS:
                    calls += 1
                    come = asked.pop((stage, forward, part), None)
                    if come is not None:
                        sent = [
                            (one, at)
                            for one, at in sent
                            if one.ranks != come.ranks
                            or one.number > come.number
                            or at >= calls - 1
                        ]
                if forward:
                    there.discard((stage, True, part))
                counts: Counter[tuple[int, bool]] = Counter((s, f) for s, f, _ in there)
                counts.update((one.source, not one.is_forward) for one, _ in sent)
                for row in np.flatnonzero(moments.action == number).tolist():
                    if moments.part[row] == WEIGHTS and kind is Kind.BACKWARD:
                        continue  # W after its I: the gradient that I has read is gone.
                    assert moments.before[row].tolist() == [counts[s, True] for s in own]
                    assert moments.behind[row].tolist() == [counts[s, False] for s in own]
                if kind in (Kind.BACKWARD, Kind.INPUTS):
                    there.discard((stage, False, part))
                    if stage - 1 in own:
                        there.add((stage - 1, False, part))
                if forward and stage + 1 in own:
                    there.add((stage + 1, True, part))

    every(range(examples(21, 70)), holds)


def test_what_is_sent_is_held_until_something_later_comes_back() -> None:
    first, last = keeping("1f1b", 2, 8, 1).moments
    # In its last but one backward: what was just sent, the gradient that is read, and the last one.
    assert max(behind for _, behind in way(first)) == 3
    assert way(last)[3] == (2, 0)  # the next tensors, and the last gradient that was sent
    # Eager 1F1B asks for tensors earlier, so the last but one gradient is not known to have come.
    _, eager = keeping("1f1b-eager", 2, 8, 1).moments
    assert max(before for before, _ in way(eager)) == 4
    # Nothing comes after gradients of GPipe: all are held to the end.
    _, gpipe = keeping("gpipe", 2, 8, 1).moments
    assert way(gpipe)[-1] == (7, 0)
    assert way(keeping("1f1b", 1, 4, 1).moments[0]) == [(0, 0)] * 8


def test_gradients_are_there_from_the_first_backward_on() -> None:
    (moments,) = keeping("gpipe", 1, 4, 1).moments
    assert moments.turn.tolist() == [FIRST] * 5 + [1, 1, LAST]
    assert not moments.gradients.any() and not moments.weights_gradients.any()
    # Of rank 0's stages 0 and 2 the latter has gradients first: while the former runs, they count.
    moments = keeping("interleaved", 2, 4, 2).moments[0]
    begun = int(np.flatnonzero(moments.part == BACKWARD)[0])
    assert moments.place[begun] == 1 and not moments.gradients[: begun + 1].any()
    later = moments.place[begun + 1 :] == 0
    assert (moments.gradients[begun + 1 :, 1] == later).all()
    assert (moments.turn[moments.part == FORWARD][-1:] == 1).all()
    # An I before the first W has those of other I's beside its own pass.
    (_, last) = keeping("zb-h1", 2, 4, 1).moments
    early = (last.turn == FIRST) & (last.part == BACKWARD)
    assert last.gradients[early, 0].tolist() == [0, 1] and not last.weights_gradients.any()


def test_moments_are_told_apart_once() -> None:
    keeps = keeping("1f1b", 4, 64, 1)
    for moments, distinct in zip(keeps.moments, keeps.distinct, strict=True):
        assert len(distinct.action) <= 40 < len(moments.action)
        rows = {tuple(row) for row in np.concatenate(moments[4:], axis=1).tolist()}
        assert {tuple(row) for row in np.concatenate(distinct[4:], axis=1).tolist()} == rows
