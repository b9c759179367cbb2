"""Models of transformers with repeated layers: traced once, their graphs are the whole models'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.commands import shardwise
from harness.tiers import some
from shardwise.capture.capture import build, capture
from shardwise.capture.huggingface import training_form
from shardwise.capture.layers import find_repeated_layers
from shardwise.capture.repeated import trace_repeated, trace_whole
from shardwise.capture.source import parse_source
from shardwise.graph import graph_id, read_graph

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ANY = 9.0
"""How much may be traced in all: whatever it costs."""

LLAMA = "hidden_size=64,intermediate_size=96,num_attention_heads=4,num_key_value_heads=2"
IMAGE = "hidden_size=32,intermediate_size=64,num_attention_heads=2,image_size=32"
EXPERTS = f"{LLAMA},moe_intermediate_size=32,head_dim=16"
IN_TEXT = (
    "text_config.hidden_size=256,text_config.num_attention_heads=2,"
    "text_config.num_key_value_heads=1,text_config.intermediate_size=96,text_config.vocab_size=64"
)
IN_TOWER = (
    "vision_config.hidden_size=32,vision_config.num_heads=2,vision_config.intermediate_size=24,"
    "vision_config.out_hidden_size=256,vision_config.image_size="
)
LATENT = "q_lora_rank=24,kv_lora_rank=16,qk_nope_head_dim=16,qk_rope_head_dim=8,v_head_dim=16"

FAMILIES = {
    "gpt2": "gpt2:n_layer=7,n_embd=64,n_head=4",
    "gpt-neox": "gpt-neox-20b:num_hidden_layers=7,hidden_size=64,intermediate_size=96,"
    "num_attention_heads=4",
    "llama": f"llama3-8b:{LLAMA},num_hidden_layers=7",
    "llama tied": f"llama3.2-1b:{LLAMA},num_hidden_layers=7",
    "mistral": f"mistral-7b:{LLAMA},num_hidden_layers=7,head_dim=16",
    "mistral sliding": f"mistral-7b:{LLAMA},num_hidden_layers=7,head_dim=16,sliding_window=8",
    "qwen2.5": f"qwen2.5-7b:{LLAMA},num_hidden_layers=7",
    "qwen3": f"qwen3-8b:{LLAMA},num_hidden_layers=7,head_dim=16",
    "qwen3 experts": f"qwen3-30b-a3b:{EXPERTS},num_hidden_layers=7,num_experts=8",
    "qwen3 some experts": f"qwen3-30b-a3b:{EXPERTS},num_hidden_layers=11,num_experts=8,"
    "decoder_sparse_step=2",
    "mixtral": f"mixtral-8x7b:{LLAMA},num_hidden_layers=7",
    "deepseek": f"deepseek-v3:{LATENT},hidden_size=64,intermediate_size=96,num_attention_heads=4,"
    "num_key_value_heads=4,moe_intermediate_size=32,num_hidden_layers=8,first_k_dense_replace=3,"
    "n_routed_experts=8,num_experts_per_tok=2,n_group=2,topk_group=1",
    "gemma2": f"gemma2-9b:{LLAMA},num_hidden_layers=11,head_dim=16,sliding_window=8",
    "gemma3": f"hf:Gemma3TextConfig:{LLAMA},num_hidden_layers=21,head_dim=16,sliding_window=8",
    "gpt-oss": f"hf:GptOssConfig:{LLAMA},num_hidden_layers=9,head_dim=16,sliding_window=8,"
    "num_local_experts=4",
    "bert": "bert-base:num_hidden_layers=7,hidden_size=64,num_attention_heads=4,"
    "intermediate_size=96",
    "bert masked": "bert-base:num_hidden_layers=7,hidden_size=64,num_attention_heads=4,"
    "intermediate_size=96,attention_mask=true",
    "t5": "t5-large:num_layers=7,num_decoder_layers=8,d_model=64,d_ff=96,num_heads=4,d_kv=16",
    "mamba": "mamba-2.8b:num_hidden_layers=7,hidden_size=32,time_step_rank=4",
    "vit": f"vit-l:{IMAGE},num_hidden_layers=7",
    "whisper": "whisper-large:encoder_layers=7,decoder_layers=6,d_model=64,"
    "encoder_attention_heads=4,decoder_attention_heads=4",
    "clip": "hf:CLIPConfig:text_config.num_hidden_layers=7,vision_config.num_hidden_layers=8",
    # Every eighth layer of the tower has no windows.
    "qwen2.5-vl": f"qwen2.5-vl-7b:{IN_TEXT},text_config.num_hidden_layers=7,{IN_TOWER}56,"
    "vision_config.depth=32,vision_config.window_size=28",
    # Features of two layers of the tower are added in the first two of the language model.
    "qwen3-vl": f"hf:Qwen3VLConfig:{IN_TEXT},text_config.num_hidden_layers=9,{IN_TOWER}64,"
    "vision_config.depth=17",
}
"""At least as many layers as the longer of the two modules that are traced."""

WHOLE = {
    "albert": "hf:AlbertConfig:num_hidden_layers=7",
    "gpt2 scaled by layer": "gpt2:n_layer=7,n_embd=64,n_head=4,"
    "scale_attn_by_inverse_layer_idx=true",
    "sliding from the middle": f"hf:Qwen2Config:{LLAMA},num_hidden_layers=7,"
    "use_sliding_window=true,max_window_layers=4,sliding_window=8",
}
"""No list of layers in them repeats to the end from early on."""


@pytest.mark.parametrize("family", some(FAMILIES, lambda name: name in ("llama", "vit")))
def test_repeated_layers_give_the_whole_models_graph(family: str) -> None:
    model = build(parse_source(FAMILIES[family]), 2, 16, None)
    with training_form():
        whole = trace_whole(model, family, family, unseen)
        graph = trace_repeated(model, family, family, unseen, ANY)
    assert graph is not None
    assert graph_id(graph) == graph_id(whole)
    assert graph == whole


@pytest.mark.full
@pytest.mark.parametrize("family", WHOLE)
def test_other_models_are_traced_whole(family: str) -> None:
    model = build(parse_source(WHOLE[family]), 2, 16, None)
    with training_form():
        assert trace_repeated(model, family, family, unseen, ANY) is None


@pytest.mark.full
@pytest.mark.parametrize("name", ["llama3-405b", "deepseek-v3", "qwen3-235b-a22b"])
def test_a_large_preset_is_traced_in_part(name: str) -> None:
    stages: list[str] = []
    capture(name, progress=lambda stage, fraction: stages.append(stage))
    assert stages[1].startswith(("tracing 3 of ", "tracing 6 of "))
    assert stages[-1] == "repeating layers"


def test_a_config_with_many_layers(tmp_path: Path) -> None:
    fields = dict(pair.split("=") for pair in LLAMA.split(","))
    document = {"model_type": "llama", "num_hidden_layers": 12, "vocab_size": 96}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**document, **{k: int(v) for k, v in fields.items()}}))
    source, output = f"hf:{path}", tmp_path / "graph.json"
    model = build(parse_source(source), 2, 16, None)
    assert len(find_repeated_layers(model.module)) == 1
    with training_form():
        whole = trace_whole(model, source, source, unseen)
    done = shardwise("capture", source, "--batch", "2", "--seq", "16", "-o", str(output))
    assert done.returncode == 0, done.stderr
    assert graph_id(read_graph(output)) == graph_id(whole)


def unseen(stage: str, fraction: float) -> None:
    """Shows no progress."""
