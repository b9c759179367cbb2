"""A row of HeteroG's Table 1 made anew: MobileNet-v2 on 8 devices of three kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from paper import heterog_times
from paper.heterog_models import heterog_graph
from paper.heterog_runs import OPTIONS, Question, baseline_figures, our_figures, questions
from paper.heterog_times import Line, lines

pytest.importorskip("torch")
# `make test` has the tables of the runs that are kept (unit/test_heterog_tables.py) and the
# baselines on small models (unit/test_compare_mixed.py).
pytestmark = [pytest.mark.full, pytest.mark.torch]

MODEL = "mobilenet-v2"
SHORT_S = 30.0


@pytest.fixture
def question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Question:
    monkeypatch.setattr("paper.models.FOLDER", tmp_path)
    heterog_graph.cache_clear()
    return next(q for q in questions(8) if q.row.model == MODEL)


@pytest.fixture
def before() -> Line:
    (line,) = (line for line in lines(8) if line.model == MODEL)
    return line


def test_baselines_of_mobilenet_on_8_gpus(question: Question, before: Line) -> None:
    """They are what was kept."""
    baselines = baseline_figures(question)
    kept = before.figures["baselines"]
    assert set(baselines) == set(kept)
    for method, figures in baselines.items():
        assert figures["time_s"] == pytest.approx(kept[method]["time_s"], rel=1e-3)
        assert figures["peak_of_limit"] == pytest.approx(kept[method]["peak_of_limit"], rel=1e-3)


def test_our_mobilenet_on_8_gpus(question: Question, before: Line) -> None:
    """A short search beats the baselines and comes near what was kept."""
    baselines = baseline_figures(question)
    ours, chosen = our_figures(question, replace(OPTIONS, time_limit_s=SHORT_S))
    assert chosen is not None
    anew = Line({**before.figures, "baselines": baselines, "ours": ours})
    assert anew.our_s == pytest.approx(before.our_s, rel=0.1)
    assert heterog_times._ours_is_faster(anew).holds
    assert heterog_times._sums(anew).holds
    # All operators are counted once.
    assert sum(c["operators"] for c in ours["choices"]) == len(question.subject.graph.operators)
