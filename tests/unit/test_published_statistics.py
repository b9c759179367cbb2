"""Statistics of published runs and their predictions: ranks, regret, sizes, fitted numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pytest
from published.fits import (
    Fitted,
    fit_clock,
    fit_framework,
    fit_host,
    leave_one_out,
    refit,
    times_s,
)
from published.ranking import mean_ranks, rankings, regret, spearman
from published.reading import read_published
from published.run import Run
from published.stored import SLOWER, Result, Stored, included
from published.summary import summary

from shardwise.cost.software import FRAMEWORKS
from shardwise.hardware import load_hardware
from shardwise.hardware.host import Host, soft_maximum

A_RUN = next(run for run in read_published().runs if run.name == "mpt-1b-a100-8")
HOST = load_hardware(A_RUN.hardware).host or Host(0.0, 0.0)


def result(
    published_s: float,
    *,
    time_s: float = 1.0,
    device_s: float = 1.0,
    operators: int = 0,
    collectives: int = 0,
    parameters: int = 10**9,
    slower: float = 1.0,
    project: str = "p",
    **changes: Any,
) -> Result:
    """A run on A100 that was published at this many seconds, and its prediction."""
    figures = {"figure": published_s, "unit": "s", "memory_figures": (), "memory_kind": ""}
    run: Run = msgspec.structs.replace(A_RUN, **{**figures, **changes})
    stored = Stored(
        row=run.predicted_as,
        parameters=parameters,
        time_s=time_s,
        device_s=device_s,
        host_s=0.0,
        compute_s=device_s,
        communication_s=0.0,
        peak_bytes=1.0,
        kept_bytes=1.0,
        operators=operators,
        collectives=collectives,
        slower_device_s=device_s * slower,
    )
    return Result(run, project, stored)


def test_summary_of_errors() -> None:
    medians = summary([-0.5, 0.05, 0.2])
    assert medians.runs == 3
    assert medians.median == 0.05
    assert medians.median_size == pytest.approx(0.2)
    assert medians.size_90 == pytest.approx(0.2 + 0.8 * 0.3)
    assert medians.within_10 == pytest.approx(1 / 3)
    assert medians.within_25 == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="no errors"):
        summary([])


def test_ranks_of_equal_values_are_their_mean() -> None:
    assert mean_ranks([3.0, 1.0, 2.0]).tolist() == [3.0, 1.0, 2.0]
    assert mean_ranks([5.0, 1.0, 5.0, 2.0]).tolist() == [3.5, 1.0, 3.5, 2.0]
    assert mean_ranks([1.0, 1.0 + 1e-9]).tolist() == [1.5, 1.5]


def test_spearman_by_hand() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1.0)
    assert spearman([1, 2, 3, 4], [40, 30, 20, 10]) == pytest.approx(-1.0)
    # Ranks 1 2 3 4 and 2 1 4 3: 1 - 6 (1 + 1 + 1 + 1) / (4 · 15) = 0.6.
    assert spearman([1, 2, 3, 4], [0.2, 0.1, 0.4, 0.3]) == pytest.approx(0.6)
    # Ranks 1.5 1.5 3 and 1 2 3: 1.5 / sqrt(1.5 · 2).
    assert spearman([7, 7, 9], [1, 2, 3]) == pytest.approx(1.5 / np.sqrt(3.0))
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_regret_is_of_the_run_that_is_predicted_fastest() -> None:
    assert regret([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == 0.0
    assert regret([2.0, 1.0, 3.0], [4.0, 5.0, 6.0]) == pytest.approx(0.25)
    # Two that are predicted alike: 5 and 7 of 4.
    assert regret([2.0, 1.0, 1.0], [4.0, 5.0, 7.0]) == pytest.approx(0.5)


def test_grids_are_ranked_without_outliers() -> None:
    runs = [
        result(3.0, time_s=2.0, grid="g", name="a", zero=0),
        result(2.0, time_s=1.0, grid="g", name="b", zero=1),
        result(1.0, time_s=1.5, grid="g", name="c", zero=2),
        result(0.5, time_s=9.0, grid="g", name="d", zero=3, outlier="contradicted"),
        result(1.0, grid="small", name="e"),
        result(2.0, grid="small", name="f"),
        result(2.0, name="g"),
    ]
    (ranking,) = rankings(runs)
    assert (ranking.grid, len(ranking.ways)) == ("g", 3)
    assert ranking.correlation == pytest.approx(0.5)
    assert ranking.regret == pytest.approx(1.0)
    assert (ranking.fastest.name, ranking.predicted_fastest.name) == ("c", "b")


def test_runs_that_are_predicted_as_one_are_one_way() -> None:
    runs = [
        result(3.0, time_s=1.0, grid="g", name="a", zero=0),
        result(5.0, time_s=1.0, grid="g", name="b", zero=0),
        result(2.0, time_s=2.0, grid="g", name="c", zero=1),
        result(6.0, time_s=3.0, grid="g", name="d", zero=2),
    ]
    (ranking,) = rankings(runs)
    assert [way.published_s for way in ranking.ways] == [4.0, 2.0, 6.0]
    assert ranking.regret == pytest.approx(1.0)
    assert rankings(runs[:3]) == []


def test_small_are_small_models_and_small_micro_batches() -> None:
    large: dict[str, Any] = {
        "batch": 64,
        "seq": 2048,
        "gpus": 8,
        "data_parallel": 8,
        "micro_batches": 1,
    }
    assert result(1.0, parameters=2 * 10**9, **large).size == "large"
    assert result(1.0, parameters=10**9, **large).size == "small"
    few = {**large, "micro_batches": 8}
    assert result(1.0, parameters=2 * 10**9, **few).size == "small"
    divided = {**large, "data_parallel": 1, "tensor_parallel": 8, "micro_batches": 4}
    assert result(1.0, parameters=2 * 10**9, **divided).size == "large"
    divided["micro_batches"] = 8
    assert result(1.0, parameters=2 * 10**9, **divided).size == "small"
    images = {**large, "seq": 0, "micro_batches": 8}
    assert result(1.0, parameters=2 * 10**9, **images).size == "large"


COUNTS = ((400, 0), (3000, 100), (3000, 1500), (12000, 300), (900, 2000), (20000, 6000))


def host_bound(host: Host, **changes: Any) -> Iterable[Result]:
    """Runs that take exactly what this host does to them."""
    framework = FRAMEWORKS[str(changes.get("framework", "eager"))]
    for i, (operators, collectives) in enumerate(COUNTS):
        host_s = operators * host.operator_s * framework.operator
        host_s += collectives * host.collective_s * framework.collective
        time = soft_maximum(np.array([0.1 + 0.01 * i]), np.array([host_s]))
        yield result(
            float(time[0]),
            device_s=0.1 + 0.01 * i,
            operators=operators,
            collectives=collectives,
            **changes,
        )


@pytest.mark.parametrize("host", [Host(40e-6, 100e-6), Host(75e-6, 20e-6)])
def test_the_hosts_times_are_found_again(host: Host) -> None:
    runs = list(host_bound(host))
    found = fit_host(runs)
    assert found is not None
    assert found.operator_s == pytest.approx(host.operator_s)
    assert found.collective_s == pytest.approx(host.collective_s)
    published = [run.run.iteration_s for run in runs]
    assert times_s(runs, Fitted(host=host)) == pytest.approx(published)


def test_large_runs_and_too_few_fit_no_host() -> None:
    large = [result(1.0, parameters=10**10, operators=10**5) for _ in range(5)]
    assert all(run.size == "large" for run in large)
    assert fit_host(large) is None
    assert fit_host(list(host_bound(HOST))[:2]) is None


def test_a_frameworks_share_is_found_again() -> None:
    share = FRAMEWORKS["megatron-tests"].operator
    runs = list(host_bound(HOST, framework="megatron-tests"))
    found = fit_framework(runs, "megatron-tests")
    assert found is not None
    assert found.operator == found.collective == pytest.approx(share)
    assert fit_framework(runs, "compiled") is None
    assert fit_framework(runs, "eager") is None


def test_the_clock_is_found_again() -> None:
    # 60 % of the devices' time is in proportion to 1 / clock; the run was at 0.8 of the clocks.
    own = load_hardware(A_RUN.hardware).devices[0].sustained_clock
    slower = 1.0 + 0.6 * (1.0 / SLOWER - 1.0)
    published = [d * (1.0 + 0.6 * (1.0 / 0.8 - 1.0)) for d in (1.0, 2.0, 3.0)]
    runs = [
        result(p, device_s=d, slower=slower, parameters=10**10)
        for p, d in zip(published, (1.0, 2.0, 3.0), strict=True)
    ]
    assert fit_clock(runs, "A100") == pytest.approx(0.8 * own, abs=0.005)
    assert times_s(runs, Fitted(clocks={"A100": 0.8 * own})) == pytest.approx(published, rel=1e-6)
    assert fit_clock(runs, "H100") is None
    unmeasured = [result(p, parameters=10**10) for p in published]
    assert fit_clock(unmeasured, "A100") is None


def test_a_source_has_no_part_in_the_numbers_it_is_judged_by() -> None:
    fast, slow = Host(40e-6, 100e-6), Host(90e-6, 200e-6)
    runs = [*host_bound(fast, project="fast"), *host_bound(slow, project="slow")]
    left = {item.project: item for item in leave_one_out(runs)}
    assert left["fast"].fitted.host is not None and left["slow"].fitted.host is not None
    assert left["fast"].fitted.host.operator_s == pytest.approx(90e-6)
    assert left["slow"].fitted.host.operator_s == pytest.approx(40e-6)
    assert left["fast"].after.median > 0.2
    assert left["slow"].after.median < -0.2
    assert left["fast"].before.runs == len(COUNTS)
    both = refit(runs).host
    assert both is not None and 40e-6 <= both.operator_s <= 90e-6


def test_outliers_have_no_part_in_statistics() -> None:
    host = Host(40e-6, 100e-6)
    stalled = [
        msgspec.structs.replace(r.run, figure=100.0, outlier="stalled") for r in host_bound(host)
    ]
    runs = [*host_bound(host), *(Result(run, "p", result(1.0).stored) for run in stalled)]
    assert len(included(runs)) == len(COUNTS)
    assert refit(runs).host == fit_host(list(host_bound(host)))
    (item,) = leave_one_out(runs)
    assert item.before.runs == len(COUNTS)
    assert item.fitted.host is None
