"""Presets whose graphs are shipped: they need neither torch nor a capture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.capture import load_graph, preset_names
from shardwise.capture import shipped as shipped_module
from shardwise.capture.presets import presets
from shardwise.capture.shipped import preset_graph, shipped_presets
from shardwise.graph import graph_id, read_graph

MOST_BYTES = 40_000
"""Bytes of a shipped graph: those of a language model are 3 kB, of SDXL's U-Net 32."""


def test_every_preset_is_shipped_folded() -> None:
    files = shipped_presets()
    assert set(files) == set(preset_names())
    assert all(path.stat().st_size < MOST_BYTES for path in files.values())


@pytest.mark.parametrize("name", preset_names())
def test_a_shipped_preset_has_its_name_batch_and_parameters(name: str) -> None:
    path, preset = preset_graph(name), presets()[name]
    assert path is not None
    graph = read_graph(path)
    assert (graph.name, graph.batch_size) == (name, preset.batch)
    assert graph.parameter_count == pytest.approx(preset.parameters, rel=0.005)


def test_a_preset_is_read_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "from shardwise.capture import load_graph\n"
        "print(load_graph('hf:meta-llama/Meta-Llama-3-8B').name, load_graph('llama3-8b').name)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["llama3-8b", "llama3-8b"], done.stderr


def test_what_is_not_shipped_is_captured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A preset with options, and one whose file is not there."""
    pytest.importorskip("transformers")
    small = load_graph("gpt2:n_layer=1,n_embd=32,n_head=2,vocab_size=64")
    assert small.name == "gpt2:n_layer=1,n_embd=32,n_head=2,vocab_size=64"
    monkeypatch.setattr(shipped_module, "PRESETS_FOLDER", tmp_path)
    assert preset_graph("gpt2") is None and shipped_presets() == {}


@pytest.mark.full
@pytest.mark.torch
@pytest.mark.parametrize("name", preset_names())
def test_a_shipped_graph_is_that_of_a_capture(name: str) -> None:
    """In `make test` that of GPT-2 (test_capture_presets.py)."""
    pytest.importorskip("transformers")
    from shardwise.capture import capture

    assert graph_id(load_graph(name)) == graph_id(capture(name))
