"""Symbols of graphs: what a file gives at other sizes is what a capture gives there."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from harness.commands import shardwise
from harness.tiers import some
from shardwise.capture import capture, load_graph, preset_names
from shardwise.capture.presets import presets
from shardwise.capture.shipped import shipped_presets
from shardwise.capture.symbol_points import symbolic_of_source
from shardwise.errors import BadInput
from shardwise.graph import graph_id, read_graph
from shardwise.graph.document import graph_from_json
from shardwise.step_sizes import StepSizes
from tests.integration.models.test_capture_repeated import FAMILIES

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SEQ = 64
"""The captured length of families: longer than their windows of 8."""

BATCH, PARTS = 6, 3
"""Of the sizes that no graph was made of: the batch, and the part of the captured length."""


@pytest.mark.parametrize("name", some(preset_names(), lambda name: name in ("gpt2", "vit-b")))
def test_a_preset_is_at_other_sizes_what_a_capture_gives(name: str) -> None:
    """At a batch and a length that the symbols were not found with."""
    seq = presets()[name].seq
    tokens = None if seq is None else seq - seq // PARTS
    symbols = json.loads(gzip.decompress(shipped_presets()[name].read_bytes())).get("symbols")
    if symbols is None:
        with pytest.raises(BadInput, match="alone"):
            load_graph(name, batch=BATCH)
        return
    if seq is not None and symbols["seq"]["least"] == symbols["seq"]["most"]:
        tokens = None
    there = load_graph(name, batch=BATCH, seq=tokens)
    assert graph_id(there) == graph_id(capture(name, batch=BATCH, seq=tokens))


@pytest.mark.parametrize("family", some(FAMILIES, lambda name: name in ("llama", "vit", "t5")))
def test_families_of_models_have_symbols(family: str) -> None:
    source = FAMILIES[family]
    document = symbolic_of_source(source, capture(source, batch=4, seq=SEQ), 4, SEQ, None)
    assert document is not None
    held = json.loads(document)["symbols"]["seq"]
    for batch, seq in ((3, SEQ), (3, 77), (10, 400)):
        if not held["least"] <= seq <= held["most"]:
            with pytest.raises(BadInput, match="does not hold"):
                graph_from_json(document, sizes=StepSizes(batch, seq))
            continue
        there = graph_from_json(document, sizes=StepSizes(batch, seq))
        assert graph_id(there) == graph_id(capture(source, batch=batch, seq=seq))


def test_capture_writes_symbols_unless_told_not_to(tmp_path: Path) -> None:
    source = "gpt2:n_layer=2,n_embd=64,n_head=2,vocab_size=128,n_positions=512"
    wanted = graph_id(capture(source, batch=3, seq=40))
    path = str(tmp_path / "graph.json")
    done = shardwise("capture", source, "--batch", "4", "--seq", "64", "-o", path, "--quiet")
    assert done.returncode == 0, done.stderr
    assert graph_id(load_graph(path, batch=3, seq=40)) == wanted
    assert graph_id(read_graph(path)) == graph_id(capture(source, batch=4, seq=64))
    fixed = str(tmp_path / "fixed.json")
    sizes = ("--batch", "4", "--seq", "64")
    done = shardwise("capture", source, *sizes, "--fixed", "-o", fixed, "--quiet")
    assert done.returncode == 0, done.stderr
    with pytest.raises(BadInput, match="batch 4 and sequence 64 alone"):
        load_graph(fixed, batch=3)


def test_sizes_may_be_options_of_a_source() -> None:
    source = "gpt2:n_layer=1,n_embd=64,n_head=2,vocab_size=128"
    named = capture(f"{source},batch=3,seq=40")
    assert graph_id(named) == graph_id(capture(source, batch=3, seq=40))
    assert graph_id(load_graph(f"{source},seq=40", batch=3)) == graph_id(named)
