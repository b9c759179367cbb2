"""Graphs with their layers written once: what is folded unfolds to what it was, row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.graph_builder import layers, mlp
from shardwise.capture import shipped_graph
from shardwise.errors import BadInput
from shardwise.folding import fold_rows, unfold_rows
from shardwise.graph import Graph, graph_id, read_graph, write_graph
from shardwise.graph.document import (
    canonical_json,
    folded_document,
    folded_json,
    graph_document,
    graph_from_document,
    graph_from_json,
)

SHIPPED = ["gpt2", "llama-8b", "transformer", "vgg16"]


def shipped(name: str) -> Graph:
    return read_graph(shipped_graph(name))


@pytest.mark.parametrize("name", SHIPPED)
def test_an_unfolded_graph_is_the_same_byte_for_byte(name: str) -> None:
    graph = shipped(name)
    again = graph_from_json(folded_json(graph))
    assert canonical_json(again) == canonical_json(graph)
    assert list(again.tensors) == list(graph.tensors)
    assert graph_id(again) == graph_id(graph)
    assert graph_id(graph_from_document(folded_document(graph))) == graph_id(graph)


def test_layers_are_written_once() -> None:
    """The size does not depend on the depth."""
    few, many = folded_json(layers(8, 4, 16)), folded_json(layers(512, 4, 16))
    assert len(many) < len(few) + 40
    assert len(folded_json(shipped("llama-8b"))) < len(canonical_json(shipped("llama-8b"))) / 10


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_files_are_read_in_both_forms(suffix: str, tmp_path: Path) -> None:
    graph = shipped("gpt2")
    whole, folded = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    write_graph(graph, whole)
    write_graph(graph, folded, folded=True)
    assert folded.stat().st_size < whole.stat().st_size / 2
    assert graph_id(read_graph(folded)) == graph_id(read_graph(whole)) == graph_id(graph)


NAMES = st.from_regex(r"[a-z.]{0,3}[0-9]{0,3}[a-z]{0,2}[0-9]{0,2}[{}k+\"]?", fullmatch=True)
SMALL_ROWS = st.fixed_dictionaries(
    {
        "name": NAMES,
        "shape": st.lists(st.integers(1, 2), max_size=1),
        "in": st.lists(NAMES, max_size=1),
    }
)


def repeated(rows: list[dict[str, Any]], times: int, step: int) -> list[dict[str, Any]]:
    """Returns rows that repeat, each name with a number that grows from instance to instance."""
    return [
        {**row, "name": f"{row['name']}.{5 + step * k}", "in": [f"x{k}", *row["in"]]}
        for k in range(times)
        for row in rows
    ]


@given(
    st.lists(SMALL_ROWS, max_size=4),
    st.lists(SMALL_ROWS, min_size=1, max_size=4),
    st.integers(1, 7),
    st.integers(0, 3),
    st.lists(SMALL_ROWS, max_size=4),
)
def test_any_rows_unfold_to_what_they_were(
    before: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    times: int,
    step: int,
    after: list[dict[str, Any]],
) -> None:
    whole = [*before, *repeated(rows, times, step), *after, *repeated(rows, times, step)]
    folded = json.loads(json.dumps(fold_rows(whole)))
    assert unfold_rows(folded, 1000, "rows") == whole


def test_numbers_fall_and_grow_by_their_own_steps() -> None:
    rows = [
        {"name": f"up_{k * 4 + i}.down{90 - 2 * k}.007.{i}", "shape": [3, 1]}
        for k in range(5)
        for i in range(3)
    ]
    assert fold_rows(rows) == [
        {
            "repeat": 5,
            "rows": [
                {"name": f"up_{{{i}+4k}}.down{{90-2k}}.007.{i}", "shape": [3, 1]} for i in range(3)
            ],
        }
    ]
    assert unfold_rows(fold_rows(rows), 15, "rows") == rows


def test_what_changes_otherwise_is_not_folded() -> None:
    squares = [{"name": f"x{k * k}"} for k in range(7)]
    sizes = [{"name": f"x{k}", "shape": [k]} for k in range(12)]
    braces = [{"name": f"{{{k}+1k}}"} for k in range(12)]
    for rows in (squares, sizes, braces):
        assert fold_rows(rows) == rows


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"repeat": 0, "rows": []}, "tensors[1].repeat"),
        ({"repeat": "9" * 300, "rows": []}, "tensors[1].repeat"),
        ({"repeat": True, "rows": []}, "tensors[1].repeat"),
        ({"repeat": 2}, "tensors[1].rows"),
        ({"repeat": 2, "rows": [3]}, "tensors[1].rows"),
        ({"repeat": 10**9, "rows": [{"name": "x{0+1k}"}]}, "tensors[1]"),
        ({"repeat": 10**6, "rows": [{"name": "x" * 2**12}]}, "tensors[1]"),
    ],
)
def test_a_repeat_that_is_none_or_too_long_is_refused(item: object, field: str) -> None:
    document = folded_document(mlp())
    document["tensors"] = [document["tensors"][0], item]
    for read in (graph_from_document, lambda d: graph_from_json(json.dumps(d).encode())):
        with pytest.raises(BadInput) as caught:
            read(document)
        assert caught.value.field == field and len(str(caught.value)) < 200


def test_an_unfolded_row_is_checked_as_any_other() -> None:
    document = folded_document(layers(8, 4, 16))
    document["tensors"] = [*document["tensors"], {"repeat": 2, "rows": [{"name": "x"}]}]
    with pytest.raises(BadInput, match="shape"):
        graph_from_document(document)
    assert graph_document(layers(8, 4, 16))["schema"] == "shardwise.graph/1"
