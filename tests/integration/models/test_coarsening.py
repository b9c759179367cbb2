"""Coarsened and uncoarsened frontiers are equal, point by point, on small models.

Uncoarsened, every operator is searched on its own. Where frontiers are not equal it has three
reasons, none of them in these models: a view on its own is priced as a copy, a tensor with readers
in several groups is paid for by each (ADR 0002), and members of a group cannot re-schedule
between them, which may pay where latency is all there is (an LSTM of toy size: 4 %).
"""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.capture import capture
from shardwise.cost.options import Options
from shardwise.graph import Graph
from shardwise.hardware import load_hardware
from shardwise.search.search import Search, Subject, search

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

GPT = "hf:GPT2Config:n_layer=1"
RESNET = "zoo:wide-resnet-50:width=1,image=64"


def _search(graph: Graph, gpus: int, *, join: bool) -> Search:
    subject = Subject.of(graph, join=join)
    result = search(subject, load_hardware("dgx-h100"), gpus, Options(overlap=False, epsilon=0.0))
    assert result.solution.exact
    return result


@pytest.mark.parametrize(
    ("source", "sizes", "gpus"),
    [
        ("zoo:mlp", {}, 2),
        ("zoo:mlp", {}, 8),
        (GPT, {"batch": 16, "seq": 512}, 2),
        ("zoo:unet:depth=2,image=128", {"batch": 16}, 4),
        (RESNET, {"batch": 64}, 2),
    ],
)
def test_coarsening_changes_no_frontier(source: str, sizes: dict[str, int], gpus: int) -> None:
    graph = capture(source, **sizes)  # type: ignore[arg-type]
    coarse, fine = (_search(graph, gpus, join=join) for join in (True, False))
    if source != "zoo:mlp":  # whose operators are too few to be joined
        assert len(coarse.problem.costs) < len(fine.problem.costs)
    assert len(coarse.memory_bytes) == len(fine.memory_bytes) > 5
    np.testing.assert_allclose(coarse.memory_bytes, fine.memory_bytes, rtol=1e-12)
    np.testing.assert_allclose(coarse.time_s, fine.time_s, rtol=1e-9)
