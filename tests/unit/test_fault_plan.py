"""A seed gives faults: the same ones each time, and each kind on each target."""

from __future__ import annotations

from collections import Counter

from harness.containers.fault_plan import AT_ONCE, KINDS, LONG_S, TARGETS, plan

PAIRS = len(KINDS) * len(TARGETS)


def test_a_seed_gives_the_same_faults_however_many_are_asked_for() -> None:
    assert plan(7, 200)[:30] == plan(7, 30)
    assert plan(7, 30) != plan(8, 30)


def test_each_kind_meets_each_target_before_any_comes_again() -> None:
    dealt = Counter((fault.kind, fault.target) for fault in plan(1, 2 * PAIRS))
    assert set(dealt.values()) == {2}
    assert len(dealt) == PAIRS


def test_some_faults_outlast_each_lease_and_those_that_are_over_at_once_last_no_time() -> None:
    faults = plan(1, 200)
    assert {fault.hold_s for fault in faults if fault.kind in AT_ONCE} == {0.0}
    long = [fault for fault in faults if fault.hold_s == LONG_S]
    assert 15 < len(long) < 40
    assert all(fault.hold_s > 0 for fault in faults if fault.kind not in AT_ONCE)
