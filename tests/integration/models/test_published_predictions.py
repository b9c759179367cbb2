"""Published training steps, predicted: the models are theirs, the parallelism is theirs."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("timm")

import numpy as np  # noqa: E402
from published.captures import graph_of  # noqa: E402
from published.predict import Prediction, predict, tensor_split  # noqa: E402
from published.report import as_data, as_markdown, best_products, summary  # noqa: E402
from published.runs import Run, read_published  # noqa: E402

from harness.tiers import some  # noqa: E402
from shardwise.graph.graph import Graph  # noqa: E402
from shardwise.hardware import load_hardware  # noqa: E402

ROOT = Path(__file__).parents[3]
PUBLISHED = read_published()
RUNS = {run.name: run for run in PUBLISHED.runs}
FAST = (
    "resnet50-a100-8-amp",
    "bert-large-phase1-a100-256",
    "megatron-2b-v100-2",
    "megatron-22b-a100-8-selective",
    "mpt-1b-a100-8",
    "llama2-7b-a100-128-hsdp",
    "llama-1b-h100-8-dp4-tp2",
    "llama-1b-h100-16-dp16",
)
OUTLIERS = {"llama-1b-h100-8-tp8"}
"""Published figures that the same source's other figures contradict (see the run's note)."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    # The models that are written out here are imported as benchmarks.published.bert.
    monkeypatch.chdir(ROOT)


def graph(run: Run, folder: Path) -> Graph:
    return graph_of(run, folder)


@cache
def predicted(name: str, folder: Path) -> Prediction:
    return predict(RUNS[name], graph(RUNS[name], folder))


def chosen(prediction: Prediction, name: str) -> str:
    """What the tensor axis splits in the group with this operator."""
    coarsened = prediction.problem.coarsened
    return tensor_split(prediction, coarsened.groups[coarsened.group_of[name]])


@pytest.mark.parametrize(
    "name", some(FAST, lambda name: name in ("resnet50-a100-8-amp", "mpt-1b-a100-8"))
)
def test_no_unit_is_wrong(name: str, folder: Path) -> None:
    """A factor of three says nothing of accuracy; a wrong unit or batch would exceed it."""
    prediction = predicted(name, folder)
    published = prediction.run.iteration_s
    assert 1 / 3 < prediction.overlapped_s / published < 3
    assert prediction.overlapped_s <= prediction.point.time_s * (1 + 1e-9)
    assert prediction.time_error == prediction.overlapped_s / published - 1
    assert prediction.sum_error == prediction.point.time_s / published - 1
    if prediction.memory_error is not None and prediction.peak_error is not None:
        assert abs(prediction.memory_error) < 0.3
        assert abs(prediction.peak_error) < 0.5


@pytest.mark.parametrize("name", ["mpt-1b-a100-8", "megatron-2b-v100-2", "mpt-125m-a100-8"])
def test_the_model_has_the_published_parameters(name: str, folder: Path) -> None:
    run = RUNS[name]
    tensors = graph(run, folder).tensors.values()
    parameters = sum(t.elements for t in tensors if t.role == "parameter")
    rounding = 0.0 if run.source == "llm-foundry" else 0.005
    assert parameters == pytest.approx(run.parameters, rel=rounding, abs=0.5)


def test_tensor_parallelism_is_megatrons(folder: Path) -> None:
    """Columns, then rows; heads in the attention; the residual stream whole."""
    prediction = predicted("megatron-2b-v100-2", folder)
    layer = "biogpt.layers.3"
    assert chosen(prediction, f"{layer}.self_attn.q_proj.linear") == "out"
    assert chosen(prediction, f"{layer}.self_attn.out_proj.linear") == "in"
    assert chosen(prediction, f"{layer}.fc1.linear") == "out"
    assert chosen(prediction, f"{layer}.fc2.linear") == "in"
    attention = prediction.problem.coarsened.group_of[f"{layer}.self_attn.matmul"]
    member = prediction.problem.coarsened.groups[attention].members[0]
    heads = member.semantics.inputs[0]
    split = chosen(prediction, f"{layer}.self_attn.matmul")
    variables = prediction.problem.coarsened.groups[attention].variables
    along = {variables[member.variables[v]]: access.dim for v, access in heads.items()}
    assert along[split] == 1  # (batch, heads, positions, head size)
    assert chosen(prediction, f"{layer}.dropout") == "none"


@pytest.mark.full
def test_sequence_parallelism_splits_positions_between_products(folder: Path) -> None:
    prediction = predicted("megatron-22b-a100-8-selective", folder)
    layer = "biogpt.layers.3"
    assert chosen(prediction, f"{layer}.fc1.linear") == "out"
    assert chosen(prediction, f"{layer}.fc2.linear") == "in"
    assert chosen(prediction, f"{layer}.dropout") == "d1"


def flags(prediction: Prediction, column: str) -> dict[str, int]:
    """A column of the chosen configurations by group name."""
    costs, choices = prediction.problem.costs, prediction.point.choices
    return {
        group.name: int(getattr(costs[group.index], column)[choices[group.index]])
        for group in prediction.problem.coarsened.groups
    }


@pytest.mark.full
def test_recomputation_is_the_published_one(folder: Path) -> None:
    core = flags(predicted("megatron-22b-a100-8-selective", folder), "recompute")
    again = {name for name, flag in core.items() if flag}
    layer = "biogpt.layers.3.self_attn"
    assert {n for n in again if ".layers.3." in n} == {
        f"{layer}.matmul",
        f"{layer}.mul",
        f"{layer}.matmul_1",
    }
    full = flags(predicted("megatron-2b-v100-2", folder), "recompute")
    assert full["biogpt.layers.3.fc1.linear"] == 1
    assert full["biogpt.embed_tokens.embedding"] == 0
    none = flags(predicted("mpt-1b-a100-8", folder), "recompute")
    assert not any(none.values())


@pytest.mark.full
def test_state_is_sharded_over_the_published_ranks(folder: Path) -> None:
    hybrid = predicted("llama2-7b-a100-128-hsdp", folder)
    levels = [axis.level for axis in hybrid.problem.context.mesh.axes]
    assert levels == ["between nodes", "inside a node"]
    masks = set(flags(hybrid, "zero_axes").values())
    assert masks == {0, 0b10}
    assert flags(hybrid, "zero")["model.layers.3.mlp.down_proj.linear"] == 3
    plain = predicted("resnet50-a100-8-amp", folder)
    assert set(flags(plain, "zero").values()) == {0}


@pytest.mark.full
def test_a_slower_device_takes_longer(folder: Path) -> None:
    run = RUNS["mpt-1b-a100-8"]
    usual = predict(run, graph(run, folder))
    better = predict(run, graph(run, folder), best_products)
    assert better.point.time_s < usual.point.time_s
    a100 = load_hardware("dgx-a100-80gb")
    assert best_products(a100).devices[0].compute_efficiency == 0.869
    v100 = load_hardware("dgx-v100-16gb")
    assert best_products(v100) == v100


def test_the_page_names_every_run_and_its_source(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from published import report

    monkeypatch.setattr(report, "graph_of", lambda run: graph(run, folder))
    few = [predicted(name, folder) for name in ("resnet50-a100-8-amp", "llama-1b-h100-16-dp16")]
    page = as_markdown(PUBLISHED, few)
    for prediction in few:
        assert f"| {prediction.run.name} |" in page
        for key in (prediction.run.source, *prediction.run.also):
            assert PUBLISHED.sources[key].address in page
    assert "peak allocated" in page
    rows = json.loads(json.dumps(as_data(few)))
    assert rows[0]["memory_error"] is None
    assert rows[1]["published_bytes"] == 25075.44 * 2**20


def test_summary_of_errors() -> None:
    medians = summary([-0.5, 0.05, 0.2])
    assert medians["median"] == 0.05
    assert medians["median_size"] == pytest.approx(0.2)
    assert medians["within_10"] == pytest.approx(1 / 3)
    assert medians["within_25"] == pytest.approx(2 / 3)


@pytest.mark.full
def test_every_run_is_predicted(folder: Path) -> None:
    errors = []
    for run in PUBLISHED.runs:
        prediction = predict(run, graph(run, folder))
        errors.append(prediction.time_error)
        if run.name not in OUTLIERS:
            assert 1 / 3 < prediction.overlapped_s / run.iteration_s < 3, run.name
        if run.parameters:
            tensors = graph(run, folder).tensors.values()
            parameters = sum(t.elements for t in tensors if t.role == "parameter")
            assert parameters == pytest.approx(run.parameters, rel=0.005), run.name
        assert np.isfinite(prediction.peak_bytes)
    assert summary(errors)["median_size"] < 0.5
