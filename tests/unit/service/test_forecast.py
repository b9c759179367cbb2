"""When a running job will end, by its estimate and its progress."""

from __future__ import annotations

from pytest import approx

from service.questions.forecast import HALF, OVERDUE, left_s


def end_s(cost_s: float, since_s: float, progress: float, at_s: float | None = None) -> float:
    return since_s + left_s("curve", cost_s, since_s, progress, at_s)


def test_the_end_follows_the_first_counts_of_a_curve() -> None:
    """64 counts of 10 s each, estimated at 100 s: every count brings the end nearer to 640 s."""
    ends = [end_s(100.0, 10.0 * count, count / 64) for count in range(64)]
    assert ends[0] == 100.0
    assert ends == sorted(set(ends)) and ends[-1] < 640.0
    assert ends[1] > 200.0 and ends[3] > 350.0 and ends[32] > 560.0


def test_the_end_stays_where_it_is_between_two_counts() -> None:
    ends = [end_s(100.0, since_s, 1 / 64, 10.0) for since_s in (10.0, 12.0, 25.0)]
    assert ends == [approx(ends[0])] * 3


def test_a_job_that_is_quicker_than_its_estimate_ends_sooner() -> None:
    assert 64.0 < end_s(1000.0, 2.0, 2 / 64) < 1000.0
    assert end_s(1000.0, 60.0, 60 / 64) == approx(64.0, rel=0.1)
    assert end_s(100.0, 5.0, HALF) == approx((100.0 * 5.0 / HALF) ** 0.5), "half each"


def test_progress_of_a_part_says_little_until_the_estimate_has_passed() -> None:
    def parts_s(since_s: float, progress: float) -> float:
        return left_s("plan", 60.0, since_s, progress)

    assert parts_s(20.0, 0.01) == parts_s(20.0, 0.9) == 40.0
    assert parts_s(80.0, 0.8) == approx(20.0)
    assert parts_s(80.0, 0.01) == 80.0, "at most as long again"
    assert parts_s(80.0, 1.0) == approx(OVERDUE * 80.0)
