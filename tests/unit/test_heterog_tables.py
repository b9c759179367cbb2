"""HeteroG's tables are made of kept rows, without a search, and say what the rows say."""

from __future__ import annotations

import copy
import importlib

import pytest
from paper import heterog_table3, heterog_times
from paper.heterog_models import ROWS
from paper.heterog_published import (
    CHOICES,
    END_TO_END,
    FIFO,
    LARGE,
    LARGE_CHOICES,
    METHODS,
    MINUTES,
    TIMES,
)
from paper.heterog_runs import KEPT, Figures, kept
from paper.heterog_times import Line, large_lines, lines
from paper.page import kept_results, page
from paper.rank_correlation import kendall, spearman

PAGE = page(kept_results())
PARTS = [f"heterog_table{number}" for number in (1, 3, 4, 5, 6, 7)]


@pytest.mark.parametrize("name", PARTS)
def test_the_page_has_what_the_kept_rows_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a search")

    monkeypatch.setattr("paper.heterog_runs.search_fitting", never)
    monkeypatch.setattr("paper.heterog_runs.heterog_graph", never)
    assert importlib.import_module(f"paper.{name}").make().markdown("../pictures") in PAGE


@pytest.mark.parametrize("gpus", [8, 12])
def test_every_row_of_the_paper_is_kept_and_small(gpus: int) -> None:
    rows = {(row["model"], row["batch"]) for row in kept(gpus) if row["seq"] is None}
    assert rows == {(row.model, row.batch_8 if gpus == 8 else row.batch_12) for row in ROWS}
    assert {line.model for line in lines(gpus)} == set(TIMES[gpus])
    assert set(LARGE[gpus]) <= {line.model for line in large_lines(gpus)}
    assert (KEPT / f"gpus{gpus}.json").stat().st_size < 100_000


@pytest.mark.parametrize("gpus", [8, 12])
def test_a_statement_depends_on_its_figures(gpus: int) -> None:
    """Each statement on a model's times turns where its figures do."""
    line = lines(gpus)[0]
    assert heterog_times._ours_is_faster(line).holds
    assert heterog_times._sums(line).holds
    changed: Figures = copy.deepcopy(line.figures)
    baselines = changed["baselines"]
    baselines["cp-ar"]["time_s"] = 0.9 * line.our_s
    assert not heterog_times._ours_is_faster(Line(changed)).holds
    baselines["cp-ar"]["time_s"] = 1.1 * line.seconds("cp-ps")
    assert not heterog_times._sums(Line(changed)).holds
    baselines["cp-ar"]["peak_of_limit"] = 1.01
    assert "CP-AR would not fit" in heterog_times._ours_is_faster(Line(changed)).ours
    assert not heterog_times._runs_out(Line(changed)).holds
    for method in METHODS:
        baselines[method]["peak_of_limit"] = 1.01
    assert heterog_times._runs_out(Line(changed)).holds


def test_the_answer_is_one_group_alone_where_that_is_faster() -> None:
    figures = copy.deepcopy(lines(8)[0].figures)
    together = figures["ours"]["time_s"]
    figures["ours"]["alone"] = ["v100", 0.5 * together]
    assert Line(figures).our_s == 0.5 * together
    figures["ours"]["alone"] = ["v100", 2.0 * together]
    assert Line(figures).our_s == together
    figures["ours"] = {"alone": None}
    assert Line(figures).our_s is None


def test_shares_of_operators_are_of_all_of_them() -> None:
    for line in lines(8):
        for weight in ("operators", "parameter_bytes"):
            assert sum(heterog_table3.shares(line, weight).values()) == pytest.approx(100.0)
    assert heterog_table3._way({"who": "one block of p100", "sum": ""}) == "alone"
    assert heterog_table3._way({"who": "some: v100, p100", "sum": "AR"}) == "some"
    assert heterog_table3._way({"who": "CP", "sum": "PS"}) == "CP-PS"
    assert heterog_table3._way({"who": "EV", "sum": ""}) == "EV"


def test_what_is_printed_is_consistent_with_itself() -> None:
    """As the paper says of its own tables (§6.2, §6.4, §6.6)."""
    for of_models in TIMES.values():
        assert all(times[0] == min(times) for times in of_models.values())
    speed_ups = [t / times[0] - 1 for times in TIMES[8].values() for t in times[1:]]
    assert min(speed_ups) == pytest.approx(0.192, abs=1e-3)
    assert max(speed_ups) == pytest.approx(2.224, abs=1e-2)
    for shares in CHOICES.values():
        assert sum(shares) == pytest.approx(100.0, abs=0.11)
    assert set(FIFO) == set(MINUTES) == set(CHOICES) == set(TIMES[8])
    assert all(FIFO[model] > TIMES[8][model][0] for model in FIFO)
    assert all(1.2 < minutes[2] / minutes[0] < 1.5 for minutes in END_TO_END[8].values())
    for alone, replicated in LARGE_CHOICES.values():
        assert sum(alone) + sum(replicated) == pytest.approx(100.0, abs=0.11)


def test_rank_correlations() -> None:
    assert kendall([1, 2, 3, 4], [10, 20, 30, 40]) == spearman([1, 2, 3, 4], [1, 4, 9, 16]) == 1.0
    assert kendall([1, 2, 3], [3, 2, 1]) == spearman([1, 2, 3], [3, 2, 1]) == -1.0
    # Two of six pairs are the other way round; ranks differ by 1, 1, 1, 1.
    assert kendall([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx((4 - 2) / 6)
    assert spearman([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(1 - 6 * 4 / (4 * 15))
    # One tie: 5 pairs concordant of 5 and of 6 that are tied in neither list.
    assert kendall([1, 1, 2, 3], [1, 2, 3, 4]) == pytest.approx(5 / 30**0.5)
    assert kendall([1, 1], [1, 2]) == spearman([1, 1], [1, 2]) == 0.0
