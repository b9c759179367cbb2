"""Ranks of a host share out its cores: none computes on another's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shardwise.measure.cores import ranks_on_core, share_of

NEEDS = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="binds nothing on one core",
)


@pytest.mark.parametrize(("cores", "ranks"), [(2, 2), (8, 3), (5, 2), (64, 8), (7, 7)])
def test_shares_are_disjoint_and_leave_no_core(cores: int, ranks: int) -> None:
    shares = [share_of(range(cores), rank, ranks) for rank in range(ranks)]
    assert sorted(core for share in shares for core in share) == list(range(cores))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_more_ranks_than_cores_are_spread_evenly() -> None:
    assert [share_of([3, 5], rank, 4) for rank in range(4)] == [(3,), (5,), (3,), (5,)]


def test_ranks_on_one_core_are_counted() -> None:
    assert [ranks_on_core([3, 5], rank, 5) for rank in range(5)] == [3, 2, 3, 2, 3]
    assert [ranks_on_core([3, 5, 7], rank, 2) for rank in range(2)] == [1, 1]


def _bound(rank: int, **environment: str) -> list[int]:
    """Returns the cores of a thread that lived before, and of one started after binding."""
    code = (
        "import os, threading\n"
        "from shardwise.measure.cores import bind_cores\n"
        "go, seen = threading.Event(), []\n"
        "def look():\n    go.wait(); seen.append(sorted(os.sched_getaffinity(0)))\n"
        "before = threading.Thread(target=look); before.start()\n"
        f"print(bind_cores({rank}, 2))\n"
        "go.set(); before.join(); look()\n"
        "assert seen[0] == seen[1], seen\n"
        "print(*seen[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    count, cores = done.stdout.splitlines()
    numbers = [int(core) for core in cores.split()]
    if not environment:
        assert int(count) == len(numbers)
    return numbers


@NEEDS
def test_two_ranks_have_disjoint_cores_in_all_their_threads() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    first, second = _bound(0), _bound(1)
    assert not set(first) & set(second)
    assert sorted(first + second) == allowed


@NEEDS
@pytest.mark.parametrize("named", ["SLURM_CPU_BIND", "GOMP_CPU_AFFINITY"])
def test_who_binds_the_cores_themselves_is_let_be(named: str) -> None:
    assert _bound(0, **{named: "x"}) == sorted(os.sched_getaffinity(0))


@NEEDS
def test_binding_can_be_switched_off() -> None:
    assert _bound(1, SHARDWISE_BIND_CORES="no") == sorted(os.sched_getaffinity(0))


NO_BATCH = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="no batch policy")


def _policies(before: str = "") -> list[int]:
    """Returns the policies of the main thread, of one from before, and of one started after."""
    code = (
        "import os, threading\n"
        "from shardwise.measure.cores import run_as_batch\n"
        f"{before}\n"
        "go, seen = threading.Event(), []\n"
        "def look():\n    go.wait(); seen.append(os.sched_getscheduler(0))\n"
        "early = threading.Thread(target=look); early.start()\n"
        "run_as_batch(); go.set(); early.join()\n"
        "late = threading.Thread(target=look); late.start(); late.join()\n"
        "print(os.sched_getscheduler(0), *seen)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


@NO_BATCH
def test_all_threads_run_as_batch_work() -> None:
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        assert _policies() == [os.SCHED_BATCH] * 3


@NO_BATCH
def test_a_policy_that_was_chosen_before_stays() -> None:
    chosen = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))"
    assert _policies(chosen) == [os.SCHED_IDLE] * 3
