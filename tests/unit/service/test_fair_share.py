"""The fair order played through over any queue: shares by weight, and no tenant starves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as some

from service.questions.fair_order import AGEING, Share, Slots, Waiting, places, turn_s

COST_S = some.floats(0.1, 600.0)
WEIGHT = some.sampled_from((0.01, 0.5, 1.0, 3.0, 100.0))
JOBS = some.lists(
    some.tuples(some.sampled_from("abcd"), some.integers(-10, 10), COST_S, some.floats(0, 1e4)),
    max_size=40,
)


def queued(jobs: list[tuple[str, int, float, float]]) -> list[Waiting]:
    return [
        Waiting(f"{n}", tenant, priority, cost_s, turn_s(cost_s, created_at))
        for n, (tenant, priority, cost_s, created_at) in enumerate(jobs)
    ]


def backlog(tenant: str, count: int, cost_s: float = 1.0) -> list[Waiting]:
    return [Waiting(f"{tenant}{n:03}", tenant, 0, cost_s, cost_s + n) for n in range(count)]


@given(jobs=JOBS, weights=some.tuples(WEIGHT, WEIGHT, WEIGHT, WEIGHT), slots=some.integers(1, 5))
def test_every_job_has_one_place_and_starts(
    jobs: list[tuple[str, int, float, float]], weights: tuple[float, ...], slots: int
) -> None:
    shares = {tenant: Share(0.0, weight) for tenant, weight in zip("abcd", weights, strict=True)}
    waiting = queued(jobs)
    placed = places(waiting, shares, Slots((0.0,) * slots))
    assert sorted(place.place for place in placed.values()) == list(range(1, len(jobs) + 1))
    for job in waiting:
        assert placed[job.id].ends_s == placed[job.id].starts_s + job.cost_s < float("inf")
        first = [o for o in waiting if o.tenant == job.tenant and o.order < job.order]
        assert placed[job.id].before == len(first), "a tenant's own jobs keep their order"
    by_place = sorted(placed.values(), key=lambda each: each.place)
    starts = [place.starts_s for place in by_place]
    assert starts == sorted(starts), "who is before starts before"


@given(
    costs=some.tuples(some.floats(0.1, 50.0), some.floats(0.1, 50.0)),
    weights=some.tuples(some.sampled_from((1.0, 3.0)), some.sampled_from((1.0, 3.0))),
)
def test_while_both_wait_their_shares_are_within_one_job(
    costs: tuple[float, float], weights: tuple[float, float]
) -> None:
    """However long a tenant's jobs are: what it has had over its weight stays near the other's."""
    waiting = backlog("a", 60, costs[0]) + backlog("b", 60, costs[1])
    shares = {"a": Share(0.0, weights[0]), "b": Share(0.0, weights[1])}
    placed = places(waiting, shares, Slots((0.0,)))
    had = {"a": 0.0, "b": 0.0}
    left = {"a": 60, "b": 60}
    cost_of = dict(zip("ab", costs, strict=True))
    weight_of = dict(zip("ab", weights, strict=True))
    for job in sorted(waiting, key=lambda each: placed[each.id].place):
        had[job.tenant] += cost_of[job.tenant] / weight_of[job.tenant]
        left[job.tenant] -= 1
        assert abs(had["a"] - had["b"]) <= max(
            cost_of[tenant] / weight_of[tenant] for tenant in "ab"
        ) * (1 + 1e-9)
        if not all(left.values()):
            break


def test_weights_of_one_and_three_share_one_to_three() -> None:
    placed = places(
        backlog("a", 100) + backlog("b", 100),
        {"a": Share(0.0, 1.0), "b": Share(0.0, 3.0)},
        Slots((0.0, 0.0)),
    )
    first = Counter(job_id[0] for job_id, place in placed.items() if place.place <= 80)
    assert abs(first["a"] - 20) <= 1 and abs(first["b"] - 60) <= 1


@given(ahead=some.integers(0, 200), least=some.floats(0.1, 5.0))
def test_a_newcomer_is_next_whatever_another_has_asked(ahead: int, least: float) -> None:
    waiting = [*backlog("a", ahead), Waiting("b", "b", 0, least, least)]
    placed = places(waiting, {"a": Share(50.0), "b": Share(50.0 - 1e-3)}, Slots((7.0,)))
    assert (placed["b"].place, placed["b"].starts_s) == (1, 7.0)


@given(cost_s=COST_S, short_s=some.floats(0.1, 1.0))
def test_ageing_lets_no_stream_of_short_jobs_starve_a_long_one(
    cost_s: float, short_s: float
) -> None:
    """Short ones that come later than the difference in cost over the ageing come after it."""
    long = Waiting("long", "a", 0, cost_s, turn_s(cost_s, 0.0))
    late_s = max(cost_s - short_s, 0.0) / AGEING + 1e-3
    later = [Waiting(f"{n}", "a", 0, short_s, turn_s(short_s, late_s + n / 10)) for n in range(20)]
    assert places([*later, long], {}, Slots((0.0,)))["long"].place == 1


def test_a_slot_for_short_jobs_takes_only_those() -> None:
    waiting = [*backlog("a", 3, 100.0), *backlog("b", 2, 1.0)]
    placed = places(waiting, {}, Slots((500.0,), (0.0,), 10.0))
    assert [placed[f"b{n:03}"].starts_s for n in range(2)] == [0.0, 1.0]
    assert [placed[f"a{n:03}"].starts_s for n in range(3)] == [500.0, 600.0, 700.0]


def test_without_a_worker_there_is_a_place_and_no_start() -> None:
    placed = places(backlog("a", 2), {}, Slots(()))
    assert [placed[f"a{n:03}"].place for n in range(2)] == [1, 2]
    assert placed["a000"].starts_s == float("inf")
