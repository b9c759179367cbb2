"""Files of trainers that divide positions: read, contradictory, and written."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.trainers.read import configuration_of

TITAN = """
[training]
local_batch_size = 1
seq_len = 131072
[parallelism]
context_parallel_degree = 4
data_parallel_shard_degree = -1
"""
MEGATRON = (
    "--tensor-model-parallel-size 2 --context-parallel-size 4 --micro-batch-size 1 "
    "--global-batch-size 8 --seq-length 32768 --use-distributed-optimizer --sequence-parallel"
)
ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
num_processes: 16
num_machines: 2
fsdp_config: {fsdp_version: 2}
parallelism_config:
  parallelism_config_cp_size: 4
"""
DEEPSPEED = """
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
num_processes: 16
num_machines: 2
deepspeed_config: {zero_stage: 3}
parallelism_config:
  parallelism_config_sp_size: 4
"""
AXOLOTL = """
base_model: Qwen/Qwen3-8B
micro_batch_size: 1
sequence_len: 16384
context_parallel_size: 4
fsdp_config: {reshard_after_forward: true}
"""
SEQUENCE = (
    '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "cpu_offload": true}, '
    '"sequence_parallel_size": 4}'
)
MAXTEXT = """
base_config: base.yml
per_device_batch_size: 0.25
ici_fsdp_parallelism: 2
ici_context_parallelism: 4
"""
PLUGIN = """
distributed_type: MEGATRON_LM
mixed_precision: bf16
megatron_lm_config:
  megatron_lm_tp_degree: 2
  megatron_lm_context_parallel_size: 2
  megatron_lm_num_micro_batches: 4
  megatron_lm_recompute_granularity: full
  megatron_lm_use_distributed_optimizer: true
"""
OLD_AXOLOTL = AXOLOTL.replace("context_parallel_size", "sequence_parallel_degree")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (TITAN, {"shards": 4, "context": 4, "context_form": "gather", "zero": 3}),
        (
            TITAN + 'context_parallel_rotate_method = "alltoall"\n',
            {"shards": 4, "context": 4, "context_form": "ring"},
        ),
        (MEGATRON, {"shards": 2, "tensor": 2, "context": 4, "context_form": "ring", "zero": 1}),
        (MEGATRON + " --cp-comm-type a2a", {"context": 4, "context_form": "ulysses"}),
        (MEGATRON + " --cp-comm-type all_gather", {"context": 4, "context_form": "gather"}),
        (ACCELERATE, {"shards": 4, "context": 4, "context_form": "gather", "zero": 3}),
        (
            ACCELERATE + "  parallelism_config_cp_comm_strategy: alltoall\n",
            {"context": 4, "context_form": "ring"},
        ),
        (DEEPSPEED, {"shards": 4, "context": 4, "context_form": "ulysses", "zero": 3}),
        (AXOLOTL, {"shards": 4, "context": 4, "context_form": "ring", "zero": 3}),
        (OLD_AXOLOTL, {"shards": 4, "context": 4, "context_form": "ring"}),
        (SEQUENCE, {"shards": 4, "context": 4, "context_form": "ulysses", "zero": 2}),
        (MAXTEXT, {"shards": 2, "replicas": 2, "context": 4, "context_form": "gather", "zero": 3}),
        (
            MAXTEXT + "context_parallel_strategy: ring\ndcn_fsdp_parallelism: 2\n",
            {"shards": 4, "replicas": 1, "context": 4, "context_form": "ring"},
        ),
        (
            PLUGIN,
            {
                "shards": 4,
                "tensor": 2,
                "context": 2,
                "context_form": "ring",
                "zero": 1,
                "recompute": "full",
                "micro_batches": 4,
            },
        ),
    ],
)
def test_degrees_of_context_are_read(text: str, wanted: dict[str, Any]) -> None:
    found = configuration_of(text, 16, "file").parallelism
    assert {name: getattr(found, name) for name in wanted} == wanted
    assert found.gpus == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TITAN.replace("= 4", "= 3"), "parallelism.context_parallel_degree: 16 GPUs do not divide"),
        (TITAN.replace("= -1", "= 8"), "context 4"),
        (MEGATRON.replace("size 4", "size 3"), "--context-parallel-size: 8 GPUs do not divide"),
        (MEGATRON + " --cp-comm-type a2a+p2p", "--cp-comm-type"),
        (SEQUENCE.replace(": 4", ": 3"), "sequence_parallel_size: 16 GPUs do not divide by 3"),
        (
            PLUGIN.replace("parallel_size: 2", "parallel_size: 3"),
            "megatron_lm_config.megatron_lm_context_parallel_size: 8 GPUs do not divide",
        ),
        (ACCELERATE + "  parallelism_config_sp_size: 2\n", "sp_size: got 2 beside cp_size 4"),
        (ACCELERATE + "  parallelism_config_dp_shard_size: 8\n", "dp_shard_size: got 8"),
        (AXOLOTL + "sequence_parallel_degree: 2\n", "got 2 beside context_parallel_size: 4"),
    ],
)
def test_degrees_that_contradict_each_other_are_errors(text: str, message: str) -> None:
    with pytest.raises(BadInput) as raised:
        configuration_of(text, 16, "file")
    assert message in str(raised.value)


def test_a_strategy_counts_its_devices() -> None:
    one = Parallelism(shards=2, context=4, tensor=2, zero=1)
    assert (one.gpus, one.data, one.sharded) == (16, 2, 8)


def test_experts_of_more_files_are_read() -> None:
    """MaxText's weights are over the devices of experts too; accelerate's plugin has Megatron's."""
    maxtext = MAXTEXT.replace("context", "expert").replace("0.25", "1")
    found = configuration_of(maxtext, 16, "file").parallelism
    assert (found.replicas, found.shards, found.expert, found.zero) == (2, 8, 4, 3)
    plugin = PLUGIN.replace("context_parallel_size", "expert_model_parallel_size")
    read = configuration_of(plugin + "  megatron_lm_optimizer_cpu_offload: true\n", 16, "file")
    assert (read.parallelism.expert, read.parallelism.data, read.trainer) == (2, 8, "megatron")
    assert [line.partition(":")[0] for line in read.left_out] == [
        "megatron_lm_config.megatron_lm_optimizer_cpu_offload"
    ]
    unknown = configuration_of(plugin + "  megatron_lm_of_tomorrow: 3\n", 16, "file")
    assert unknown.unread == ["megatron_lm_config.megatron_lm_of_tomorrow"]
    custom = configuration_of(
        plugin.replace("granularity: full", "granularity: selective"), 16, "f"
    )
    assert custom.parallelism.recompute == "selective"
