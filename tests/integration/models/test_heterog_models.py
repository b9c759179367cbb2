"""HeteroG's models as graphs: the parameters that were published, batches, split everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from paper.heterog_models import LONGER, ROWS, SOURCES, heterog_graph

from harness.tiers import some
from shardwise.graph import Graph, read_graph
from shardwise.graph.inspect import inspect_graph
from shardwise.search.search import Subject
from shardwise.sharding.names import sample_variables
from shardwise.tdl import registry

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PUBLISHED = {
    # millions of parameters
    "vgg-19": 143.7,
    "resnet-200": 64.7,
    "inception-v3": 23.8,  # without the auxiliary classifier, whose loss HeteroG's code leaves out
    "mobilenet-v2": 3.5,
    "nasnet": 88.8,
    "bert-large": 335,
    "xlnet-large": 361,
    # Vaswani's base model has 44.1 in 6 + 6 layers; three tables of 50,000 · 512 are 76.8.
    "transformer-6": 44.1 + 76.8,
    "transformer-24": 4 * 44.1 + 76.8,
    "transformer-48": 8 * 44.1 + 76.8,
    # 24 more layers of BERT have 12.6 each, of XLNet 13.6.
    "bert-large-48": 335 + 24 * 12.6,
    "xlnet-large-48": 361 + 24 * 13.6,
}
FORWARD_GFLOP = {
    # per image or sequence: twice the published multiply-adds
    "vgg-19": 2 * 19.6,
    "resnet-200": 2 * 15.0,
    "mobilenet-v2": 2 * 0.300,
    # of 23.8 at 331 × 331
    "nasnet": 2 * 23.8 * (224 / 331) ** 2,
}
WITHOUT_SAMPLES = {"model.bert.embeddings.position_embeddings.embedding", "model.add"}
"""BERT's lookup of positions, and the sum of two losses."""

ALWAYS = ("vgg-19", "mobilenet-v2")
"""Models that `make test` captures."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("paper.models.FOLDER", tmp_path)
    heterog_graph.cache_clear()
    return tmp_path


def batch_of(name: str) -> int:
    return next(row.batch_8 for row in ROWS if row.model == name)


@pytest.mark.parametrize("name", some(SOURCES, lambda name: name in ALWAYS))
def test_parameters_batch_and_descriptions(name: str) -> None:
    batch = batch_of(name)
    graph = heterog_graph(name, batch)
    assert graph.parameter_count / 1e6 == pytest.approx(PUBLISHED[name], rel=0.015)
    assert graph.batch_size == batch
    assert {t.dtype for t in graph.tensors.values() if t.role == "parameter"} == {"float32"}
    inspected = inspect_graph(graph, registry.analyse)
    assert inspected["undescribed_operators"] == []
    if name in FORWARD_GFLOP:
        flops = inspected["matrix_flops"] / batch
        assert flops / 1e9 == pytest.approx(FORWARD_GFLOP[name], rel=0.07)
    # XLNet's positions are expanded to one row for each sample without reading samples, so that
    # data parallelism is not known to split their projections.
    if not name.startswith("xlnet"):
        assert _without_samples(graph) <= WITHOUT_SAMPLES


def _without_samples(graph: Graph) -> set[str]:
    """Groups that data parallelism computes in full on every device."""
    coarsened = Subject.of(graph).coarsened
    samples = zip(coarsened.groups, sample_variables(coarsened), strict=True)
    return {group.name for group, variables in samples if not variables}


def test_every_row_has_a_model_and_equal_shares() -> None:
    assert {row.model for row in ROWS} == set(SOURCES) >= set(LONGER)
    for row in ROWS:
        assert row.batch_8 % 8 == row.batch_12 % 12 == 0
        assert row.batch_12 / 12 == row.batch_8 / 8


def test_a_graph_is_captured_once(folder: Path) -> None:
    first = heterog_graph("mobilenet-v2", 16)
    (path,) = folder.iterdir()
    assert read_graph(path) == first
    stamp = path.stat().st_mtime_ns
    heterog_graph.cache_clear()
    assert heterog_graph("mobilenet-v2", 16) == first
    assert path.stat().st_mtime_ns == stamp


@pytest.mark.full
def test_a_sequence_may_be_shorter() -> None:
    other = heterog_graph("bert-large", 8, seq=16)
    assert other.tensors["ids"].shape == (8, 16)
