"""Tensors that are allocated and filled part by part: captured as concatenations."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from shardwise.capture import capture
from shardwise.graph import Graph

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.torch


class Filled(nn.Module):  # type: ignore[misc,name-defined]
    """Two linear layers whose results are written into one tensor, then a sum."""

    def __init__(self, fill: Callable[[Any, Any, Any], None]) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 2)
        self.fill = fill

    def forward(self, x: Any) -> Any:
        left, right = self.left(x), self.right(x)
        whole = left.new_empty(left.shape[0], 5)
        self.fill(whole, left, right)
        return whole.exp().sum()


def graph_of(
    monkeypatch: pytest.MonkeyPatch, fill: Callable[[Any, Any, Any], None]
) -> tuple[Graph, list[str]]:
    module = types.ModuleType("users_model")
    module.build = lambda: (Filled(fill), (torch.zeros(2, 4),))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users_model", module)
    graph = capture("users_model:build")
    return graph, [op.kind.removeprefix("aten.") for op in graph.operators]


def by_halves(whole: Any, left: Any, right: Any) -> None:
    whole[:, :3].copy_(left)
    whole[:, 3:].copy_(right)


def by_halves_from_the_end(whole: Any, left: Any, right: Any) -> None:
    whole[:, 3:].copy_(right)
    whole[:, :3].copy_(left)


@pytest.mark.parametrize("fill", [by_halves, by_halves_from_the_end])
def test_parts_that_cover_a_tensor_are_concatenated(
    monkeypatch: pytest.MonkeyPatch, fill: Callable[[Any, Any, Any], None]
) -> None:
    graph, kinds = graph_of(monkeypatch, fill)
    assert sorted(kinds) == ["cat.default", "exp.default", "linear.default", "linear.default",
                             "sum.default"]  # fmt: skip
    (cat,) = (op for op in graph.operators if op.kind == "aten.cat.default")
    assert [graph.tensors[name].shape for name in cat.inputs] == [(2, 3), (2, 2)]
    assert cat.attributes["dim"] == 1
    assert graph.tensors[cat.outputs[0]].shape == (2, 5)


def overlapping(whole: Any, left: Any, right: Any) -> None:
    whole[:, :3].copy_(left)
    whole[:, 2:4].copy_(right)


def with_gap(whole: Any, left: Any, right: Any) -> None:
    whole[:, :2].copy_(right)
    whole[:, 3:].copy_(right)


def reading_what_was_there(whole: Any, left: Any, right: Any) -> None:
    whole[:, :3].add_(left)
    whole[:, 3:].copy_(right)


def broadcasting(whole: Any, left: Any, right: Any) -> None:
    whole[:, :3].copy_(left[:, :1])
    whole[:, 3:].copy_(right)


@pytest.mark.parametrize("fill", [overlapping, with_gap, broadcasting, reading_what_was_there])
def test_what_reads_the_empty_tensor_keeps_it(
    monkeypatch: pytest.MonkeyPatch, fill: Callable[[Any, Any, Any], None]
) -> None:
    _, kinds = graph_of(monkeypatch, fill)
    assert "empty.memory_format" in kinds
