"""Sources taken apart, shipped graphs, and capture without torch: no torch is needed here."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.capture import capture, shipped_graph, shipped_names, zoo_names, zoo_options
from shardwise.capture.source import Source, parse_source, parse_value
from shardwise.errors import CaptureError, NotFound
from shardwise.graph import read_graph


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hf:GPT2Config", Source("hf", "GPT2Config", {}, "hf:GPT2Config")),
        (
            "zoo:lstm:layers=2,hidden=64",
            Source("zoo", "lstm", {"layers": 2, "hidden": 64}, "zoo:lstm:layers=2,hidden=64"),
        ),
        ("my.models:build", Source("callable", "my.models:build", {}, "my.models:build")),
        ("a/model.onnx", Source("onnx", "a/model.onnx", {}, "a/model.onnx")),
        ("onnx:weights.bin", Source("onnx", "weights.bin", {}, "onnx:weights.bin")),
        (
            "C:/m.onnx:batch=8,seq_len=16",
            Source(
                "onnx", "C:/m.onnx", {"batch": 8, "seq_len": 16}, "C:/m.onnx:batch=8,seq_len=16"
            ),
        ),
        ("my.models:A.build", Source("callable", "my.models:A.build", {}, "my.models:A.build")),
    ],
)
def test_a_source_is_taken_apart(text: str, source: Source) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-1", -1),
        ("0.5", 0.5),
        ("1e-5", 1e-5),
        ("true", True),
        ("False", False),
        ("none", None),
        ("sdpa", "sdpa"),
    ],
)
def test_values_have_types(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("model.onnx", "no such file"),
        ("model", "not a model source"),
        (":call", "not a model source"),
        ("hf:", "not a model source"),
        ("zoo::batch=1", "names no model"),
        ("zoo:mlp:batch", "'batch' is not an option"),
        ("zoo:mlp:=3", "is not an option"),
        ("zoo:mlp:batch=1,batch=2", "given twice"),
    ],
)
def test_malformed_sources_are_refused(source: str, words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        capture(source)


@pytest.mark.parametrize(
    ("sizes", "field"),
    [({"batch": 0}, "batch"), ({"seq": -1}, "seq"), ({"dtype": "int9"}, "dtype")],
)
def test_sizes_are_checked_first(sizes: dict[str, object], field: str) -> None:
    with pytest.raises(CaptureError) as caught:
        capture("zoo:mlp", **sizes)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    extras = {"zoo:mlp": "torch", "hf:GPT2Config": "models", "somewhere:build": "torch"}
    for source, extra in extras.items():
        with pytest.raises(CaptureError, match=rf"torch.*shardwise\[{extra}\]"):
            capture(source)


def test_importing_capture_does_not_import_torch() -> None:
    code = (
        "import sys, pkgutil, importlib, shardwise.capture as c\n"
        "for m in pkgutil.walk_packages(c.__path__, 'shardwise.capture.'):\n"
        "    importlib.import_module(m.name)\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_zoo_entries_tell_their_options() -> None:
    assert {"mlp", "vgg16", "wide-resnet-50", "lstm", "transformer", "transformer-s"} <= set(
        zoo_names()
    )
    assert zoo_options("lstm")["steps"] == 20
    assert "depth" not in zoo_options("wide-resnet-101")
    assert zoo_options("transformer-s")["hidden"] == 2688
    with pytest.raises(CaptureError, match="vgg16"):
        zoo_options("vgg61")


SHIPPED = {
    "llama-8b": (8_030_261_248, 64, "bfloat16"),
    "gpt2": (124_439_808, 64, "bfloat16"),
    "vgg16": (138_357_544, 256, "float32"),
    "transformer": (2_603_827_200, 256, "float32"),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_graphs_are_what_they_say(name: str) -> None:
    parameters, batch, dtype = SHIPPED[name]
    path = shipped_graph(name)
    graph = read_graph(path)
    assert graph.name == name
    assert graph.parameter_count == parameters
    assert graph.batch_size == batch
    assert {t.dtype for t in graph.tensors.values() if t.role == "parameter"} == {dtype}
    assert path.stat().st_size < 300_000
    # A time stamp in the gzip header would make each regenerated file another one.
    assert path.read_bytes()[4:8] == bytes(4)


def test_other_names_are_not_shipped() -> None:
    assert set(shipped_names()) == set(SHIPPED)
    with pytest.raises(NotFound, match="llama-8b"):
        shipped_graph("llama-9b")
    assert isinstance(shipped_graph("gpt2"), Path)
