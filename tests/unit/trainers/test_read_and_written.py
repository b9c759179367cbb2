"""What a file says survives its price and the file that is written of the priced plan."""

from __future__ import annotations

import pytest

from shardwise.answers import Options
from shardwise.capture.shipped import load_graph
from shardwise.graph import Graph
from shardwise.hardware import load_hardware
from shardwise.trainers.formats import write_for
from shardwise.trainers.price import price_configuration
from shardwise.trainers.read import configuration_of

MACHINE = load_hardware("dgx-h100")

NEMO = """
trainer: {devices: 8, num_nodes: 1, precision: bf16-mixed}
model: {tensor_model_parallel_size: 2, micro_batch_size: 2, global_batch_size: 64,
  encoder_seq_length: 1024, sequence_parallel: true, activations_checkpoint_granularity: full,
  activations_checkpoint_method: block, activations_checkpoint_num_layers: 1,
  optim: {name: distributed_fused_adam}}
"""
BRIDGE = """
model: {tensor_model_parallel_size: 2, seq_length: 1024}
train: {micro_batch_size: 2, global_batch_size: 64}
mixed_precision: {bf16: true, grad_reduce_in_fp32: false}
ddp: {use_distributed_optimizer: true}
"""
ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false,
  fsdp_activation_checkpointing: true}
dynamo_config: {dynamo_backend: INDUCTOR}
"""
AXOLOTL = """
base_model: m
sequence_len: 1024
micro_batch_size: 2
gradient_accumulation_steps: 4
fsdp_version: 2
fsdp_config: {reshard_after_forward: true}
gradient_checkpointing: true
optimizer: adamw_torch_8bit
"""
FACTORY = """
model_name_or_path: m
stage: sft
finetuning_type: full
cutoff_len: 1024
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
disable_gradient_checkpointing: true
"""
NANOTRON = """
parallelism: {dp: 4, tp: 2, tp_mode: REDUCE_SCATTER, recompute_layer: true}
tokens: {sequence_length: 1024, micro_batch_size: 4, batch_accumulation_per_replica: 4}
optimizer: {zero_stage: 1, accumulate_grad_in_fp32: true, optimizer_factory: {name: adamW}}
"""
DEEPSPEED = """{
  // of OmegaConf
  "samples": 2, "train_micro_batch_size_per_gpu": "${samples}",
  "gradient_accumulation_steps": "${oc.env:STEPS,4}", "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
  "data_types": {"grad_accum_dtype": "fp32"},
}"""
ULYSSES = """{"train_batch_size": 64, "gradient_accumulation_steps": 2, "sequence_parallel_size": 2,
  "zero_optimization": {"stage": 3}, "activation_checkpointing": {}}"""
TITAN = """
[training]
local_batch_size = 4
global_batch_size = 64
seq_len = 1024
[parallelism]
tensor_parallel_degree = 2
[compile]
enable = true
[optimizer]
implementation = "foreach"
[activation_checkpoint]
mode = "full"
"""
OF_SCRIPTS = ("accelerate", "deepspeed")
"""Trainers whose scripts make the optimizer and batches."""


@pytest.fixture(scope="module")
def llama() -> Graph:
    return load_graph("shipped:llama-8b", batch=64, seq=1024)


@pytest.mark.parametrize(
    "text",
    [NEMO, BRIDGE, ACCELERATE, AXOLOTL, FACTORY, NANOTRON, DEEPSPEED, ULYSSES, TITAN],
    ids=["nemo", "bridge", "accelerate", "axolotl", "factory", "nanotron", "deepspeed", "ulysses",
         "titan"],
)  # fmt: skip
def test_what_is_read_is_written(llama: Graph, text: str) -> None:
    given = configuration_of(text, 8, "given")
    only = Options(micro_batches=(given.parallelism.micro_batches,))
    priced = price_configuration(llama, MACHINE, 8, given, only, file="given")
    written = write_for(priced.plan, given.trainer)
    again = configuration_of(written.text, 8, "again")
    assert again.parallelism == given.parallelism and again.stages == given.stages
    assert again.batch == (given.batch or 64)
    said = " ".join(written.unsaid)
    if again.sequence_length is None:
        assert "The sequence length" in said
    else:
        assert again.sequence_length == 1024
    words = {"optimizer": "optimizer", "state": "moments in", "update": "optimizer"}
    for name, value in given.stated.items():
        kept = again.stated.get(name) == value
        assert kept or (given.trainer in OF_SCRIPTS and words[name] in said), (name, value, said)
