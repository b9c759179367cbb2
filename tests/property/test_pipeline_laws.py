"""Laws of pipelines' schedules: everything is done once, nobody waits for ever, formulas hold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from shardwise.errors import BadInput
from shardwise.pipeline.actions import Action, Kind, Schedule
from shardwise.pipeline.dependencies import Work, check
from shardwise.pipeline.formulas import (
    bubble_s,
    gpipe_s,
    least_s,
    one_forward_one_backward_s,
    period_s,
)
from shardwise.pipeline.keeping import keeping
from shardwise.pipeline.placement import Placement
from shardwise.pipeline.schedules import SCHEDULES, round_of, schedule
from shardwise.pipeline.simulate import StageTimes, Step, simulate

ROUNDING = 1e-9
EQUAL = StageTimes(2.0, 2.0, 2.0)


def run(made: Schedule, of_rank: StageTimes = EQUAL) -> Step:
    """The step with equal ranks and no hops; a rank's stages share its time."""
    chunks = made.placement.stages_per_rank
    of_stage = StageTimes(*(seconds / chunks for seconds in of_rank))
    return simulate(made, [of_stage] * made.stages)


def drawn(draw: random.Random, name: str, *, most_ranks: int = 6, most: int = 24) -> Schedule:
    """A schedule of random size."""
    chunks = SCHEDULES[name].stages_per_rank or draw.randint(1, 4)
    while True:
        ranks, micro_batches = draw.randint(1, most_ranks), draw.randint(1, most)
        try:
            return schedule(name, ranks=ranks, stages_per_rank=chunks, micro_batches=micro_batches)
        except BadInput:
            continue


def unequal(draw: random.Random, stages: int) -> tuple[list[StageTimes], list[float]]:
    times = [StageTimes(*(draw.uniform(0.0, 2.0) for _ in range(3))) for _ in range(stages)]
    longest = draw.choice((0.0, 0.3, 1.0, 3.0))
    return times, [draw.uniform(0.0, longest) for _ in range(stages - 1)]


def arrival(made: Schedule, action: Action, ends: dict[Work, float], hops_s: list[float]) -> float:
    """When an action has what it needs: of its own stage, and of the one before or behind."""
    kind, stage, micro_batch = action.work
    if kind is Kind.WEIGHTS:
        return ends[Kind.INPUTS, stage, micro_batch]
    own, other, makers = 0.0, stage - 1, [Kind.FORWARD]
    if kind is not Kind.FORWARD:
        own, other = ends[Kind.FORWARD, stage, micro_batch], stage + 1
        makers = [Kind.BACKWARD, Kind.INPUTS]
    if not 0 <= other < made.stages:
        return own
    rank_of = made.placement.rank_of
    hop_s = hops_s[min(stage, other)] if rank_of(stage) != rank_of(other) else 0.0
    (come,) = (ends[m, other, micro_batch] for m in makers if (m, other, micro_batch) in ends)
    return max(own, come + hop_s)


@pytest.mark.parametrize("name", SCHEDULES)
def test_everything_is_done_once_in_an_order_that_ends(name: str) -> None:
    draw = random.Random(name)
    for _ in range(60):
        made = drawn(draw, name)
        check(made)
        times, hops_s = unequal(draw, made.stages)
        step = simulate(made, times, hops_s)
        ends = {
            action.work: end
            for actions, spans in zip(made.ranks, step.spans_s, strict=True)
            for action, (_, end) in zip(actions, spans, strict=True)
        }
        for rank, (actions, spans) in enumerate(zip(made.ranks, step.spans_s, strict=True)):
            busy, before = 0.0, 0.0
            for action, (start, end) in zip(actions, spans, strict=True):
                assert start == max(before, arrival(made, action, ends, hops_s))
                busy, before = busy + end - start, end
            assert step.idle_s[rank] == pytest.approx(step.seconds - busy, abs=1e-9)
        assert all(of_stage[-1][1:] == (0, 0) for of_stage in step.held)
        assert step.seconds == max(ends.values())


@pytest.mark.parametrize(
    "times", [EQUAL, StageTimes(1, 5, 3), StageTimes(3, 1, 2), StageTimes(2, 4, 1)]
)
def test_bubbles_are_those_of_the_formulas(times: StageTimes) -> None:
    holds = 0
    for name, rule in SCHEDULES.items():
        for ranks in (1, 2, 3, 4, 7):
            for micro_batches in (1, 2, 4, 7, 8, 13, 21):
                for chunks in (1, 2, 3) if rule.stages_per_rank is None else (None,):
                    try:
                        made = schedule(
                            name,
                            ranks=ranks,
                            stages_per_rank=chunks,
                            micro_batches=micro_batches,
                        )
                    except BadInput:
                        continue
                    bubble = bubble_s(
                        name,
                        times,
                        ranks=ranks,
                        micro_batches=micro_batches,
                        stages_per_rank=made.placement.stages_per_rank,
                    )
                    if bubble is not None:
                        seconds = run(made, times).seconds
                        assert seconds == pytest.approx(micro_batches * sum(times) + bubble), made
                        holds += 1
    assert holds > 200


def test_what_each_rank_keeps() -> None:
    for ranks in (1, 2, 3, 5):
        for n in (1, 2, 3, 5, 9, 10, 15):
            behind = [ranks - 1 - rank for rank in range(ranks)]
            gpipe = run(schedule("gpipe", ranks=ranks, micro_batches=n))
            assert gpipe.rank_peaks == (n,) * ranks
            one = run(schedule("1f1b", ranks=ranks, micro_batches=n))
            assert [one.peak_kept(s) for s in range(ranks)] == [min(n, 1 + k) for k in behind]
            eager = run(schedule("1f1b-eager", ranks=ranks, micro_batches=n))
            assert [eager.peak_kept(s) for s in range(ranks)] == [min(n, 1 + 2 * k) for k in behind]
            v = run(schedule("zbv", ranks=ranks, micro_batches=n))
            if n >= 2 * ranks - 1:
                assert v.rank_peaks == (2 * ranks,) * ranks
            if n >= 2 * ranks:
                dual = run(schedule("dualpipev", ranks=ranks, micro_batches=n))
                assert dual.rank_peaks == (2 * ranks + 1,) * ranks
            if n % max(1, n // ranks):
                continue
            h1 = run(schedule("zb-h1", ranks=ranks, micro_batches=n))
            assert [h1.peak_kept(s) for s in range(ranks)] == [min(n, 1 + k) for k in behind]
            assert max(h1.peak_held(s) for s in range(ranks)) <= ranks
            for chunks in (2, 3):
                made = schedule("interleaved", ranks=ranks, stages_per_rank=chunks, micro_batches=n)
                ahead = (chunks - 1) * round_of(ranks, n)
                peaks = tuple(min(ahead + 2 * k + 1, chunks * n) for k in behind)
                assert run(made).rank_peaks == peaks


def test_what_lists_keep_is_what_steps_keep() -> None:
    """Of every moment of a rank's list, against the step as it is run with unequal times."""
    for name, chunks in (("1f1b", 1), ("1f1b-eager", 1), ("gpipe", 1), ("interleaved", 3)):
        for ranks, n in ((1, 4), (2, 4), (3, 6), (4, 8), (4, 16)):
            keeps = keeping(name, ranks, n, chunks)
            made = keeps.order
            assert made == schedule(name, ranks=ranks, stages_per_rank=chunks, micro_batches=n)
            times = [StageTimes(1.0 + s % 3, 0.5 + s % 2, 1.0) for s in range(made.stages)]
            step = simulate(made, times)
            for rank, moments in enumerate(keeps.moments):
                own = made.placement.stages_of(rank)
                assert moments.kept.max(axis=0).tolist() == [step.peak_kept(s) for s in own]
                assert int(moments.kept.sum(axis=1).max()) == step.rank_peaks[rank]
                # The stage that runs has a micro-batch itself.
                assert (moments.kept[moments.action, moments.place] > 0).all()


def test_with_a_split_backward_micro_batches_are_kept_until_their_gradients_are_sent() -> None:
    keeps = keeping("zb-h1", 2, 4, 1)
    step = simulate(keeps.order, [StageTimes(1.0, 0.5, 1.0)] * 2)
    kept = [int(moments.kept.max()) for moments in keeps.moments]
    assert kept == [2, 1] == [step.peak_kept(stage) for stage in range(2)]


def test_what_a_stage_holds_over_time() -> None:
    step = run(schedule("zb-h1", ranks=2, micro_batches=3))
    assert step.held[1] == (
        (0.0, 0, 0),
        (2.0, 1, 0),  # F0 begins, once stage 0 has ended its own
        (6.0, 0, 1),  # I0 has ended, W0 is put off
        (6.0, 1, 1),
        (10.0, 0, 2),
        (12.0, 0, 1),  # W0 has ended
        (12.0, 1, 1),
        (16.0, 0, 2),
        (18.0, 0, 1),
        (20.0, 0, 0),
    )
    assert (step.peak_kept(1), step.peak_held(1), step.rank_peaks) == (1, 2, (2, 2))
    assert (step.seconds, step.idle_s) == (20.0, (2.0, 2.0))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_better_schedules_have_smaller_bubbles(ranks: int) -> None:
    times, n = StageTimes(2.0, 3.0, 2.0), 4 * ranks

    def bubble(name: str, chunks: int | None = None) -> float:
        made = schedule(name, ranks=ranks, stages_per_rank=chunks, micro_batches=n)
        return run(made, times).seconds - n * sum(times)

    assert bubble("1f1b") == pytest.approx(bubble("gpipe"))
    for chunks in (1, 2, 3):
        assert bubble("interleaved", chunks) == pytest.approx(bubble("1f1b") / chunks)
        assert bubble("zb-h1", chunks) < bubble("interleaved", chunks)
    assert bubble("zbv") < bubble("zb-h1")


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_zero_bubbles_lie_between_a_ranks_own_first_and_last_action(ranks: int) -> None:
    for n in (2 * ranks - 1, 3 * ranks, 20):
        for spans in run(schedule("zbv", ranks=ranks, micro_batches=n)).spans_s:
            assert all(end == start for (_, end), (start, _) in pairwise(spans))


def random_pipelines(
    seed: int, many: int
) -> Iterator[tuple[int, int, list[StageTimes], list[float]]]:
    draw = random.Random(seed)
    for _ in range(many):
        ranks = draw.randint(2, 6)
        yield ranks, draw.randint(1, 40), *unequal(draw, ranks)


def test_formulas_of_unequal_stages() -> None:
    for ranks, n, times, hops_s in random_pipelines(7, 60):
        seconds = {
            name: simulate(schedule(name, ranks=ranks, micro_batches=n), times, hops_s).seconds
            for name in ("gpipe", "1f1b", "1f1b-eager")
        }
        assert seconds["gpipe"] == pytest.approx(gpipe_s(times, hops_s, n))
        least = least_s(times, hops_s, n, split=False)
        assert min(seconds.values()) >= least * (1 - ROUNDING)
        assert least >= least_s(times, hops_s, n, split=True) * (1 - ROUNDING)
        for name, window, above in (("1f1b", 1, 1.01), ("1f1b-eager", 2, 1.04)):
            estimate = one_forward_one_backward_s(times, hops_s, n, window)
            assert (0.85 if n >= 20 else 0.7) <= seconds[name] / estimate <= above


def test_no_split_schedule_undercuts_its_bound_and_some_undercut_the_unsplit_one() -> None:
    below = 0
    for ranks, n, times, hops_s in random_pipelines(8, 60):
        n -= n % ranks if n > ranks else 0
        made = schedule("zb-h1", ranks=ranks, micro_batches=n)
        seconds = simulate(made, times, hops_s).seconds
        assert seconds >= least_s(times, hops_s, n, split=True) * (1 - ROUNDING)
        below += seconds < least_s(times, hops_s, n, split=False)
    assert below


def test_a_slow_hop_is_paid_in_every_period_and_half_as_much_when_eager() -> None:
    times, hops_s = [EQUAL] * 2, [9.0]
    for name, window, period in (("1f1b", 1, 15.0), ("1f1b-eager", 2, 10.0)):
        assert period_s(times, hops_s, window) == period
        few, many = (
            simulate(schedule(name, ranks=2, micro_batches=n), times, hops_s).seconds
            for n in (30, 60)
        )
        assert (many - few) / 30 == pytest.approx(period)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_faster_hop_never_slows(name: str) -> None:
    draw = random.Random(name)
    for _ in range(10):
        made = drawn(draw, name)
        times, hops_s = unequal(draw, made.stages)
        faster = [hop * draw.random() for hop in hops_s]
        assert simulate(made, times, faster).seconds <= simulate(made, times, hops_s).seconds


def test_ranks_that_wait_for_each_other_are_named() -> None:
    made = crossed()
    check(made)
    with pytest.raises(BadInput, match=r"ranks\[0\]\[1\]: rank 0 waits with 0B0 for 1B0 or 1I0"):
        run(made)


def crossed() -> Schedule:
    """Rank 0 waits for a gradient, rank 1 for the second micro-batch before it makes that."""
    first = (Action(Kind.FORWARD, 0, 0), Action(Kind.BACKWARD, 0, 0), Action(Kind.FORWARD, 0, 1))
    second = (Action(Kind.FORWARD, 1, 0), Action(Kind.FORWARD, 1, 1), Action(Kind.BACKWARD, 1, 0))
    rest = [(Action(Kind.BACKWARD, stage, 1),) for stage in range(2)]
    return Schedule("crossed", Placement(2), 2, (first + rest[0], second + rest[1]))


@pytest.mark.parametrize(
    ("times", "hops_s", "message"),
    [
        ([EQUAL], None, "times: has 1 entries for 2 stages (expected 2)"),
        ([EQUAL, EQUAL], [1.0, 1.0], "hops_s: has 2 entries for 2 stages (expected 1)"),
        ([EQUAL, StageTimes(1.0, -1.0, 0.0)], None, "times[1]: -1.0 is not a duration"),
        ([EQUAL, EQUAL], [float("nan")], "hops_s[0]: nan is not a duration"),
    ],
)
def test_times_that_are_refused(
    times: list[StageTimes], hops_s: list[float] | None, message: str
) -> None:
    with pytest.raises(BadInput) as refused:
        simulate(schedule("1f1b", ranks=2, micro_batches=2), times, hops_s)
    assert message in str(refused.value)
