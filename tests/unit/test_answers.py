"""The functions of `import shardwise`: typed answers, pictures, tables, and the notebook."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import shardwise
from harness import answers
from harness.graph_builder import layers, mlp
from shardwise import answers as advice
from shardwise import documents
from shardwise.capture import shipped_graph
from shardwise.cost.options import Options
from shardwise.errors import BadInput, CaptureError
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware
from shardwise.notebook import MOST_ROWS, Explanation, Plan

VGG, V100 = "shipped:vgg16", "dgx-v100-16gb"
SMALL = mlp()
FEW = Options(micro_batches=(1,))
"""By replayed times, of few strategies."""
NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def test_answers_are_the_librarys_documents() -> None:
    graph, hardware = read_graph(shipped_graph("vgg16")), load_hardware(V100)
    plan = shardwise.plan(VGG, V100, 4, zero=(0,), micro_batches=(1,))
    options = Options(zero=(0,), micro_batches=(1,))
    planned = advice.plan(graph, hardware, 4, options=options)
    assert isinstance(plan, documents.WholePlan)
    assert _without_search(plan.to_dict()) == _without_search(answers.document(planned))
    assert plan.explain().to_dict() == answers.explain(plan.to_dict())
    assert shardwise.explain(planned).totals == plan.explain().totals
    curve = shardwise.curve(graph, hardware, 2, overlap=False)
    assert [point.gpus for point in curve.points] == [1, 2]
    assert not curve.overlap
    quote = shardwise.quote(SMALL, steps=10, max_instances=1, overlap=False)
    assert quote.offers[0].usd_total == min(offer.usd_total for offer in quote.offers)


def _without_search(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != "search"}


def test_a_notebook_shows_pictures_and_tables() -> None:
    frontier = shardwise.frontier(SMALL, V100, 2, FEW)
    assert frontier._repr_html_().startswith("<svg")
    assert shardwise.curve(SMALL, V100, 2, FEW)._repr_html_().startswith("<svg")
    plan = shardwise.plan(SMALL, V100, 2, options=FEW)
    shown = plan._repr_html_()
    assert shown.count("<tr>") == 1 + min(len(plan.explain().groups), MOST_ROWS)
    assert "<table>" in shardwise.quote(SMALL, max_instances=1, overlap=False)._repr_html_()


def test_a_pipeline_is_shown_as_a_plan_is(tmp_path: Path) -> None:
    graph = layers(8, 64, 128)
    pipeline = shardwise.plan(graph, "l4", 2, stages=[2], micro_batches=(4,))
    assert isinstance(pipeline, documents.Pipeline)
    assert msgspec.json.encode(
        documents.read(pipeline.to_dict(), documents.Plan)
    ) == msgspec.json.encode(pipeline)
    explained = shardwise.explain(pipeline.to_dict())
    assert explained == pipeline.explain() and len(explained.to_pandas()) == 2
    assert pipeline._repr_html_() == explained._repr_html_()
    assert pipeline._repr_html_().count("<tr>") == 1 + 2
    assert len(pipeline.to_pandas()) == len(graph.operators)
    pipeline.plot(tmp_path / "p.svg")
    assert "<svg" in (tmp_path / "p.svg").read_text()


def test_pictures_are_written_where_their_ending_says(tmp_path: Path) -> None:
    frontier = shardwise.frontier(SMALL, V100, 2, FEW)
    for name, start in (("f.svg", b"<?xml"), ("f.png", b"\x89PNG"), ("f.html", b"<!doctype html>")):
        frontier.plot(tmp_path / name)
        assert (tmp_path / name).read_bytes().lower().startswith(start.lower())
    with pytest.raises(BadInput):
        frontier.plot(tmp_path / "f.gif")


def test_every_answer_has_a_picture(tmp_path: Path) -> None:
    """Plans and quotes as bars; their longest bar is what costs most."""
    plan = shardwise.plan(SMALL, V100, 2, options=FEW)
    plan.plot(tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    most = max(plan.explain().groups, key=lambda g: g.repeats * (g.compute_s + g.communication_s))
    assert f"{most.slowest}: {most.split}" in text.replace("&#10;", " ")
    shardwise.quote(SMALL, max_instances=1, overlap=False).plot(tmp_path / "quote.png")
    assert (tmp_path / "quote.png").read_bytes().startswith(b"\x89PNG")


def test_names_that_are_imported_late_are_listed() -> None:
    listed = dir(shardwise)
    assert {
        "capture",
        "compare",
        "curve",
        "frontier",
        "parallelize",
        "plan",
        "quote",
        "report",
    } <= {*listed}
    for name in listed:
        assert getattr(shardwise, name) is not None


def test_rows_as_pandas_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    frontier = shardwise.frontier(SMALL, V100, 2, FEW)
    frame = frontier.to_pandas()
    assert len(frame) == len(frontier.points)
    assert list(frame["time_s"]) == [point.time_s for point in frontier.points]
    plan = shardwise.plan(SMALL, V100, 2, options=FEW)
    assert set(plan.to_pandas()["name"]) <= set(plan.order)
    compared = shardwise.compare(SMALL, V100, 2, FEW, proposals=100)
    rows = compared.to_pandas()
    assert list(rows["time_s"]) == [p.time_s for m in compared.methods for p in m.points]
    assert set(rows["method"]) == {m.method for m in compared.methods if m.points}
    assert compared._repr_html_().startswith("<svg")
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(BadInput, match="pip install pandas"):
        frontier.to_pandas()


def test_options_are_named_or_given_whole() -> None:
    with pytest.raises(BadInput, match="unknown option"):
        shardwise.frontier(SMALL, V100, 2, colour="red")
    with pytest.raises(BadInput, match="exclude"):
        shardwise.frontier(SMALL, V100, 2, FEW, zero=(0,))


def test_text_in_a_table_is_escaped() -> None:
    plan = shardwise.plan(SMALL, V100, 2, options=FEW)
    wild = msgspec.structs.replace(plan, graph_name="<script>")
    assert isinstance(wild, Plan) and isinstance(wild.explain(), Explanation)
    assert "<script>" not in wild._repr_html_()


def test_what_is_not_a_model_is_refused() -> None:
    pytest.importorskip("torch")
    with pytest.raises(CaptureError, match="int is not a model"):
        shardwise.capture(3)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs_and_every_shown_value_has_a_picture_or_table() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("pandas")
    names: dict[str, Any] = {}
    shown = 0
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == []
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "notebook", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
            assert "<" in value._repr_html_()
            shown += 1
    assert shown == 4
