"""The graph of the model that a trainer's file names, when no graph is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cases import every
from harness.graph_builder import GraphBuilder
from shardwise.capture.named_model import source_of
from shardwise.cli.explain import explain
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.trainers.read import read_configuration

TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 1
"""
AXOLOTL = """base_model: NousResearch/Meta-Llama-3.1-8B
datasets: [{path: x, type: alpaca}]
micro_batch_size: 1
sequence_len: 2048
"""
LLAMA_BLOCK = (
    " --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
)
LLAMA = (
    "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4"
    " --micro-batch-size 1 --global-batch-size 8 --seq-length 32"
    f"{LLAMA_BLOCK} --untie-embeddings-and-output-weights"
)
GPT3 = (
    "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --micro-batch-size 1"
    " --seq-length 2048"
)
NEMO = """
trainer: {devices: 8, num_nodes: 1, precision: bf16}
model: {micro_batch_size: 1, global_batch_size: 8, encoder_seq_length: 4096, num_layers: 32,
  hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, num_query_groups: 8,
  activation: fast-swiglu, normalization: rmsnorm, bias: false, position_embedding_type: rope,
  share_embeddings_and_output_weights: false, mcore_gpt: true}
"""
PRIMUS = """
modules:
  pre_trainer:
    framework: megatron
    model: llama3.1_8B.yaml
    overrides: {micro_batch_size: 2, global_batch_size: 32, seq_length: 8192}
"""
NANOTRON = """
parallelism: {dp: 8, tp: 1, pp: 1}
tokens: {sequence_length: 32, micro_batch_size: 1, batch_accumulation_per_replica: 1}
model: {model_config: {num_hidden_layers: 2, hidden_size: 64, intermediate_size: 128,
  num_attention_heads: 4, num_key_value_heads: 4, vocab_size: 256}}
"""
MAXTEXT = """base_config: base.yml
per_device_batch_size: 2
base_emb_dim: 64
base_num_decoder_layers: 2
"""
DEEPSPEED = '{"train_batch_size": 8, "zero_optimization": {"stage": 3}}'

SOURCES = [
    (f"{MAXTEXT}model_name: llama3.1-8b", "llama3-8b"),
    (
        MAXTEXT,
        "hf:LlamaConfig:num_hidden_layers=2,hidden_size=64,intermediate_size=7168,"
        "num_attention_heads=16,num_key_value_heads=16,head_dim=128,vocab_size=32000,"
        "tie_word_embeddings=false",
    ),
    (TITAN, "llama3-8b"),
    (AXOLOTL, "llama3-8b"),
    (PRIMUS, "llama3-8b"),
    (NEMO, "llama3-8b"),
    (GPT3, "gpt3-175b"),
    (f"{GPT3} --vocab-size 51200", "gpt3-175b"),
    (
        f"{LLAMA} --vocab-size 250",
        "hf:LlamaConfig:tie_word_embeddings=false,num_hidden_layers=2,hidden_size=64,"
        "intermediate_size=128,num_attention_heads=4,num_key_value_heads=4,head_dim=16,"
        "vocab_size=256",
    ),
    (
        f"{LLAMA} --vocab-size 250 --ffn-hidden-size 256 --group-query-attention"
        " --num-query-groups 2 --qk-layernorm --kv-channels 32 --make-vocab-size-divisible-by 1",
        "hf:Qwen3Config:tie_word_embeddings=false,num_hidden_layers=2,hidden_size=64,"
        "intermediate_size=256,num_attention_heads=4,num_key_value_heads=2,head_dim=32,"
        "vocab_size=250",
    ),
    (
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1"
        " --seq-length 32 --tokenizer-type GPT2BPETokenizer",
        "hf:GPT2Config:tie_word_embeddings=true,n_layer=2,n_embd=64,n_head=4,n_inner=256,"
        "n_positions=32,vocab_size=50304",
    ),
    (
        NANOTRON,
        "hf:LlamaConfig:num_hidden_layers=2,hidden_size=64,intermediate_size=128,"
        "num_attention_heads=4,num_key_value_heads=4,vocab_size=256,tie_word_embeddings=false",
    ),
]
REFUSED = [
    (TITAN.replace("8B", "debugmodel"), "names the model 'llama3 debugmodel', which is no preset"),
    (AXOLOTL.replace("Llama-3.1-8B", "Llama-3.1-9B"), "like it are llama3-8b"),
    (DEEPSPEED, "names no model: its program's script does"),
    (LLAMA, "missing: --vocab-size"),
    (f"{LLAMA} --num-experts 8", "without --num-experts"),
    (LLAMA.replace("--swiglu", ""), "flags of a GPT"),
    (GPT3.replace("--num-layers 96 ", ""), "missing: --num-layers"),
    (f"L=$1\n{GPT3.replace('--seq', '--ffn-hidden-size $L --seq')}", "ffn-hidden-size: depends on"),
    (NANOTRON.replace("vocab_size", "moe_config: {top_k: 2}, vocab_size"), "without moe_config"),
    (NANOTRON.replace("intermediate_size: 128,", ""), "model_config.intermediate_size"),
]


def test_the_model_that_a_file_names(tmp_path: Path) -> None:
    def holds(case: tuple[str, str]) -> None:
        (tmp_path / "file").write_text(case[0])
        assert source_of(read_configuration(tmp_path / "file", 8).named, "file") == case[1]

    every(SOURCES, holds)


def test_a_model_that_is_not_known_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    def holds(case: tuple[str, str]) -> None:
        (tmp_path / "file").write_text(case[0])
        named = read_configuration(tmp_path / "file", 8).named
        with pytest.raises(BadInput) as refused:
            source_of(named, "file")
        assert case[1] in str(refused.value)
        assert refused.value.file == "file" and "capture" in (refused.value.expected or "")

    every(REFUSED, holds)


def test_a_folder_with_a_configuration_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "file").write_text(AXOLOTL.replace("NousResearch/Meta-Llama-3.1-8B", str(tmp_path)))
    named = read_configuration(tmp_path / "file", 8).named
    assert source_of(named, "file") == f"hf:{tmp_path}/config.json"


def test_the_command_captures_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def captured(source: str, **more: Any) -> Graph:
        asked.append((source, more))
        builder = GraphBuilder(more["name"])
        x = builder.input("x", 8, 16)
        builder.parameter("w", 16, 16)
        builder.linear("product", x, "w", "y")
        return builder.graph()

    monkeypatch.setattr("shardwise.capture.named_model.capture", captured)
    file = tmp_path / "train.sh"
    file.write_text(f"{LLAMA} --vocab-size 250")
    where = ["--hardware", "dgx-h100", "--gpus", "8", "--micro-batches", "1", "--quiet"]
    result = CliRunner().invoke(explain, ["--like", str(file), *where])
    assert result.exit_code == 0, result.output
    assert "the model of train.sh on 8 GPUs" in result.stdout
    assert "vocab_size=256 with --batch 8 --seq 32" in " ".join(result.stderr.split())
    (source, more), *_ = asked
    assert source == SOURCES[-4][1]
    assert (more["batch"], more["seq"], more["dtype"]) == (8, 32, "bfloat16")
    refused = CliRunner().invoke(explain, []).exception
    assert isinstance(refused, BadInput) and "--like FILE" in str(refused)


def test_a_file_without_a_length_needs_a_graph(tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(f"{LLAMA} --vocab-size 250".replace(" --seq-length 32", ""))
    refused = CliRunner().invoke(
        explain, ["--like", str(file), "--hardware", "dgx-h100", "--gpus", "8"]
    )
    assert isinstance(refused.exception, BadInput)
    assert "no sequence length" in str(refused.exception)
