"""A micro-batch's graph is what its module is captured as on fewer samples."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from harness.tiers import some
from shardwise.errors import BadInput

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("timm")
pytestmark = pytest.mark.torch

from harness.execute.families import TOYS, computing, make  # noqa: E402
from shardwise.execute.captured import Captured, capture_module, smaller  # noqa: E402
from shardwise.execute.micro_batch import micro_batch_graph  # noqa: E402
from shardwise.graph.graph import Graph  # noqa: E402

HARD_CODED = "LSTM"
"""Its states are constants of the module, of the batch that it was made for."""

ALWAYS = (("GPT-2", 2), ("GPT-2", 4), ("Mamba-2", 2), ("Whisper", 2), ("CLIP", 2), ("DLRM", 2))
"""What `make test` runs: one of each kind of layers, and one of them on a fourth too."""


@cache
def captured(family: str) -> Captured:
    model = make(family)  # its module has to be loaded before its scans are replaced
    with computing(TOYS[family]):
        return capture_module(model, family)


@pytest.mark.parametrize(
    ("family", "parts"),
    some([(f, p) for f in TOYS if f != HARD_CODED for p in (2, 4)], lambda case: case in ALWAYS),
)
def test_it_is_the_graph_captured_on_fewer_samples(family: str, parts: int) -> None:
    whole = captured(family)
    with computing(TOYS[family]):
        expected = smaller(whole, parts).graph
    graph = micro_batch_graph(whole.graph, parts)
    assert graph.tensors == expected.tensors
    assert graph.operators == expected.operators


def test_a_size_of_the_module_itself_is_named() -> None:
    with pytest.raises(BadInput, match=r"operator layers\.0\.hidden\.linear .* 1 / 2 of the batch"):
        micro_batch_graph(captured(HARD_CODED).graph, 2)


def test_lengths_that_differ_between_micro_batches_are_refused() -> None:
    graph = captured("Wav2Vec2-BERT").graph
    loss = next(op for op in graph.operators if op.kind == "aten.ctc_loss.IntList")
    lengths = [*loss.attributes["input_lengths"][:-1], 1]
    odd = replace(loss, attributes={**loss.attributes, "input_lengths": lengths})
    others = [op for op in graph.operators if op is not loss]
    uneven = Graph(graph.name, graph.tensors, (*others, odd))
    with pytest.raises(BadInput, match="input_lengths differ from one micro-batch to the next"):
        micro_batch_graph(uneven, 2)


def test_a_number_that_does_not_divide_the_batch() -> None:
    with pytest.raises(BadInput, match="3 does not divide the batch of 16"):
        micro_batch_graph(captured("MLP").graph, 3)
