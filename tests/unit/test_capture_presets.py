"""Presets and configurations by name, taken apart: no torch is needed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.capture import load_graph, preset_names, shipped_graph
from shardwise.capture.presets import NONE, find_preset, near_presets, presets
from shardwise.capture.source import Source, parse_preset, parse_source
from shardwise.capture.torch_extra import DTYPES
from shardwise.errors import BadInput, CaptureError
from shardwise.graph import read_graph

ASKED_FOR = (
    *("llama3-8b", "llama3-70b", "llama3-405b", "qwen3-32b", "qwen3-235b-a22b"),
    *("mixtral-8x22b", "deepseek-v3", "gpt2", "bert-large", "vit-l", "sdxl-unet"),
)


def test_the_presets_that_were_asked_for_are_there() -> None:
    assert set(ASKED_FOR) <= set(preset_names())


def test_a_name_or_alias_is_that_of_one_preset() -> None:
    named = [(alias.lower(), name) for name, p in presets().items() for alias in p.aliases]
    named += [(name, name) for name in preset_names()]
    assert len(dict(named)) == len(named)
    for alias, name in named:
        assert find_preset(alias) == name
    # Presets are parts of sources: a colon would end their name, an equals sign would be an option.
    assert not any(set(":=, ") & set(alias) for alias, _ in named)


@pytest.mark.parametrize("name", preset_names())
def test_a_row_of_the_table_is_complete(name: str) -> None:
    preset = presets()[name]
    assert preset.config.endswith("Config") is (preset.kind == "hf")
    assert preset.batch > 0
    assert preset.source
    assert preset.dtype is None or preset.dtype in DTYPES
    assert NONE not in preset.fields.values()
    assert (preset.seq is None) == (preset.config == "ViTConfig")


def test_the_page_has_the_table() -> None:
    lines = (Path(__file__).parents[2] / "docs" / "presets.md").read_text("utf-8").splitlines()
    wanted = []
    for name, p in presets().items():
        usual = "float32" if p.seq is None else "bfloat16"
        seq = "" if p.seq is None else f"{p.seq:,}"
        row = (f"`{name}`", f"{p.parameters:,}", p.batch, seq, p.dtype or usual, p.source)
        wanted.append(f"| {' | '.join(map(str, row))} |")
    assert [line for line in lines if line.startswith("| `")] == wanted


@pytest.mark.parametrize(
    "text",
    [
        "llama3-8b",
        "preset:llama3-8b",
        "Llama3-8B",
        "llama3.1-8b",
        "hf:meta-llama/Meta-Llama-3-8B",
        "hf:meta-llama/Llama-3-8B",
        "hf:llama3-8b",
    ],
)
def test_all_names_are_one_source(text: str) -> None:
    parsed = parse_source(text)
    assert (parsed.kind, parsed.target, parsed.origin) == ("hf", "llama3-8b", "preset")
    assert parsed.name == "llama3-8b"
    changed = parse_source(f"{text}:num_hidden_layers=2,tie_word_embeddings=True")
    assert changed.options == {"num_hidden_layers": 2, "tie_word_embeddings": True}
    assert changed.name == "llama3-8b:num_hidden_layers=2,tie_word_embeddings=true"


@pytest.mark.parametrize(
    "text", ["sdxl-unet", "hf:sdxl", "diffusers:stabilityai/stable-diffusion-xl-base-1.0"]
)
def test_a_preset_of_diffusers_is_one(text: str) -> None:
    parsed = parse_source(f"{text}:sample_size=64")
    assert (parsed.kind, parsed.target, parsed.origin) == ("diffusers", "sdxl-unet", "preset")
    assert parsed.name == "sdxl-unet:sample_size=64"


def test_a_callable_may_have_the_name_of_a_preset() -> None:
    assert parse_source("gpt2:build") == Source("callable", "gpt2:build", {}, "gpt2:build")
    assert parse_preset("gpt2:build") is None
    assert parse_source("zoo:mlp").name == "zoo:mlp"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lama3-8b", "llama3-8b"),
        ("llama3_70b:num_hidden_layers=2", "llama3-70b"),
        ("preset:gpt-2", "gpt2"),
        ("qwen3-253b-a22b", "qwen3-235b-a22b"),
        ("preset:xyz", ", ".join(preset_names())),
    ],
)
def test_typos_are_answered_with_near_names(text: str, expected: str) -> None:
    with pytest.raises(CaptureError, match="there is no preset") as caught:
        parse_source(text)
    assert str(caught.value.expected).startswith(expected)
    assert near_presets("something else") == []


def test_a_name_of_a_hub_says_how_to_get_the_file() -> None:
    with pytest.raises(CaptureError, match="no model hub is contacted") as caught:
        parse_source("hf:meta-llama/Llama-3-8B-New")
    assert "hf:./Llama-3-8B-New, or a preset: llama3-8b" in str(caught.value)
    with pytest.raises(CaptureError) as caught:
        parse_source("hf:someone/else")
    assert "a preset" not in str(caught.value.expected)
    with pytest.raises(CaptureError, match="no model hub is contacted") as caught:
        parse_source("diffusers:facebook/DiT-XL-2-256")
    assert "--include '*/config.json' --local-dir DiT-XL-2-256" in str(caught.value)
    assert "as diffusers:./DiT-XL-2-256" in str(caught.value)


def test_paths_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("hf:./config.json", "hf:config.json", "hf:mine/", "hf:.", "hf:~/m:n_layer=1"):
        parsed = parse_source(text)
        assert parsed.origin == "file"
        assert parsed.name == text
    assert parse_source("hf:GPT2Config").origin == "class"
    folder = tmp_path / "org" / "model"
    folder.mkdir(parents=True)
    with pytest.raises(CaptureError):
        parse_source("hf:org/model")
    (folder / "config.json").write_text("{}")
    assert parse_source("hf:org/model").origin == "file"


def test_a_file_goes_before_the_preset_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama3-8b").write_bytes(shipped_graph("vgg16").read_bytes())
    assert load_graph("llama3-8b") == read_graph(shipped_graph("vgg16"))
    with pytest.raises(BadInput, match="no such file or preset") as caught:
        load_graph("llama3-80b")
    assert "llama3-8b" in str(caught.value.expected)
    for other in ("graph.json", "zoo:wide-resnet-50"):
        with pytest.raises(BadInput, match="no such file or preset") as caught:
            load_graph(other)
        assert "shardwise capture MODEL -o FILE" in str(caught.value.expected)
