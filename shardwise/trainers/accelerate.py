"""Accelerate: the YAML of `accelerate config`, FSDP version 2, DDP or the DeepSpeed plugin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from shardwise.documents import Plan
from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.trainers.configuration import Configuration, Section, divided, whole_number
from shardwise.trainers.job import FIELD, Job, Limits, Written, job_of
from shardwise.trainers.yaml_text import yaml_text

NAME = "accelerate"
FILENAME = "accelerate.yaml"
LIMITS = Limits(zero=(0, 1, 2, 3), hybrid=(2, 3), sequence=(False,))

KEYS = (
    "compute_environment",
    "distributed_type",
    "mixed_precision",
    "use_cpu",
    "debug",
    "num_processes",
    "machine_rank",
    "num_machines",
    "gpu_ids",
    "main_process_ip",
    "main_process_port",
    "rdzv_backend",
    "same_network",
    "main_training_function",
    "enable_cpu_affinity",
    "downcast_bf16",
    "fsdp_config",
    "deepspeed_config",
    "parallelism_config",
    "megatron_lm_config",
    "dynamo_config",
    "fp8_config",
)
"""What a cluster's file may have, as far as it is used with GPUs."""

_IGNORED = tuple(key for key in KEYS if not key.endswith("_config") and key != "num_processes")
_PREFIX = "parallelism_config_"
_VERSION_1 = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
_NUMBERED = dict(enumerate(("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"), 1))
_STEP = re.compile(r"^# shardwise: (.*)$", re.MULTILINE)
"""The comment with the numbers that the file cannot say and the script has to."""


def write(plan: Plan) -> Written:
    """Returns the YAML of a plan. Raises as `job_of` does, and for what only scripts can say."""
    job = job_of(plan, NAME, LIMITS)
    _check(job)
    head = f"# accelerate launch --config_file {FILENAME} train.py\n"
    return Written(head + _step(job) + yaml_text(_document(job)), [*job.unsaid, *_unsaid(job)])


def read(document: Mapping[str, Any], gpus: int, text: str = "") -> Configuration:
    """Returns what a file says; `text` is all of it, for the comment that `write` leaves.

    Raises `BadInput` naming a field that cannot be read.
    """
    top = Section(document, known=KEYS)
    top.ignore(*_IGNORED)
    processes = top.count("num_processes", gpus)
    if processes != gpus:
        raise BadInput(f"got {processes}", field="num_processes", expected=f"{gpus}, as asked")
    machines = top.count("num_machines", 1)
    step = Section(_numbers(text))
    kind = top.word("distributed_type", "NO")
    notes: list[str] = []
    if kind == "FSDP":
        parallelism = _fsdp(top, gpus, machines)
    elif kind == "DEEPSPEED":
        parallelism = _deepspeed(top, gpus)
    elif kind in ("MULTI_GPU", "NO"):
        parallelism = Parallelism(replicas=gpus)
    else:
        raise BadInput(
            f"got {kind[:40]!r}", field="distributed_type", expected="FSDP, DEEPSPEED or MULTI_GPU"
        )
    steps = top.section("deepspeed_config").maybe_count("gradient_accumulation_steps")
    steps = steps or step.maybe_count("micro_batches")
    if steps is None:
        notes.append("gradient accumulation: the script says it, read as 1 micro-batch")
    top.section("dynamo_config")
    return Configuration(
        trainer=NAME,
        parallelism=replace(parallelism, micro_batches=steps or 1),
        batch=step.maybe_count("batch"),
        sequence_length=step.maybe_count("sequence_length"),
        unread=[*notes, *top.unread()],
    )


def _fsdp(top: Section, gpus: int, machines: int) -> Parallelism:
    fsdp = top.section("fsdp_config")
    degrees = top.section("parallelism_config")
    degrees.one(f"{_PREFIX}cp_size", f"{_PREFIX}sp_size")
    recompute = fsdp.flag("fsdp_activation_checkpointing")
    tensor = degrees.count(f"{_PREFIX}tp_size", 1)
    replicas = degrees.count(f"{_PREFIX}dp_replicate_size", 1)
    field = f"parallelism_config.{_PREFIX}dp_shard_size"
    rest = divided(gpus, tensor * replicas, "GPUs (tensor × replicate)", field)
    shards = degrees.count(f"{_PREFIX}dp_shard_size", rest)
    if shards != rest:
        raise BadInput(f"got {shards}", field=field, expected=f"{rest} of {gpus} GPUs")
    if fsdp.count("fsdp_version", 1) >= 2:
        zero = 3 if fsdp.flag("fsdp_reshard_after_forward", True) else 2
    else:
        zero, hybrid = _version_1(fsdp)
        if hybrid:
            shards = divided(gpus, machines, "GPUs (machines)", "num_machines")
            replicas = machines
    if not zero:
        replicas, shards = gpus, 1
    return Parallelism(
        replicas=replicas,
        shards=shards,
        tensor=tensor,
        zero=zero,
        recompute="full" if recompute else "none",
    )


def _version_1(fsdp: Section) -> tuple[int, bool]:
    """Returns the ZeRO stage of FSDP version 1, and whether shards have replicas."""
    strategy = "FULL_SHARD"
    if fsdp.has("fsdp_sharding_strategy"):
        try:
            number = fsdp.count("fsdp_sharding_strategy", 1)
            strategy = _NUMBERED.get(number, "HYBRID_SHARD_ZERO2")
        except BadInput:
            known = (*_VERSION_1, "NO_SHARD", "_HYBRID_SHARD_ZERO2")
            strategy = fsdp.word("fsdp_sharding_strategy", "", known).removeprefix("_")
    return _VERSION_1.get(strategy, 0), strategy.startswith("HYBRID")


def _deepspeed(top: Section, gpus: int) -> Parallelism:
    plugin = top.section("deepspeed_config")
    if plugin.has("deepspeed_config_file"):
        raise BadInput(
            "names another file",
            field="deepspeed_config.deepspeed_config_file",
            expected="that file, to read instead of this one",
        )
    return Parallelism(shards=gpus, zero=plugin.count("zero_stage", 2, least=0, most=3))


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


def _numbers(text: str) -> dict[str, int]:
    match = _STEP.search(text)
    pairs = (word.partition("=") for word in (match[1].split() if match else ()))
    return {name: whole_number(value, f"# shardwise: {name}") for name, _, value in pairs}


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
    elif p.zero == 0 and p.tensor == 1:
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
            f"{_PREFIX}dp_replicate_size": p.replicas,
            f"{_PREFIX}dp_shard_size": p.shards,
            f"{_PREFIX}tp_size": p.tensor,
            f"{_PREFIX}cp_size": 1,
        }
    if job.kernels == "compiled":
        document["dynamo_config"] = {"dynamo_backend": "INDUCTOR"}
    return document


def _unsaid(job: Job) -> list[str]:
    p = job.parallelism
    unsaid = [
        f"The batch: {job.samples} samples per device in the script's DataLoader.",
        job.optimizer_of_script,
    ]
    if p.micro_batches > 1 and p.zero != 1:
        unsaid.append(f"Micro-batches: Accelerator(gradient_accumulation_steps={p.micro_batches}).")
    unsaid += job.length_of_script
    if p.tensor > 1:
        unsaid.append(
            "Which layers are split: Accelerate takes the tensor parallel plan of the model in "
            "transformers."
        )
    if job.kernels == "fused":
        unsaid.append("Kernels: the plan counts on fused ones, which the script chooses.")
    return unsaid
