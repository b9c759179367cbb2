"""What a plan says about executing it: variables, loads, moves, and copies that are recomputed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from harness.answers import plan
from shardwise.answers import Options
from shardwise.capture import capture
from shardwise.graph import Graph
from shardwise.hardware import load_hardware
from shardwise.sharding.layout import describe
from shardwise.sharding.operator_layouts import operator_layouts
from shardwise.tdl.registry import analyse

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture(
        "hf:LlamaConfig:hidden_size=64,intermediate_size=96,num_hidden_layers=1,"
        "num_attention_heads=4,num_key_value_heads=2,vocab_size=128",
        batch=4,
        seq=16,
    )


@pytest.fixture(scope="module", params=["mini-time", "mini-memory"])
def document(request: Any, graph: Graph) -> dict[str, Any]:
    options = Options(overlap=False, recompute="auto")
    hardware = load_hardware("dgx-a100-80gb")
    return plan(graph, hardware, 8, objective=request.param, options=options)


def test_variables_give_the_layouts_that_are_written(
    graph: Graph, document: dict[str, Any]
) -> None:
    by_name = {op.name: op for op in graph.operators}
    seen = 0
    for group in document["groups"]:
        for entry in group["operators"]:
            op = by_name[entry["name"]]
            semantics = analyse(op, graph.tensors)
            layouts = operator_layouts(semantics, tuple(entry["variables"]))
            for name, pair in zip(op.outputs, layouts.outputs, strict=True):
                assert entry["outputs"][name] == describe(pair.forward, ())
                seen += 1
            for v, word in zip(entry["variables"], entry["split"], strict=True):
                assert word == (None if v is None else semantics.variables[v].name)
    assert seen > 20


def test_loads_and_moves_lead_to_what_their_reader_wants(
    graph: Graph, document: dict[str, Any]
) -> None:
    inputs = {name for name, tensor in graph.tensors.items() if tensor.role == "input"}
    loaded = set()
    for group in document["groups"]:
        for entry in group["operators"]:
            for load in entry["loads"]:
                loaded.add(load["tensor"])
                reached = load["steps"][-1]["result"] if load["steps"] else load["arrives"]
                assert reached == entry["inputs"][load["tensor"]]
            for move in entry["moves"]:
                assert by_port(graph, entry["name"])[move["input"]] == move["tensor"]
                if move["forward"]:
                    assert move["forward"][-1]["result"] == entry["inputs"][move["tensor"]]
    assert loaded == inputs


def by_port(graph: Graph, name: str) -> tuple[str, ...]:
    """The inputs of an operator."""
    return next(op.inputs for op in graph.operators if op.name == name)


def test_what_is_kept_before_is_moved_again(document: dict[str, Any]) -> None:
    for edge in document["edges"]:
        assert edge["layout_at_target"] == (
            edge["forward"][-1]["result"] if edge["forward"] else edge["layout_at_source"]
        )
        if edge["kept"] in ("before", "rebuilt"):
            assert edge["again"] == edge["forward"]
        if edge["kept"] in ("one", "both"):
            assert edge["again"] == []
