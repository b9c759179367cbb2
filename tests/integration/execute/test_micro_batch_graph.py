"""A micro-batch's graph is what its module is captured as on fewer samples."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("timm")
pytestmark = pytest.mark.torch

from harness.execute.families import TOYS, computing, make  # noqa: E402
from harness.tiers import some  # noqa: E402
from shardwise.errors import BadInput  # noqa: E402
from shardwise.execute.captured import Captured, capture_module, smaller  # noqa: E402
from shardwise.execute.micro_batch import micro_batch_graph  # noqa: E402

# Their states are constants of the module, of the batch that it was made for.
HARD_CODED = {"LSTM"}
ALWAYS = ("GPT-2", "BERT", "ViT", "Mamba-2", "Whisper", "CLIP", "DLRM")


def captured(family: str) -> Captured:
    with computing(TOYS[family]):
        return capture_module(make(family), family)


@pytest.mark.parametrize(
    "family", some([f for f in TOYS if f not in HARD_CODED], lambda family: family in ALWAYS)
)
@pytest.mark.parametrize("parts", [2, 4])
def test_it_is_the_graph_captured_on_fewer_samples(family: str, parts: int) -> None:
    whole = captured(family)
    with computing(TOYS[family]):
        expected = smaller(whole, parts).graph
    graph = micro_batch_graph(whole.graph, parts)
    assert graph.tensors == expected.tensors
    assert graph.operators == expected.operators


@pytest.mark.parametrize("family", sorted(HARD_CODED))
def test_a_size_of_the_module_itself_is_named(family: str) -> None:
    with pytest.raises(BadInput, match=r"operator layers\.0\.hidden\.linear .* 1 / 2 of the batch"):
        micro_batch_graph(captured(family).graph, 2)


def test_a_number_that_does_not_divide_the_batch() -> None:
    with pytest.raises(BadInput, match="3 does not divide the batch of 16"):
        micro_batch_graph(captured("MLP").graph, 3)
