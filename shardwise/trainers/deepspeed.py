"""DeepSpeed: its JSON configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from shardwise.cost.step_settings import FLOAT32, OFFLOADED_STATES
from shardwise.documents import Plan
from shardwise.documents.parallelism import ContextForm, Parallelism
from shardwise.errors import BadInput
from shardwise.trainers.configuration import ON_GPU, Configuration, Section, divided, whole_number
from shardwise.trainers.job import Job, Limits, Written, job_of
from shardwise.trainers.stated import optimizer_of

NAME = "deepspeed"
FILENAME = "ds_config.json"
_CONTEXT: tuple[ContextForm, ...] = ("ulysses",)
LIMITS = Limits(zero=(0, 1, 2, 3), hybrid=(3,), tensor=False, context=_CONTEXT)

_ALIASED = (
    "prefetch_bucket_size",
    "param_persistence_threshold",
    "model_persistence_threshold",
    "max_live_parameters",
    "max_reuse_distance",
    "gather_16bit_weights_on_model_save",
    "module_granularity_threshold",
    "use_all_reduce_for_fetch_params",
)
"""Fields of ZeRO that have `stage3_` in front of their alias; DeepSpeed takes both
(deepspeed/runtime/config_utils.py, `populate_by_name`)."""

ZERO_KEYS = (
    "stage",
    "zero_hpz_partition_size",
    "mics_shard_size",
    "mics_hierarchical_params_gather",
    "overlap_comm",
    "contiguous_gradients",
    "reduce_scatter",
    "reduce_bucket_size",
    "allgather_partitions",
    "allgather_bucket_size",
    "offload_param",
    "offload_optimizer",
    "cpu_offload",
    "cpu_offload_params",
    "cpu_offload_use_pin_memory",
    "sub_group_size",
    "round_robin_gradients",
    "use_multi_rank_bucket_allreduce",
    "ignore_unused_parameters",
    "legacy_stage1",
    "load_from_fp32_weights",
    "elastic_checkpoint",
    "pipeline_loading_checkpoint",
    "memory_efficient_linear",
    "override_module_apply",
    "log_trace_cache_warnings",
    "zeropp_loco_param",
    "leaf_module",
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_gradients",
    *_ALIASED,
    *(f"stage3_{name}" for name in _ALIASED),
    "gather_fp16_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
)
"""What the section `zero_optimization` may have."""

_BEARING = ("overlap_comm", "reduce_scatter", "contiguous_gradients")
"""Of these, those that bear on time and are listed when they are switched off."""

_OFFLOADS = ("offload_param", "offload_optimizer", "cpu_offload", "cpu_offload_params")
_OFFLOADED_STATES = ("offload_optimizer", "cpu_offload")
_DEVICES = ("cpu", "nvme")
_QUANTIZED = (
    "zero_quantized_weights",
    "zero_quantized_nontrainable_weights",
    "zero_quantized_gradients",
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
    "fp16",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "dump_state",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "prescale_gradients",
    "gradient_predivide_factor",
    "memory_breakdown",
    "flops_profiler",
    "checkpoint",
)
_WIDE = ("fp32", "float32")


def write(plan: Plan) -> Written:
    """Returns the JSON of a plan. Raises as `job_of` does."""
    job = job_of(plan, NAME, LIMITS)
    document = _document(job)
    if offloads_states(plan):
        document["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
    return Written(text, [*job.unsaid, *_unsaid(job)])


def offloads_states(plan: Plan) -> bool:
    """Returns whether a plan has the optimizer's states on the host."""
    return plan.execution is not UNSET and plan.execution.offload == OFFLOADED_STATES


def read(document: Mapping[str, Any], gpus: int) -> Configuration:
    """Returns what a configuration says. Raises `BadInput` naming a field that cannot be read."""
    top = Section(document, known=_TOP)
    top.ignore(*_IGNORED)
    top.section("pipeline").one("stages")
    # Ulysses: positions are exchanged for heads, and ZeRO shards over these devices too.
    context = top.count("sequence_parallel_size", 1)
    tensor = top.section("tensor_parallel").count("autotp_size", 1, least=0) or 1
    of_context = divided(gpus, tensor, "GPUs", "tensor_parallel.autotp_size")
    data = divided(of_context, context, "GPUs", "sequence_parallel_size")
    zero = top.section("zero_optimization", ZERO_KEYS)
    stage = (
        0
        if zero.given("stage") is None
        else whole_number(zero.given("stage"), zero.path("stage"), 0, 3)
    )
    notes: list[str] = []
    shards, field = _shards(zero, stage, data, notes)
    replicas = divided(data, shards, "devices", field)
    batch, micro_batches = _batch(top, data, notes)
    stated = _stated(top, notes)
    if stage and any(_device(zero, key) == "cpu" for key in _OFFLOADED_STATES):
        stated["offload"] = OFFLOADED_STATES
    left_out = list(_left_out(zero, stated))
    zero.ignore(*(key for key in ZERO_KEYS if key not in _BEARING or zero.flag(key)))
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
            context=context,
            context_form="ulysses",
        ),
        batch=batch,
        sequence_length=None,
        unread=[*notes, *top.unread()],
        stated=stated,
        left_out=left_out,
    )


def _shards(zero: Section, stage: int, data: int, notes: list[str]) -> tuple[int, str]:
    """Returns over how many devices states are sharded, and the field that says so."""
    parts = zero.count("zero_hpz_partition_size", 1, least=0)
    mics = zero.count("mics_shard_size", -1, least=-1)
    for key, is_set in (("mics_shard_size", mics > 0), ("zero_hpz_partition_size", parts > 1)):
        if is_set and stage < 3:
            notes.append(f"{zero.path(key)}: without effect in ZeRO stage {stage}")
    if stage == 3 and mics > 0:
        if parts > 1:
            notes.append(
                "zero_optimization.zero_hpz_partition_size beside mics_shard_size: read as the "
                "shards of MiCS alone; DeepSpeed makes its MiCS optimizer where both are given"
            )
        return mics, zero.path("mics_shard_size")
    if stage == 3 and parts > 1:
        notes.append(
            "zero_optimization.zero_hpz_partition_size: read as replicas of shards; ZeRO++ keeps "
            "gradients and optimizer state in shards over all devices"
        )
        return parts, zero.path("zero_hpz_partition_size")
    return data, zero.path("zero_hpz_partition_size")


def _stated(top: Section, notes: list[str]) -> dict[str, str]:
    """Returns the options that a configuration states: what gradients add up in, the optimizer."""
    stated = {}
    data_types = top.section("data_types")
    kept = data_types.given("grad_accum_dtype")
    if isinstance(kept, str) and kept in _WIDE:
        stated["gradients"] = FLOAT32
    bf16 = top.section("bf16" if top.has("bf16") else "bfloat16")
    narrow = [bf16.flag(key) for key in ("bf16_master_weights_and_grads", "bf16_optimizer_states")]
    bf16.ignore_all()
    narrow[0] |= top.section("fp16").flag("fp16_master_weights_and_grads")
    top.section("fp16").ignore_all()
    if any(narrow):
        copy, moment = (16 if one else 32 for one in narrow)
        stated["state"] = f"{copy}:{moment}:{moment}"
    optimizer = top.section("optimizer")
    if optimizer.has("type"):
        name = optimizer.word("type", "Adam")
        stated.update(optimizer_of(name, "optimizer.type", notes))
    optimizer.ignore_all()
    return stated


def _left_out(zero: Section, stated: Mapping[str, str]) -> Iterator[str]:
    """Yields what DeepSpeed does to memory or time that is priced otherwise."""
    for key in _OFFLOADS:
        if _device(zero, key) is None or (key in _OFFLOADED_STATES and "offload" in stated):
            continue
        yield f"{zero.path(key)}: {ON_GPU}"
    for key in _QUANTIZED:
        if zero.flag(key):
            yield f"{zero.path(key)}: priced with communication in the dtype of the graph"


def _device(zero: Section, key: str) -> str | None:
    """Returns where an entry of offloading puts something, None where it does not. Raises
    `BadInput` for a place that DeepSpeed does not have."""
    value = zero.given(key)
    device = value.get("device", "none") if isinstance(value, Mapping) else value
    if device in (None, False, "none"):
        return None
    if device is not True and device not in _DEVICES:
        raise BadInput(
            f"got {device!r:.40}", field=f"{zero.path(key)}.device", expected="none, cpu or nvme"
        )
    return "cpu" if device is True else str(device)


def _batch(top: Section, data: int, notes: list[str]) -> tuple[int | None, int]:
    """Returns the samples of a step, if they are said, and the number of micro-batches.

    Any two of the three sizes give the third, as in DeepSpeed.
    """
    batch = top.maybe_count("train_batch_size")
    samples = top.maybe_count("train_micro_batch_size_per_gpu")
    steps = top.maybe_count("gradient_accumulation_steps")
    if batch is None and samples is not None:
        batch = samples * data * (steps or 1)
    if batch is not None and samples is not None and steps is None:
        steps = divided(batch, samples * data, "samples", "train_batch_size")
    if batch is not None:
        whole = data * (steps or 1) * (samples or 1)
        if samples is not None and batch != whole:
            raise BadInput(
                f"got {batch}, beside {samples} samples × {steps} steps × {data} devices",
                field="train_batch_size",
                expected=f"{whole}, or one of the three left out",
            )
        divided(batch, whole, "samples", "train_batch_size")
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
    if p.context > 1:
        document["sequence_parallel_size"] = p.context
    if job.precision != "fp32":
        document[job.precision] = {"enabled": True}
    if job.wide_gradients:
        document["data_types"] = {"grad_accum_dtype": "fp32"}
    if p.recompute == "full":
        document["activation_checkpointing"] = {
            "partition_activations": False,
            "cpu_checkpointing": False,
            "contiguous_memory_optimization": False,
        }
    return document


def _unsaid(job: Job) -> list[str]:
    p = job.parallelism
    unsaid = [*job.model_of_script, job.optimizer_of_script, *job.length_of_script]
    unsaid += job.recipe_unsaid("DeepSpeed")
    if p.recompute == "full":
        unsaid.append(
            "Recomputation: the model has to call deepspeed.checkpointing in every block (in "
            "transformers: gradient_checkpointing_enable)."
        )
    if p.context > 1:
        unsaid.append(
            "Positions: the model has to call DeepSpeed's Ulysses attention (in transformers: "
            "UlyssesSPAttentionHF.register_with_transformers)."
        )
    if p.zero == 3 and p.replicas > 1:
        unsaid.append(
            f"Replicas of shards: ZeRO++ keeps gradients and optimizer state in shards over all "
            f"{p.data} devices, so that steps take less memory and more communication than planned."
        )
    if job.kernels != "eager":
        unsaid.append(f"Kernels: the plan counts on {job.kernels} ones, which the script chooses.")
    return unsaid
