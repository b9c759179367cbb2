"""Accelerate: writing the YAML of `accelerate config` (FSDP version 2, DDP, or DeepSpeed)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.documents import Plan
from shardwise.documents.parallelism import ContextForm
from shardwise.errors import BadInput
from shardwise.trainers import precisions
from shardwise.trainers.job import FIELD, Job, Limits, Written, job_of
from shardwise.trainers.yaml_text import yaml_text

NAME = "accelerate"
FILENAME = "accelerate.yaml"
LIMITS = Limits(zero=(0, 1, 2, 3), hybrid=(2, 3), sequence=(False,), context=("gather", "ring"))

STRATEGIES: Mapping[ContextForm, str] = {"gather": "allgather", "ring": "alltoall"}
"""By our form of context parallelism Accelerate's `cp_comm_strategy`."""

PREFIX = "parallelism_config_"


def write(plan: Plan) -> Written:
    """Returns the YAML of a plan. Raises as `job_of` does, and for what only scripts can say."""
    job = job_of(plan, NAME, LIMITS)
    _check(job)
    head = f"# accelerate launch --config_file {FILENAME} train.py\n"
    return Written(head + _step(job) + yaml_text(_document(job)), [*job.unsaid, *_unsaid(job)])


def _check(job: Job) -> None:
    """Raises `BadInput` for what Accelerate's file cannot say in combination."""
    p = job.parallelism
    if p.tensor > 1 and p.zero == 0 and p.replicas > 1:
        raise BadInput(
            "accelerate cannot say tensor parallelism with replicas that are not sharded",
            field=f"{FIELD}.zero",
            expected="ZeRO stage 2 or 3",
        )
    if p.zero == 1 and p.tensor > 1:
        raise BadInput(
            "accelerate cannot say tensor parallelism with ZeRO stage 1",
            field=f"{FIELD}.zero",
            expected="ZeRO stage 2 or 3",
        )
    if p.zero < 2 and p.tensor == 1 and p.recompute != "none":
        raise BadInput(
            f"accelerate's file cannot say recomputation with ZeRO stage {p.zero}",
            field=f"{FIELD}.recompute",
            expected="none, or ZeRO stage 2 or 3",
        )


def _step(job: Job) -> str:
    numbers = {
        "batch": job.batch,
        "micro_batches": job.parallelism.micro_batches,
        "sequence_length": job.sequence_length,
    }
    said = " ".join(f"{name}={value}" for name, value in numbers.items() if value is not None)
    return f"# shardwise: {said}\n"


def _document(job: Job) -> dict[str, Any]:
    p = job.parallelism
    document: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "FSDP",
        "mixed_precision": "no" if job.precision == "fp32" else job.precision,
        "num_machines": job.nodes,
        "num_processes": job.gpus,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static" if job.nodes == 1 else "c10d",
        "same_network": True,
        "use_cpu": False,
    }
    if p.zero == 1:
        document["distributed_type"] = "DEEPSPEED"
        document["deepspeed_config"] = {
            "zero_stage": 1,
            "gradient_accumulation_steps": p.micro_batches,
            "zero3_init_flag": False,
        }
    elif p.zero == 0 and p.tensor == p.context == 1:
        document["distributed_type"] = "MULTI_GPU" if job.gpus > 1 else "NO"
    else:
        document["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": p.zero != 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": p.recompute == "full",
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_offload_params": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        document["parallelism_config"] = {
            f"{PREFIX}dp_replicate_size": p.replicas,
            f"{PREFIX}dp_shard_size": p.shards,
            f"{PREFIX}tp_size": p.tensor,
            f"{PREFIX}cp_size": p.context,
        }
        if p.context > 1:
            strategy = STRATEGIES[p.context_form]
            document["parallelism_config"][f"{PREFIX}cp_comm_strategy"] = strategy
    recipe = precisions.to_accelerate(job.recipe)
    if recipe is not None:
        document |= {"mixed_precision": "fp8", "fp8_config": recipe}
    if job.kernels == "compiled":
        document["dynamo_config"] = {"dynamo_backend": "INDUCTOR"}
    return document


def _unsaid(job: Job) -> list[str]:
    p = job.parallelism
    unsaid = [
        f"The batch: {job.samples} samples per device in the script's DataLoader.",
        *job.model_of_script,
        job.optimizer_of_script,
    ]
    if p.micro_batches > 1 and p.zero != 1:
        unsaid.append(f"Micro-batches: Accelerator(gradient_accumulation_steps={p.micro_batches}).")
    unsaid += job.length_of_script
    unsaid += job.recipe_unsaid("Accelerate", precisions.to_accelerate(job.recipe))
    if p.tensor > 1:
        unsaid.append(
            "Which layers are split: Accelerate takes the tensor parallel plan of the model in "
            "transformers."
        )
    if job.wide_gradients:
        unsaid.append(
            f"Gradients: Accelerate reduces them in {job.dtype} under FSDP, the plan in float32."
        )
    if job.kernels == "fused":
        unsaid.append("Kernels: the plan counts on fused ones, which the script chooses.")
    return unsaid
