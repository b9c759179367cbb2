"""DeepSpeed: its JSON configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shardwise.documents import Plan
from shardwise.documents.parallelism import Parallelism
from shardwise.trainers.configuration import Configuration, Section, divided
from shardwise.trainers.job import Job, Limits, Written, job_of

NAME = "deepspeed"
FILENAME = "ds_config.json"
LIMITS = Limits(zero=(0, 1, 2, 3), hybrid=(3,), tensor=False)

ZERO_KEYS = (
    "stage",
    "zero_hpz_partition_size",
    "mics_shard_size",
    "overlap_comm",
    "contiguous_gradients",
    "reduce_scatter",
    "reduce_bucket_size",
    "allgather_partitions",
    "allgather_bucket_size",
    "offload_param",
    "offload_optimizer",
    "sub_group_size",
    "round_robin_gradients",
    "zero_quantized_weights",
    "zero_quantized_gradients",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_model_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_gather_16bit_weights_on_model_save",
)
_TOP = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "zero_optimization",
    "activation_checkpointing",
    "tensor_parallel",
    "sequence_parallel_size",
)
_IGNORED = (
    "steps_per_print",
    "wall_clock_breakdown",
    "gradient_clipping",
    "scheduler",
    "bf16",
    "bfloat16",
    "fp16",
    "optimizer",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "dump_state",
    "zero_allow_untested_optimizer",
)


def write(plan: Plan) -> Written:
    """Returns the JSON of a plan. Raises as `job_of` does."""
    job = job_of(plan, NAME, LIMITS)
    text = msgspec.json.format(msgspec.json.encode(_document(job)), indent=2).decode() + "\n"
    return Written(text, [*job.unsaid, *_unsaid(job)])


def read(document: Mapping[str, Any], gpus: int) -> Configuration:
    """Returns what a configuration says. Raises `BadInput` naming a field that cannot be read."""
    top = Section(document, known=_TOP)
    top.ignore(*_IGNORED)
    top.section("pipeline").one("stages")
    top.one("sequence_parallel_size")
    tensor = top.section("tensor_parallel").count("autotp_size", 1, least=0) or 1
    data = divided(gpus, tensor, "GPUs", "tensor_parallel.autotp_size")
    zero = top.section("zero_optimization", ZERO_KEYS)
    stage = zero.count("stage", 0, least=0, most=3)
    notes: list[str] = []
    shards = data
    parts = zero.count("zero_hpz_partition_size", 1, least=0)
    if stage == 3 and parts > 1:
        shards = parts
        notes.append(
            "zero_optimization.zero_hpz_partition_size: read as replicas of shards; ZeRO++ keeps "
            "gradients and optimizer state in shards over all devices"
        )
    replicas = divided(data, shards, "devices", "zero_optimization.zero_hpz_partition_size")
    batch, micro_batches = _batch(top, data, notes)
    zero.ignore(*(key for key in ZERO_KEYS if not key.startswith("offload")))
    recomputed = top.has("activation_checkpointing")
    if recomputed:
        top.ignore("activation_checkpointing")
        notes.append(
            "activation_checkpointing: read as the recomputation of every block; the model has to "
            "call deepspeed.checkpointing"
        )
    return Configuration(
        trainer=NAME,
        parallelism=Parallelism(
            replicas=replicas,
            shards=shards,
            tensor=tensor,
            zero=stage,
            recompute="full" if recomputed else "none",
            micro_batches=micro_batches,
        ),
        batch=batch,
        sequence_length=None,
        unread=[*notes, *zero.unread(), *top.unread()],
    )


def _batch(top: Section, data: int, notes: list[str]) -> tuple[int | None, int]:
    """Returns the samples of a step, if they are said, and the number of micro-batches.

    Any two of the three sizes give the third, as in DeepSpeed.
    """
    batch = top.maybe_count("train_batch_size")
    samples = top.maybe_count("train_micro_batch_size_per_gpu")
    steps = top.maybe_count("gradient_accumulation_steps")
    if batch is not None and samples is not None and steps is None:
        steps = divided(batch, samples * data, "samples", "train_batch_size")
    if batch is None and samples is not None:
        batch = samples * data * (steps or 1)
    if batch is not None:
        what = "samples"
        whole = data * (steps or 1) * (samples or 1)
        divided(batch, whole, what, "train_batch_size")
        if samples is not None and batch != whole:
            steps = divided(batch, samples * data, what, "train_batch_size")
    if steps is None:
        notes.append("gradient_accumulation_steps: not said, read as 1")
    return batch, steps or 1


def _document(job: Job) -> dict[str, Any]:
    p = job.parallelism
    zero: dict[str, Any] = {"stage": p.zero}
    if p.zero:
        zero |= {"overlap_comm": True, "contiguous_gradients": True, "reduce_scatter": True}
    if p.zero == 3 and p.replicas > 1:
        zero["zero_hpz_partition_size"] = p.shards
    document: dict[str, Any] = {
        "train_batch_size": job.batch,
        "train_micro_batch_size_per_gpu": job.samples,
        "gradient_accumulation_steps": p.micro_batches,
        "zero_optimization": zero,
    }
    if job.precision != "fp32":
        document[job.precision] = {"enabled": True}
    if p.recompute == "full":
        document["activation_checkpointing"] = {
            "partition_activations": False,
            "cpu_checkpointing": False,
            "contiguous_memory_optimization": False,
        }
    return document


def _unsaid(job: Job) -> list[str]:
    p = job.parallelism
    unsaid = [job.optimizer_of_script, *job.length_of_script]
    if p.recompute == "full":
        unsaid.append(
            "Recomputation: the model has to call deepspeed.checkpointing in every block (in "
            "transformers: gradient_checkpointing_enable)."
        )
    if p.zero == 3 and p.replicas > 1:
        unsaid.append(
            f"Replicas of shards: ZeRO++ keeps gradients and optimizer state in shards over all "
            f"{p.data} devices, so that steps take less memory and more communication than planned."
        )
    if job.kernels != "eager":
        unsaid.append(f"Kernels: the plan counts on {job.kernels} ones, which the script chooses.")
    return unsaid
