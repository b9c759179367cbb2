"""Which convolutions have a fast algorithm, and what that saves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.cost.fast_convolution import has_fast_algorithm, saving
from shardwise.graph import Graph, Operator, Tensor, read_graph
from shardwise.hardware import load_hardware
from shardwise.search.search import Subject, search


def _graph(window: Sequence[int], kind: str = "aten.conv2d.default", **attributes: object) -> Graph:
    tensors = (
        Tensor("x", (4, 8, 16, 16), "float32", "input", 0),
        Tensor("w", (8, 8, *window), "float32", "parameter"),
        Tensor("y", (4, 8, 16, 16), "float32", "output"),
    )
    operator = Operator(
        "conv", kind, ("x", "w"), ("y",), {"tensor_arguments": ["input", "weight"], **attributes}
    )
    return Graph("one", {t.name: t for t in tensors}, (operator,))


@pytest.mark.parametrize(
    ("window", "attributes", "fast"),
    [
        ((3, 3), {}, True),
        ((3, 3), {"stride": [1, 1], "dilation": [1, 1], "groups": 1}, True),
        ((3, 3), {"stride": [2, 2]}, False),
        ((3, 3), {"dilation": 2}, False),
        ((3, 3), {"groups": 8}, False),
        ((1, 1), {}, False),
        ((5, 5), {}, False),
    ],
)
def test_dense_three_by_three_of_stride_one(
    window: Sequence[int], attributes: dict[str, object], fast: bool
) -> None:
    graph = _graph(window, **attributes)
    assert has_fast_algorithm(graph, graph.operators[0]) is fast


def test_only_where_the_profile_says_so() -> None:
    graph = _graph((3, 3))
    operator = graph.operators[0]
    volta = load_hardware("dgx-v100-16gb").devices[0]
    assert saving(volta, graph, operator, "float32") == 1.6
    assert saving(volta, graph, operator, "float16") == 1.0
    assert saving(load_hardware("dgx-h100").devices[0], graph, operator, "float32") == 1.0


def test_vgg16_takes_what_was_published() -> None:
    """Batch 16 on one V100: 71.7 ms (TensorFlow 1.5), 83.5 ms (PyTorch 0.3).

    github.com/u39kun/deep-learning-benchmark. Batch 256 on 16 GPUs has 16 on each.
    """
    subject = Subject.of(read_graph(shipped_graph("vgg16")))
    result = search(
        subject, load_hardware("dgx-v100-16gb"), 16, Options(overlap=False), near_limit=True
    )
    chosen = result.fastest_within(result.limit_bytes)
    assert chosen is not None
    assert 0.0717 < result.compute_s(chosen) < 0.0835
