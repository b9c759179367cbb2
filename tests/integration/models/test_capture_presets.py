"""Presets and config.json files as graphs: sizes as published, names, defaults, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.commands import shardwise
from harness.tiers import some
from shardwise.capture import capture, load_graph, preset_names
from shardwise.capture.capture import build
from shardwise.capture.config_file import MAX_CONFIG_BYTES
from shardwise.capture.presets import presets
from shardwise.capture.source import parse_source
from shardwise.errors import CaptureError
from shardwise.graph import graph_id, read_graph
from shardwise.graph.inspect import inspect_graph
from shardwise.graph.step import step_of
from shardwise.tdl import registry

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

FEW_LAYERS = {
    "GPT2Config": "n_layer=2",
    "T5Config": "num_layers=1,num_decoder_layers=1",
    "WhisperConfig": "encoder_layers=1,decoder_layers=1",
    "Qwen2_5_VLConfig": "text_config.num_hidden_layers=2,vision_config.depth=2",
    "UNet2DConditionModel": "transformer_layers_per_block=1,sample_size=32",
    "FluxTransformer2DModel": "num_layers=1,num_single_layers=1,sample_size=32",
    "WanTransformer3DModel": "num_layers=1,frames=3,sample_size=32",
    # The first three are dense.
    "DeepseekV3Config": "num_hidden_layers=4",
    "Glm4MoeConfig": "num_hidden_layers=4",
    # Every fourth layer has full attention, or no positions; of Gemma 3 every sixth.
    "Llama4TextConfig": "num_hidden_layers=4",
    "Qwen3NextConfig": "num_hidden_layers=4",
    "Qwen3_5TextConfig": "num_hidden_layers=4",
    "Qwen3_5MoeTextConfig": "num_hidden_layers=4",
    "SmolLM3Config": "num_hidden_layers=4",
    "Gemma3TextConfig": "num_hidden_layers=6",
    # MEMEM*: a scan, experts, attention; M-M-M-MM-M-M-M*: a scan, a network, attention.
    "NemotronHConfig": "num_hidden_layers=15",
}
SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


def config(folder: Path, **changes: Any) -> str:
    """Writes a small Llama's config.json with changes; returns its path."""
    path = folder / "config.json"
    document = {k: v for k, v in {**SMALL, **changes}.items() if v != "absent"}
    path.write_text(json.dumps(document))
    return str(path)


def dtypes(source: str, **asked: Any) -> set[str]:
    graph = capture(source, batch=2, **asked)
    return {t.dtype for t in graph.tensors.values() if t.role == "parameter"}


ALWAYS = ("gpt2", "llama3.2-1b", "vit-b", "qwen3-30b-a3b")
"""Presets whose parameters `make test` counts: tied and untied heads, bfloat16, images, experts."""


@pytest.mark.parametrize("name", some(preset_names(), lambda name: name in ALWAYS))
def test_a_preset_has_the_published_parameters(name: str) -> None:
    module = build(parse_source(name), None, None, None).module
    parameters = list(module.parameters())
    assert sum(p.numel() for p in parameters) == pytest.approx(
        presets()[name].parameters, rel=0.005
    )
    usual = "float32" if name.startswith("vit") else "bfloat16"
    assert parameters[0].dtype == getattr(torch, presets()[name].dtype or usual)


@pytest.mark.parametrize("name", some(preset_names(), lambda name: name == "qwen3-30b-a3b"))
def test_a_preset_is_captured_with_a_few_of_its_layers(name: str) -> None:
    preset = presets()[name]
    source = f"{name}:{FEW_LAYERS.get(preset.config, 'num_hidden_layers=2')}"
    graph = capture(source)
    assert graph.name == source
    step = step_of(graph)
    # Text that comes as embeddings is no sequence of tokens.
    seq = preset.seq if preset.kind == "hf" else None
    assert (step.batch, step.seq) == (preset.batch, seq)
    assert step.predicts_tokens is (seq is not None)
    assert inspect_graph(graph, registry.analyse)["undescribed_operators"] == []


def test_gpt2_is_one_graph_by_all_of_its_names() -> None:
    graph = capture("gpt2")
    assert graph.name == "gpt2"
    assert graph.parameter_count == 124_439_808
    # The shipped graph was made with these sizes and dtype.
    assert graph_id(graph) == graph_id(load_graph("shipped:gpt2")) == graph_id(load_graph("gpt2"))
    small = {"batch": 2, "seq": 16}
    ids = {graph_id(capture(f"{s}:n_layer=1", **small)) for s in ("gpt2", "preset:gpt2", "hf:gpt2")}
    assert ids == {graph_id(load_graph_of("gpt2:n_layer=1", **small))}
    assert graph_id(capture("gpt2:n_layer=1", name="mine", **small)) not in ids


def load_graph_of(source: str, **asked: Any) -> Any:
    """The same model by its class, under the preset's name."""
    by_class = source.replace("gpt2", "hf:GPT2Config")
    return capture(by_class, dtype="bf16", name=source, **asked)


def test_a_preset_is_a_graph_of_any_command() -> None:
    graph = load_graph("gpt2:n_layer=1,n_positions=1024")
    assert graph.name == "gpt2:n_layer=1,n_positions=1024"
    assert graph.batch_size == 64


@pytest.mark.parametrize("form", ["hf:./config.json", "hf:./", "hf:config.json", "hf:{}"])
def test_a_config_is_its_class_with_its_fields(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config(tmp_path, auto_map={"AutoModelForCausalLM": "modeling_no.Such"}, rope_theta=5e5)
    options = ",".join(f"{k}={v}" for k, v in SMALL.items() if k != "model_type")
    wanted = capture(f"hf:LlamaConfig:{options}", batch=2, seq=8, dtype="bf16", name="small")
    graph = capture(form.format(tmp_path), batch=2, seq=8, name="small")
    assert graph_id(graph) == graph_id(wanted)


def test_options_change_a_config(tmp_path: Path) -> None:
    layers = ["full_attention"] * 3
    path = config(tmp_path, layer_types=layers, model_type="qwen3", head_dim=16)
    graph = capture(f"hf:{path}:num_hidden_layers=1,vocab_size=64", batch=2, seq=8)
    assert graph.name == f"hf:{path}:num_hidden_layers=1,vocab_size=64"
    assert graph.tensors["model.embed_tokens.weight"].shape == (64, 64)
    assert not any(name.startswith("model.layers.1.") for name in graph.tensors)
    with pytest.raises(CaptureError, match=r"num_hidden_layer: .*has no option") as caught:
        capture(f"hf:{path}:num_hidden_layer=1")
    assert "num_hidden_layers" in str(caught.value.expected)


def test_layers_that_a_pattern_spells_are_counted(tmp_path: Path) -> None:
    pattern = {"hybrid_override_pattern": "M-*M-*", "num_hidden_layers": 6, "head_dim": 16}
    mamba = {"mamba_num_heads": 4, "mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 16}
    path = config(tmp_path, model_type="nemotron_h", **pattern, **mamba)
    few = capture(f"hf:{path}:num_hidden_layers=3", batch=2, seq=8)
    spelt = capture(f"hf:{path}:hybrid_override_pattern=M-*", batch=2, seq=8)
    assert few.operators == spelt.operators
    assert [op.kind for op in few.operators].count("shardwise.chunk_scan.default") == 1
    with pytest.raises(CaptureError, match="each of its 6 layers is, not of 7") as caught:
        capture(f"hf:{path}:num_hidden_layers=7")
    assert caught.value.field == "num_hidden_layers"
    # The class alone has no number that an option could change.
    with pytest.raises(CaptureError, match="no option 'num_hidden_layers'"):
        capture("hf:NemotronHConfig:num_hidden_layers=3")


def test_the_default_dtype(tmp_path: Path) -> None:
    path = f"hf:{config(tmp_path)}"
    assert dtypes(path, seq=8) == {"bfloat16"}
    assert dtypes(path, seq=8, dtype="float32") == {"float32"}
    config(tmp_path, torch_dtype="float16")
    assert dtypes(path, seq=8) == {"float16"}
    config(tmp_path, dtype="float32")
    assert dtypes(path, seq=8) == {"float32"}
    image = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": "absent"}
    config(tmp_path, model_type="vit", image_size=32, vocab_size="absent", **image)
    assert dtypes(path) == {"float32"}
    # A bare class keeps the default that it had.
    options = ",".join(f"{k}={v}" for k, v in SMALL.items() if k != "model_type")
    assert dtypes(f"hf:LlamaConfig:{options}", seq=8) == {"float32"}


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"model_type": "lama"}, "model_type", "llama"),
        ({"model_type": "absent"}, "model_type", "missing"),
        ({"model_type": 3}, "model_type", "no model type 3"),
        ({"hidden_size": "64"}, "hidden_size", "not of type int"),
        ({"num_hidden_layers": -1}, "num_hidden_layers", "negative"),
        ({"torch_dtype": "int4"}, "torch_dtype", "unknown dtype"),
        ({"num_attention_heads": 7}, None, "num_attention_heads|divisible|multiple"),
    ],
)
def test_what_is_wrong_in_a_config_is_named(
    changes: dict[str, Any], field: str | None, words: str, tmp_path: Path
) -> None:
    path = config(tmp_path, **changes)
    with pytest.raises(CaptureError, match=words) as caught:
        capture(f"hf:{path}")
    assert caught.value.file == path
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1", "not JSON"),
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "not JSON|nested"),
        (" " * (MAX_CONFIG_BYTES + 1), "the file has 16777217 bytes"),
        (None, "no such file"),
    ],
)
def test_a_file_that_is_no_config(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CaptureError, match=words) as caught:
        capture(f"hf:{tmp_path}/")
    assert caught.value.file == str(path)


def test_the_commands_state_the_step(tmp_path: Path) -> None:
    output = tmp_path / "graph.json"
    source = f"hf:{config(tmp_path)}"
    done = shardwise("capture", source, "--batch", "2", "--seq", "16", "-o", str(output))
    assert done.returncode == 0, done.stderr
    assert "batch 2, sequence 16, bfloat16, cross entropy" in done.stderr
    assert "adam with float32 state" in done.stderr
    assert read_graph(output).name == source
    done = shardwise("inspect", str(output))
    assert "batch 2, sequence 16, bfloat16, cross entropy" in done.stdout
    document = json.loads(shardwise("inspect", str(output), "--json").stdout)
    stated = {key: document[key] for key in ("batch_size", "seq", "dtype", "loss")}
    assert stated == {
        "batch_size": 2,
        "seq": 16,
        "dtype": "bfloat16",
        "loss": "aten.cross_entropy_loss.default",
    }
    asked = (str(output), "--dtype", "float32", "--json")
    done = shardwise("capture", source, "--batch", "2", "--seq", "16", "-o", *asked)
    assert json.loads(done.stdout)["dtype"] == "float32"
    few = ("--micro-batches", "1", "--zero", "0", "--recompute", "never", "--quiet")
    done = shardwise("plan", str(output), "--hardware", "dgx-h100", "--gpus", "2", *few)
    assert "is trained in float32: bf16 halves activations" in done.stderr
