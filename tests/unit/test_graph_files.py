"""Graph files: what is written is what is read, and what is malformed is refused by field."""

from __future__ import annotations

import copy
import gzip
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from shardwise.errors import BadInput
from shardwise.graph import (
    Graph,
    Operator,
    Tensor,
    canonical_json,
    graph_document,
    graph_from_document,
    graph_id,
    read_graph,
    write_graph,
)


def small_document() -> dict[str, Any]:
    """x → linear → relu → loss."""
    return {
        "schema": "shardwise.graph/1",
        "name": "small",
        "tensors": [
            {"name": "x", "shape": [8, 4], "dtype": "float32", "role": "input", "batch_dim": 0},
            {"name": "w", "shape": [3, 4], "dtype": "float32", "role": "parameter"},
            {"name": "y", "shape": [8, 3], "dtype": "float32", "role": "activation"},
            {"name": "z", "shape": [8, 3], "dtype": "float32", "role": "activation"},
            {"name": "loss", "shape": [], "dtype": "float32", "role": "output"},
        ],
        "operators": [
            {
                "name": "linear",
                "kind": "aten.linear.default",
                "inputs": ["x", "w"],
                "outputs": ["y"],
                "attributes": {"tensor_arguments": ["input", "weight"]},
                "scope": "fc",
            },
            {"name": "relu", "kind": "aten.relu.default", "inputs": ["y"], "outputs": ["z"]},
            {"name": "sum", "kind": "aten.sum.default", "inputs": ["z"], "outputs": ["loss"]},
        ],
    }


def test_a_document_becomes_the_graph_it_describes() -> None:
    graph = graph_from_document(small_document())
    assert graph.tensors["x"] == Tensor("x", (8, 4), "float32", "input", 0)
    assert graph.operators[0] == Operator(
        "linear",
        "aten.linear.default",
        ("x", "w"),
        ("y",),
        {"tensor_arguments": ["input", "weight"]},
        "fc",
    )
    assert graph.batch_size == 8
    assert graph.parameter_count == 12


@pytest.mark.parametrize("name", ["graph.json", "graph.json.gz"])
def test_a_written_graph_is_read_back(tmp_path: Path, name: str) -> None:
    graph = graph_from_document(small_document())
    write_graph(graph, tmp_path / name)
    again = read_graph(tmp_path / name)
    assert graph_document(again) == graph_document(graph)
    assert graph_id(again) == graph_id(graph)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_gzip_is_found_by_content_and_members_are_joined(tmp_path: Path) -> None:
    data = canonical_json(graph_from_document(small_document()))
    path = tmp_path / "graph.json"
    path.write_bytes(gzip.compress(data[:100]) + gzip.compress(data[100:]))
    assert canonical_json(read_graph(path)) == data


def test_the_id_is_that_of_the_content_and_not_of_its_spelling() -> None:
    document = small_document()
    graph = graph_from_document(document)
    shuffled = {key: document[key] for key in reversed(document)}
    shuffled["tensors"] = [dict(reversed(t.items())) for t in document["tensors"]]
    assert graph_id(graph_from_document(shuffled)) == graph_id(graph)
    document["tensors"][1]["dtype"] = "bfloat16"
    assert graph_id(graph_from_document(document)) != graph_id(graph)


def test_the_canonical_form_has_sorted_keys_and_no_spaces() -> None:
    text = canonical_json(graph_from_document(small_document())).decode()
    assert " " not in text
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


def test_the_id_never_changes() -> None:
    # Ids are stored by users: a change of this one is a change of the contract.
    assert graph_id(graph_from_document(small_document())) == (
        "sha256:478b4778aaee85a5ed9ea7cf6237c582b3eb982e1d62831318052fe6baac087a"
    )


def test_operators_are_put_in_order() -> None:
    document = small_document()
    document["operators"].reverse()
    graph = graph_from_document(document)
    assert [op.name for op in graph.operators] == ["linear", "relu", "sum"]


def edit(*path: Any, value: Any) -> Any:
    def apply(document: dict[str, Any]) -> None:
        target: Any = document
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return apply


def delete(*path: Any) -> Any:
    def apply(document: dict[str, Any]) -> None:
        target: Any = document
        for key in path[:-1]:
            target = target[key]
        del target[path[-1]]

    return apply


def cycle(document: dict[str, Any]) -> None:
    document["operators"][0].update(kind="aten.custom", inputs=["z"], attributes={}, name="first")


MALFORMED = {
    "version": (edit("schema", value="shardwise.graph/3"), "schema", "'3' is not known"),
    "kind": (edit("schema", value="shardwise.plan/1"), "schema", "'shardwise.plan/1' is not"),
    "no schema": (delete("schema"), "schema", "missing"),
    "no tensors": (delete("tensors"), "tensors", "missing"),
    "name type": (edit("name", value=3), "name", "Expected 'str'"),
    "shape type": (edit("tensors", 0, "shape", 1, value="4"), "tensors[0].shape[1]", "int"),
    "fraction": (edit("tensors", 0, "shape", 1, value=4.5), "tensors[0].shape[1]", "int"),
    "boolean": (edit("tensors", 0, "shape", 1, value=True), "tensors[0].shape[1]", "int"),
    "zero": (edit("tensors", 0, "shape", 1, value=0), "tensors[0].shape[1]", "dimension of 0"),
    "negative": (edit("tensors", 1, "shape", 0, value=-3), "tensors[1].shape[0]", "-3"),
    "huge": (edit("tensors", 0, "shape", 0, value=2**62), "tensors[0].shape[0]", "elements"),
    "beyond": (edit("tensors", 0, "shape", 0, value=2**90), "tensors[0].shape[0]", ""),
    "dtype": (edit("tensors", 2, "dtype", value="float31"), "tensors[2].dtype", "float31"),
    "role": (edit("tensors", 2, "role", value="weight"), "tensors[2].role", "weight"),
    "batch": (edit("tensors", 0, "batch_dim", value=2), "tensors[0].batch_dim", "2"),
    "unnamed": (edit("tensors", 0, "name", value=""), "tensors[0].name", "without a name"),
    "twice": (edit("tensors", 3, "name", value="y"), "tensors[3].name", "'y'"),
    "operator twice": (edit("operators", 1, "name", value="linear"), "operators[1].name", "linear"),
    "dangling input": (edit("operators", 1, "inputs", 0, value="q"), "operators[1].inputs[0]", "q"),
    "dangling output": (
        edit("operators", 1, "outputs", 0, value="q"),
        "operators[1].outputs[0]",
        "'q'",
    ),
    "made twice": (edit("operators", 1, "outputs", 0, value="y"), "operators[1].outputs[0]", "'y'"),
    "made parameter": (
        edit("operators", 1, "outputs", 0, value="w"),
        "operators[1].outputs[0]",
        "parameter",
    ),
    "made input": (edit("operators", 1, "outputs", 0, value="x"), "operators[1].outputs[0]", "inp"),
    "never made": (delete("operators", 2), "tensors[4]", "no operator makes"),
    "nothing made": (
        edit("operators", 2, "outputs", value=[]),
        "operators[2].outputs",
        "no outputs",
    ),
    "no operators": (edit("operators", value=[]), "operators", "no operators"),
    "operator type": (edit("operators", 1, value=[]), "operators[1]", "object"),
    "cycle": (cycle, "operators[0]", "first -> relu -> first"),
    "shape mismatch": (edit("tensors", 1, "shape", value=[3, 5]), "operators[0].inputs[0]", "4"),
    "result mismatch": (edit("tensors", 3, "shape", value=[8, 4]), "operators[1].outputs[0]", "8"),
    "arguments": (
        edit("operators", 0, "attributes", "tensor_arguments", value=["input"]),
        "operators[0].attributes.tensor_arguments",
        "inputs",
    ),
    "attributes": (edit("operators", 0, "attributes", value=[1]), "operators[0].attributes", ""),
}


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("by_file", [True, False])
def test_a_malformed_graph_is_refused_by_field(tmp_path: Path, case: str, by_file: bool) -> None:
    change, field, words = MALFORMED[case]
    document = copy.deepcopy(small_document())
    change(document)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(BadInput) as caught:
        read_graph(path) if by_file else graph_from_document(document, "bad.json")
    assert caught.value.field == field
    assert words in caught.value.problem + str(caught.value.expected)
    assert str(caught.value.file).endswith("bad.json")
    assert "\n" not in str(caught.value)


def test_a_long_cycle_is_named_but_not_in_full() -> None:
    names = [f"op{i}" for i in range(40)]
    document = small_document()
    document["tensors"] = [
        {"name": f"t{i}", "shape": [2], "dtype": "float32", "role": "activation"} for i in range(40)
    ]
    document["operators"] = [
        {"name": n, "kind": "k", "inputs": [f"t{i - 1 if i else 39}"], "outputs": [f"t{i}"]}
        for i, n in enumerate(names)
    ]
    with pytest.raises(BadInput, match=r"op0 -> op1 -> .* 32 more -> op0"):
        graph_from_document(document)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"deep": [float("-inf")]}])
def test_attributes_hold_finite_numbers_only(value: Any) -> None:
    document = small_document()
    document["operators"][1]["attributes"] = {"alpha": value}
    with pytest.raises(BadInput, match="not a finite number") as caught:
        graph_from_document(document)
    assert str(caught.value.field).startswith("operators[1].attributes.alpha")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"schema": "shardwise.graph/1", "name": NaN}', "byte 40"),
        (b'{"schema": "shardwise.graph/1",}', "not JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'{"schema": "shardwise.graph/1", "name": "\xff\xfe"}', "UTF-8"),
        (b"\xff\xfe{\x00", "not UTF-8"),
        (b'{"schema": "shardwise.graph/1", "name": 1e999, "tensors": []}', "name"),
        (b"[" * 100_000, "object"),
        (b'{"x":' * 100_000, "nested too deeply"),
        (b'{"schema":"shardwise.graph/1","name":' + b"[" * 100_000, ""),
        (b"\x1f\x8bnonsense", "gzip"),
        (gzip.compress(b'{"schema": "shardwise.graph/1"}', mtime=0)[:-12], "gzip"),
    ],
)
def test_malformed_graphs_are_refused(tmp_path: Path, text: bytes, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text)
    with pytest.raises(BadInput) as caught:
        read_graph(path)
    assert words in str(caught.value)
    assert caught.value.file == str(path)


def test_deep_attributes_are_refused(tmp_path: Path) -> None:
    text = json.dumps(small_document()).replace('"scope": "fc"', '"scope": "fc", "X": 0')
    for depth in (20, 100_000):
        nested = '{"a": ' + "[" * depth + "]" * depth + "}"
        bad = text.replace('{"tensor_arguments": ["input", "weight"]}', nested)
        path = tmp_path / "deep.json"
        path.write_text(bad)
        with pytest.raises(BadInput, match="nested too deeply"):
            read_graph(path)


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as stream:
        stream.truncate(10**9)
    with pytest.raises(BadInput, match="1000000000 bytes"):
        read_graph(path)


def test_a_gzip_bomb_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWISE_MAX_FILE_BYTES", "1000000")
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 50_000_000))
    assert path.stat().st_size < 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match="more than 1000000 bytes"):
            read_graph(path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_the_limit_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "graph.json"
    write_graph(graph_from_document(small_document()), path)
    monkeypatch.setenv("SHARDWISE_MAX_FILE_BYTES", "100")
    with pytest.raises(BadInput, match="SHARDWISE_MAX_FILE_BYTES"):
        read_graph(path)
    monkeypatch.setenv("SHARDWISE_MAX_FILE_BYTES", "much")
    with pytest.raises(BadInput, match="a number of bytes"):
        read_graph(path)


def test_paths_that_are_not_files_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.json"):
        with pytest.raises(BadInput, match="directory"):
            read_graph(path)


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_from_document(small_document())
    with pytest.raises(BadInput, match="no such file"):
        write_graph(graph, tmp_path / "missing" / "graph.json")
    path = tmp_path / "graph.json"
    path.write_text("before")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match="no space left"):
        write_graph(graph, path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_too_many_operators_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwise.graph.document.MAX_OPERATORS", 2)
    with pytest.raises(BadInput, match="at most 2"):
        graph_from_document(small_document())


def test_a_long_chain_needs_no_recursion() -> None:
    count = 20_000
    tensors = {f"t{i}": Tensor(f"t{i}", (2,), "float32", "activation") for i in range(1, count)}
    tensors = {"t0": Tensor("t0", (2,), "float32", "input"), **tensors}
    operators = tuple(
        Operator(f"op{i}", "aten.relu.default", (f"t{i - 1}",), (f"t{i}",))
        for i in reversed(range(1, count))
    )
    graph = graph_from_document(graph_document(Graph("chain", tensors, operators)))
    assert [op.name for op in graph.operators[:2]] == ["op1", "op2"]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (("name",), "name"),
        (("tensors", 0, "name"), "tensors[0].name"),
        (("operators", 0, "attributes", "mode"), "operators[0].attributes.mode"),
    ],
)
def test_half_a_surrogate_pair_is_refused(path: tuple[Any, ...], field: str) -> None:
    document = small_document()
    edit(*path, value="half \ud800")(document)
    with pytest.raises(BadInput, match="not Unicode text") as caught:
        graph_from_document(json.loads(json.dumps(document)))
    assert caught.value.field == field
