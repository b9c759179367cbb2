"""Accelerate: what the YAML of `accelerate config` says of a step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace as with_fields
from typing import Any

from msgspec.structs import replace

from shardwise.cost.software import COMPILED
from shardwise.cost.step_settings import OFFLOADED_STATES
from shardwise.documents.parallelism import ContextForm, Parallelism
from shardwise.errors import BadInput
from shardwise.trainers import megatron_read, precisions
from shardwise.trainers.accelerate import NAME, PREFIX
from shardwise.trainers.configuration import (
    ON_GPU,
    Configuration,
    NamedModel,
    Section,
    divided,
    whole_number,
)
from shardwise.trainers.launched import launched_on

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
    "tpu_env",
    "tpu_name",
    "tpu_zone",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "fsdp_config",
    "deepspeed_config",
    "parallelism_config",
    "megatron_lm_config",
    "dynamo_config",
    "fp8_config",
)
"""What a cluster's file may have, as far as it is used with GPUs."""

_IGNORED = tuple(key for key in KEYS if not key.endswith("_config") and key != "num_processes")
_VERSION_1 = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
_NUMBERED = dict(enumerate(("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"), 1))
_STEP = re.compile(r"^# shardwise: (.*)$", re.MULTILINE)
"""The comment with the numbers that the file cannot say and the script has to."""


_PREFIXES = {"fsdp_config": "fsdp_", "dynamo_config": "dynamo_"}
"""What Accelerate puts in front of keys of these mappings that lack it."""

_NOISE = {
    "fsdp_config": (
        "fsdp_auto_wrap_policy",
        "fsdp_transformer_layer_cls_to_wrap",
        "fsdp_min_num_params",
        "fsdp_backward_prefetch",
        "fsdp_backward_prefetch_policy",
        "fsdp_forward_prefetch",
        "fsdp_state_dict_type",
        "fsdp_cpu_ram_efficient_loading",
        "fsdp_sync_module_states",
        "fsdp_use_orig_params",
        "fsdp_reshard_after_forward",
    ),
    "deepspeed_config": (
        "zero3_init_flag",
        "zero3_save_16bit_model",
        "gradient_clipping",
        "deepspeed_multinode_launcher",
        "deepspeed_hostfile",
        "deepspeed_exclusion_filter",
        "deepspeed_inclusion_filter",
    ),
    "dynamo_config": ("dynamo_mode", "dynamo_use_dynamic", "dynamo_use_fullgraph"),
    "parallelism_config": (f"{PREFIX}cp_comm_strategy",),
}
"""Of each inner mapping, the keys that do not bear on time or memory."""

_FLAGS = {
    "tp_degree": "tensor-model-parallel-size",
    "pp_degree": "pipeline-model-parallel-size",
    "sequence_parallelism": "sequence-parallel",
}
"""Megatron's flags that its plugin calls otherwise, without the prefix of all of its keys."""
_NO_FLAGS = ("num-micro-batches", "gradient-clipping", "attention-backend")
"""Keys of the plugin that are read, or do not bear on time or memory."""


def read(document: Mapping[str, Any], gpus: int, text: str = "") -> Configuration:
    """Returns what a file says; `text` is all of it, for the comment that `write` leaves.

    Raises `BadInput` naming a field that cannot be read.
    """
    top = Section(_prefixed(document), known=KEYS)
    top.ignore(*_IGNORED)
    if top.flag("use_cpu"):
        raise BadInput("training on CPUs", field="use_cpu", expected="false")
    processes = top.count("num_processes", gpus)
    if processes != gpus:
        raise BadInput(f"got {processes}", field="num_processes", expected=f"{gpus}, as asked")
    machines = top.maybe_count("num_machines")
    launched = launched_on(machines, top, "num_machines", gpus)
    step = Section(_numbers(text))
    kind = top.word("distributed_type", "NO")
    notes: list[str] = []
    stated = {}
    if kind == "FSDP":
        parallelism = _fsdp(top, gpus, machines or 1, notes)
    elif kind == "DEEPSPEED":
        parallelism = _deepspeed(top, gpus)
        plugin = top.section("deepspeed_config")
        if parallelism.zero and plugin.word("offload_optimizer_device", "none") == "cpu":
            stated["offload"] = OFFLOADED_STATES
    elif kind == "MEGATRON_LM":
        read = _megatron(top, gpus)
        top.section("megatron_lm_config").ignore_all()
        for name, keys in _NOISE.items():
            top.section(name).ignore(*keys)
        return with_fields(
            read,
            batch=step.maybe_count("batch"),
            sequence_length=step.maybe_count("sequence_length"),
            unread=[*read.unread, *top.unread()],
            launched=launched,
        )
    elif kind in ("MULTI_GPU", "NO"):
        parallelism = Parallelism(replicas=gpus)
    else:
        raise BadInput(
            f"got {kind[:40]!r}",
            field="distributed_type",
            expected="FSDP, DEEPSPEED, MEGATRON_LM or MULTI_GPU",
        )
    steps = top.section("deepspeed_config").maybe_count("gradient_accumulation_steps")
    steps = steps or step.maybe_count("micro_batches")
    if steps is None:
        notes.append("gradient accumulation: the script says it, read as 1 micro-batch")
    if top.section("dynamo_config").word("dynamo_backend", "NO").upper() == "INDUCTOR":
        stated["framework"] = COMPILED
    left_out = list(_left_out(top, stated))
    precision = precisions.of_accelerate(top)
    if precision is not None:
        stated[precisions.PRECISION] = precision
    for name, keys in _NOISE.items():
        top.section(name).ignore(*keys)
    return Configuration(
        trainer=NAME,
        parallelism=replace(parallelism, micro_batches=steps or 1),
        batch=step.maybe_count("batch"),
        sequence_length=step.maybe_count("sequence_length"),
        unread=[*notes, *top.unread()],
        stated=stated,
        left_out=left_out,
        launched=launched,
    )


def _prefixed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a file with the prefixes of inner keys, which Accelerate adds where they are missing
    (its `commands.launch`), but not to degrees, which it then does not use.

    Raises `BadInput` for a degree without it.
    """
    made = dict(document)
    for name, prefix in _PREFIXES.items():
        section = made.get(name)
        if isinstance(section, Mapping):
            keys = {key: str(key) for key in section}
            made[name] = {
                word if word.startswith(prefix) else prefix + word: section[key]
                for key, word in keys.items()
            }
    degrees = made.get("parallelism_config")
    for key in map(str, degrees if isinstance(degrees, Mapping) else ()):
        if not key.startswith(PREFIX):
            raise BadInput(
                "Accelerate takes no such key here",
                field=f"parallelism_config.{key[:60]}",
                expected=f"{PREFIX}{key[:60]}",
            )
    return made


def _left_out(top: Section, stated: Mapping[str, str]) -> Iterator[str]:
    """Yields what changes memory or time, and as what it is priced."""
    fsdp, plugin = top.section("fsdp_config"), top.section("deepspeed_config")
    if fsdp.flag("fsdp_offload_params"):
        yield f"{fsdp.path('fsdp_offload_params')}: {ON_GPU}"
    for key in ("offload_optimizer_device", "offload_param_device"):
        is_priced = key == "offload_optimizer_device" and "offload" in stated
        if plugin.word(key, "none") != "none" and not is_priced:
            yield f"{plugin.path(key)}: {ON_GPU}"


def _megatron(top: Section, gpus: int) -> Configuration:
    """Returns what Megatron's plugin says: its keys are Megatron's flags by other names."""
    plugin, values = top.section("megatron_lm_config"), top.given("megatron_lm_config") or {}
    steps = plugin.count("megatron_lm_num_micro_batches", 1)
    mapping: dict[str, Any] = {"bf16": top.word("mixed_precision", "no") == "bf16"}
    paths: dict[str, str] = {}
    for key in map(str, values):
        name = key.removeprefix("megatron_lm_")
        flag = _FLAGS.get(name, name.replace("_", "-"))
        value = plugin.given(key)
        mapping[flag] = plugin.flag(key) if str(value).lower() in ("true", "false") else value
        paths[flag] = plugin.path(key)
    mapping.pop("num-micro-batches", None)
    read = megatron_read.read_mapping(mapping, gpus, paths)
    stated = {key: value for key, value in read.stated.items() if key != "optimizer"}
    listed = [line.partition(":")[0] for line in (*read.unread, *read.left_out)]
    unread = [
        path
        for flag, path in paths.items()
        if flag not in (*megatron_read.READ, *_NO_FLAGS) and path not in listed
    ]
    return with_fields(
        read,
        parallelism=replace(read.parallelism, micro_batches=steps),
        batch=None,
        stated=stated,
        named=NamedModel(),
        unread=[*read.unread, *unread],
    )


def _fsdp(top: Section, gpus: int, machines: int, notes: list[str]) -> Parallelism:
    fsdp = top.section("fsdp_config")
    degrees = top.section("parallelism_config")
    context, form = _context(degrees)
    recompute = fsdp.flag("fsdp_activation_checkpointing")
    tensor = degrees.count(f"{PREFIX}tp_size", 1)
    replicas = degrees.count(f"{PREFIX}dp_replicate_size", 1)
    field = f"parallelism_config.{PREFIX}dp_shard_size"
    given = tensor * replicas * context
    rest = divided(gpus, given, "GPUs (tensor × replicate × context)", field)
    shards = degrees.count(f"{PREFIX}dp_shard_size", rest)
    if shards != rest:
        raise BadInput(f"got {shards}", field=field, expected=f"{rest} of {gpus} GPUs")
    if fsdp.count("fsdp_version", 1, most=2) >= 2:
        zero = 3 if fsdp.flag("fsdp_reshard_after_forward", True) else 2
    else:
        zero, hybrid = _version_1(fsdp, notes)
        if hybrid:
            shards = divided(gpus, machines, "GPUs (machines)", "num_machines")
            replicas = machines
    if not zero:
        replicas, shards = gpus // context, 1
    return Parallelism(
        replicas=replicas,
        shards=shards,
        tensor=tensor,
        context=context,
        context_form=form,
        zero=zero,
        recompute="full" if recompute else "none",
    )


def _context(degrees: Section) -> tuple[int, ContextForm]:
    """Returns the degree and the form of context parallelism, `sp_size` being Ulysses'."""
    context = degrees.count(f"{PREFIX}cp_size", 1)
    heads = degrees.count(f"{PREFIX}sp_size", 1)
    strategy = degrees.word(f"{PREFIX}cp_comm_strategy", "allgather", ("allgather", "alltoall"))
    if context > 1 and heads > 1:
        raise BadInput(
            f"got {heads} beside cp_size {context}",
            field=degrees.path(f"{PREFIX}sp_size"),
            expected="one of the two",
        )
    if heads > 1:
        return heads, "ulysses"
    return context, "ring" if strategy == "alltoall" else "gather"


def _version_1(fsdp: Section, notes: list[str]) -> tuple[int, bool]:
    """Returns the ZeRO stage of FSDP version 1, and whether shards have replicas.

    `accelerate launch` sets the strategy to FULL_SHARD where the file does not say it, and then
    does not look at `fsdp_reshard_after_forward`, where `accelerate config` writes it.
    """
    strategy = "FULL_SHARD"
    reshard = str(fsdp.given("fsdp_reshard_after_forward") or strategy)[:40].upper()
    if not fsdp.has("fsdp_sharding_strategy") and reshard not in (strategy, "TRUE", "1"):
        notes.append(
            f"fsdp_config.fsdp_reshard_after_forward {reshard}: read as {strategy}, as accelerate "
            "launch does with FSDP 1; fsdp_sharding_strategy would say it"
        )
    if fsdp.has("fsdp_sharding_strategy"):
        try:
            number = fsdp.count("fsdp_sharding_strategy", 1)
            strategy = _NUMBERED.get(number, "HYBRID_SHARD_ZERO2")
        except BadInput:
            known = (*_VERSION_1, "NO_SHARD", "_HYBRID_SHARD_ZERO2")
            strategy = fsdp.word("fsdp_sharding_strategy", "").upper()
            if strategy not in known:
                fsdp.word("fsdp_sharding_strategy", "", known)
            strategy = strategy.removeprefix("_")
    return _VERSION_1.get(strategy, 0), strategy.startswith("HYBRID")


def _deepspeed(top: Section, gpus: int) -> Parallelism:
    plugin = top.section("deepspeed_config")
    if plugin.has("deepspeed_config_file"):
        raise BadInput(
            "names another file",
            field="deepspeed_config.deepspeed_config_file",
            expected="that file, to read instead of this one",
        )
    context, form = _context(top.section("parallelism_config"))
    field = f"parallelism_config.{PREFIX}sp_size"
    return Parallelism(
        shards=divided(gpus, context, "GPUs", field),
        zero=plugin.count("zero_stage", 2, least=0, most=3),
        context=context,
        context_form=form,
    )


def _numbers(text: str) -> dict[str, int]:
    match = _STEP.search(text)
    pairs = (word.partition("=") for word in (match[1].split() if match else ()))
    return {name: whole_number(value, f"# shardwise: {name}") for name, _, value in pairs}
