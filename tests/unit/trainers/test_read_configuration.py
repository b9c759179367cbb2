"""Configurations as people write them, and what is refused with its field."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.trainers.configuration import Configuration
from shardwise.trainers.read import LARGEST_BYTES, read_configuration

TITAN = """
[job]
description = "Llama 3 8B training"
[model]
name = "llama3"
flavor = "8B"
converters = ["quantize.linear.float8"]
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[compile]
enable = true
"""

MEGATRON = """#!/bin/bash
# the usual example
TP=4
SEQ_LENGTH=${3:-8192}
GPUS_PER_NODE=8
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TP:-2}
    --pipeline-model-parallel-size 1   # --pipeline-model-parallel-size 8 before
    --sequence-parallel
)
TRAINING="--micro-batch-size 1 --global-batch-size=128 --bf16 --seq-length 4096 \\
    --use-distributed-optimizer --recompute-activations --fp8-format hybrid"
torchrun pretrain_gpt.py ${MODEL_PARALLEL_ARGS[@]} $TRAINING
"""

DEEPSPEED = """{
 "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
 "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "bf16": {}
}"""

ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_activation_checkpointing: true
num_machines: 2
num_processes: 16
"""

NANOTRON = """general: {project: debug}
parallelism: {dp: 2, pp: 1, tp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER}
optimizer: {zero_stage: 1}
tokens: {sequence_length: 256, micro_batch_size: 2, batch_accumulation_per_replica: 3}
"""


def read(text: str, gpus: int, tmp_path: Path, name: str = "file") -> Configuration:
    file = tmp_path / name
    file.write_text(text)
    return read_configuration(file, gpus)


def test_torchtitan(tmp_path: Path) -> None:
    configuration = read(TITAN, 8, tmp_path)
    assert configuration.trainer == "torchtitan"
    assert configuration.parallelism == Parallelism(
        shards=4, tensor=2, sequence=True, zero=3, recompute="selective"
    )
    assert (configuration.batch, configuration.sequence_length) == (4, 8192)
    assert configuration.stated == {
        "framework": "compiled",
        "optimizer": "adam",
        "update": "fused",
        "precision": "fp8:tensorwise",
    }
    assert not configuration.left_out and not configuration.unread


def test_megatron(tmp_path: Path) -> None:
    configuration = read(MEGATRON, 16, tmp_path)
    assert configuration.trainer == "megatron"
    assert configuration.parallelism == Parallelism(
        shards=4, tensor=4, sequence=True, zero=1, recompute="selective", micro_batches=32,
        recompute_modules=("core_attn",),
    )  # fmt: skip
    assert (configuration.batch, configuration.sequence_length) == (128, 4096)
    assert not any("--recompute-modules" in note for note in configuration.unread)
    assert configuration.stated["precision"] == "fp8:delayed"
    assert configuration.stated["gradients"] == "float32"


def test_deepspeed(tmp_path: Path) -> None:
    configuration = read(DEEPSPEED, 4, tmp_path)
    assert configuration.parallelism == Parallelism(shards=4, zero=2, micro_batches=8)
    assert (configuration.trainer, configuration.batch, configuration.sequence_length) == (
        "deepspeed",
        128,
        None,
    )
    assert configuration.stated["offload"] == "states"
    assert not configuration.left_out and not configuration.unread


def test_accelerate(tmp_path: Path) -> None:
    configuration = read(ACCELERATE, 16, tmp_path)
    assert configuration.parallelism == Parallelism(replicas=2, shards=8, zero=3, recompute="full")
    assert (configuration.trainer, configuration.batch) == ("accelerate", None)
    assert configuration.unread == [
        "gradient accumulation: the script says it, read as 1 micro-batch"
    ]


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (TITAN, "tensor_parallel_degree = 2",
         "tensor_parallel_degree = 2\nexpert_parallel_degree = 4"),
        (MEGATRON, "TRAINING=\"",
         "TRAINING=\"--expert-model-parallel-size 4 --expert-tensor-parallel-size 1 "),
    ],
)  # fmt: skip
def test_whole_experts_beside_tensor_parallelism(
    text: str, old: str, new: str, tmp_path: Path
) -> None:
    """torchtitan's default, and Megatron's where the flag says so."""
    found = read(text.replace(old, new), 8, tmp_path).parallelism
    assert found.tensor > 1 and found.expert == 4 and found.whole_experts


def test_nanotron(tmp_path: Path) -> None:
    configuration = read(NANOTRON, 4, tmp_path)
    assert configuration.parallelism == Parallelism(
        shards=2, tensor=2, sequence=True, zero=1, micro_batches=3
    )
    assert (configuration.trainer, configuration.batch, configuration.sequence_length) == (
        "nanotron",
        12,
        256,
    )


@pytest.mark.parametrize(
    ("text", "old", "new", "field"),
    [
        (TITAN, "pipeline_parallel_degree = 1", "pipeline_parallel_degree = 16",
         "parallelism.tensor_parallel_degree"),
        (TITAN, "pipeline_parallel_degree = 1",
         'pipeline_parallel_degree = 4\npipeline_parallel_schedule = "Looped"',
         "parallelism.pipeline_parallel_schedule"),
        (TITAN, "pipeline_parallel_degree = 1",
         'pipeline_parallel_degree = 4\npipeline_parallel_split_points = ["layers.2"]',
         "parallelism.pipeline_parallel_split_points"),
        (TITAN, "pipeline_parallel_degree = 1",
         "pipeline_parallel_degree = 4\npipeline_parallel_microbatch_size = 2",
         "parallelism.pipeline_parallel_microbatch_size"),
        (TITAN.replace("pipeline_parallel_degree = 1", "pipeline_parallel_degree = 4"),
         "local_batch_size = 1", "local_batch_size = 1\nglobal_batch_size = 16",
         "training.global_batch_size"),
        (TITAN, "tensor_parallel_degree = 2",
         "tensor_parallel_degree = 2\ncontext_parallel_degree = 3",
         "parallelism.context_parallel_degree"),
        (TITAN, "tensor_parallel_degree = 2",
         "tensor_parallel_degree = 2\nexpert_parallel_degree = 2\n"
         "expert_tensor_parallel_degree = 4", "parallelism.expert_tensor_parallel_degree"),
        (MEGATRON, "TRAINING=\"",
         "TRAINING=\"--expert-model-parallel-size 2 --expert-tensor-parallel-size 3 ",
         "--expert-tensor-parallel-size"),
        (TITAN, "tensor_parallel_degree", "tensor_paralel_degree",
         "parallelism.tensor_paralel_degree"),
        (TITAN, "seq_len = 8192", 'seq_len = "long"', "training.seq_len"),
        (TITAN, "tensor_parallel_degree = 2", "tensor_parallel_degree = 3",
         "parallelism.tensor_parallel_degree"),
        (TITAN, "degree = -1", "degree = 4", "gpus"),
        (TITAN, "local_batch_size = 1", "local_batch_size = 3\nglobal_batch_size = 16",
         "training.global_batch_size"),
        (TITAN, '"selective"\n', '"memory_budget"\n', "activation_checkpoint.mode"),
        (MEGATRON, "--pipeline-model-parallel-size 1 ", "--pipeline-model-parallel-size 3 ",
         "--pipeline-model-parallel-size"),
        (MEGATRON, "--pipeline-model-parallel-size 1 ",
         "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 0 ",
         "--num-layers-per-virtual-pipeline-stage"),
        (MEGATRON, "--pipeline-model-parallel-size 1 ",
         "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 "
         "--num-virtual-stages-per-pipeline-rank 2 ",
         "--num-virtual-stages-per-pipeline-rank"),
        (MEGATRON, "--pipeline-model-parallel-size 1 ",
         "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout EmtL ",
         "--pipeline-model-parallel-layout"),
        (MEGATRON, "TRAINING=\"", "TRAINING=\"--context-parallel-size 3 ",
         "--context-parallel-size"),
        (MEGATRON, "--micro-batch-size", "--micro-bach-size", "--micro-bach-size"),
        (MEGATRON, "--global-batch-size=128", "--global-batch-size=$GBS", "--global-batch-size"),
        (DEEPSPEED, '"stage": 2', '"stage": true', "zero_optimization.stage"),
        (DEEPSPEED, '"stage": 2', '"stage": 9', "zero_optimization.stage"),
        (DEEPSPEED, '"stage"', '"stages": 2, "stage"', "zero_optimization.stages"),
        (DEEPSPEED, '"auto"', "100", "train_batch_size"),
        (ACCELERATE, "num_processes: 16", "num_processes: 4", "num_processes"),
        (ACCELERATE, "distributed_type: FSDP", "distributed_type: TPU", "distributed_type"),
        (ACCELERATE, "num_machines", "num_machins", "num_machins"),
        (NANOTRON, "pp: 1", "pp: 2", "parallelism.pp"),
        (NANOTRON, "dp: 2", "dp: 8", "parallelism.dp"),
        (NANOTRON, "zero_stage: 1", "zero_stage: 3", "optimizer.zero_stage"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(
    text: str, old: str, new: str, field: str, tmp_path: Path
) -> None:
    assert old in text
    gpus = 4 if text in (DEEPSPEED, NANOTRON) else 16
    with pytest.raises(BadInput) as raised:
        read(text.replace(old, new), gpus, tmp_path)
    assert raised.value.field == field
    assert raised.value.file == str(tmp_path / "file")


@pytest.mark.parametrize(
    "text",
    ["", "hello", "- 1\n- 2\n", "{", '{"a": 1}', "a: [", "a: &x 1\nb: *x\n", "[" * 5000, "x = 1\n"],
)
def test_files_of_no_trainer_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as raised:
        read(text, 8, tmp_path)
    assert raised.value.file == str(tmp_path / "file")


def test_large_files_and_odd_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="at most"):
        read("#" * (LARGEST_BYTES + 1), 8, tmp_path)
    (tmp_path / "odd").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="UTF-8"):
        read_configuration(tmp_path / "odd", 8)
    with pytest.raises(BadInput, match="1 to"):
        read(TITAN, 0, tmp_path)


def test_a_replica_count_that_does_not_fit_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="make up 16 GPUs"):
        read(TITAN.replace("degree = -1", "degree = 8"), 8, tmp_path)


@pytest.mark.parametrize("key", ["a", '"a"', "a "])
def test_names_with_thousands_of_parts_are_refused_before_they_are_parsed(
    tmp_path: Path, key: str
) -> None:
    file = tmp_path / "job.toml"
    file.write_text(".".join([key] * 100_000) + " = 1\n")
    with pytest.raises(BadInput, match="more than 16 parts"):
        read_configuration(file, 8)
