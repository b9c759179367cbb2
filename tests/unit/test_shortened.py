"""Shipped models with fewer layers: those layers are left out, and nothing else is changed."""

from __future__ import annotations

import pytest

from harness.models.shortened import shortened
from shardwise.capture import shipped_graph
from shardwise.graph import read_graph
from shardwise.graph.validate import validate_graph


@pytest.mark.parametrize(("model", "layers"), [("gpt2", 12), ("llama-8b", 32)])
def test_two_of_many_layers(model: str, layers: int) -> None:
    whole, two, three = read_graph(shipped_graph(model)), shortened(model, 2), shortened(model, 3)
    assert validate_graph(two) == two
    own = three.parameter_count - two.parameter_count
    assert whole.parameter_count - two.parameter_count == (layers - 2) * own > 0
    assert len(whole.operators) - len(two.operators) == (layers - 2) * (
        len(three.operators) - len(two.operators)
    )
    assert two.batch_size == whole.batch_size
    assert {t.name: t for t in whole.tensors.values() if t.role != "activation"}.items() >= {
        t.name: t for t in two.tensors.values() if t.role != "activation"
    }.items()
    with pytest.raises(AssertionError, match="no more than"):
        shortened(model, layers)
