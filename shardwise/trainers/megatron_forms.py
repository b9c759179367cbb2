"""Files of programs on top of Megatron-core, read as its flags: NeMo, Megatron-Bridge, Primus, and
the recipes of Megatron's own tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shardwise.errors import BadInput
from shardwise.trainers.configuration import Configuration, NamedModel
from shardwise.trainers.launched import devices_of_trainer
from shardwise.trainers.maxtext_read import read as read_maxtext
from shardwise.trainers.megatron_named import with_model_flags
from shardwise.trainers.megatron_read import read_mapping
from shardwise.trainers.torchtitan_read import read as read_titan

_NARROW = ("bf16", "bfloat16", 16, "16", "fp16")
_SIZES = ("micro_batch_size", "global_batch_size")
_NEMO = {
    "encoder_seq_length": "seq_length",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "activations_checkpoint_recompute": "recompute_activations",
    "fp8": "fp8_format",
    "fp4": "fp4_format",
    "sequence_length": "seq_length",
    "grad_reduce_in_fp32": "accumulate_allreduce_grads_in_fp32",
}
"""What NeMo and Megatron-Bridge call flags of Megatron."""

_NAMED_PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    "fp8_delayed_scaling": {
        "fp8_format": "hybrid", "fp8_recipe": "delayed", "fp8_param_gather": True,
    },
    "fp8_current_scaling": {
        "fp8_format": "hybrid", "fp8_recipe": "tensorwise", "fp8_param_gather": True,
    },
    "mxfp8": {"fp8_format": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True},
    "nvfp4": {"fp4_format": "e2m1", "fp4_recipe": "nvfp4", "fp4_param_gather": True},
    "fp8_subchannel_scaling": {"fp8_format": "hybrid", "fp8_recipe": "blockwise"},
}  # fmt: skip
"""Megatron-Bridge's registered precisions, by what their names have after `with_`."""
_PRECISION_MEMBERS = (
    *("fp8_format", "fp8_recipe", "fp8_param", "fp8_param_gather"),
    *("fp4_format", "fp4_recipe", "fp4_param", "fp4_param_gather"),
)

_PRIMUS = {
    "bf16": True,
    "use_distributed_optimizer": True,
    "sequence_parallel": True,
    "micro_batch_size": 2,
    "global_batch_size": 16,
    "seq_length": 1024,
}
"""What Primus' pre_trainer.yaml and language_model.yaml say unless an experiment overrides it."""

_LARGEST = 400


_BACKENDS: Mapping[str, Callable[[Mapping[str, Any], int], Configuration]] = {
    "torchtitan": read_titan,
    "maxtext": read_maxtext,
}
"""What Primus drives besides Megatron, in the layout of its own files."""


def is_nemo(document: Mapping[str, Any]) -> bool:
    """Returns whether it is a recipe of NeMo 1: sizes and degrees under `model`."""
    model = document.get("model")
    return (
        isinstance(model, Mapping)
        and isinstance(document.get("trainer"), Mapping)
        and bool({*_SIZES, "tensor_model_parallel_size"} & set(model))
    )


def read_nemo(document: Mapping[str, Any], gpus: int) -> Configuration:
    """Returns what NeMo's YAML says; its `trainer` has to be of as many devices."""
    model, trainer = document["model"], document["trainer"]
    launched = devices_of_trainer(trainer)
    if launched is not None and launched.devices != gpus:
        raise BadInput(
            f"got {launched.fields}", field="trainer.devices", expected=f"{gpus} GPUs, as asked"
        )
    paths: dict[str, str] = {}
    flags = _scalars(model, "model", paths)
    optimizer = model.get("optim")
    name = str(optimizer.get("name", "adam")) if isinstance(optimizer, Mapping) else "adam"
    if name in ("distributed_fused_adam", "mcore_distributed_optim"):
        flags["use_distributed_optimizer"] = True
    name = "adam" if name == "mcore_distributed_optim" else name
    for prefix in ("distributed_", "megatron_", "fused_"):
        name = name.removeprefix(prefix)
    flags["optimizer"] = name
    if isinstance(optimizer, Mapping) and optimizer.get("grad_sync_dtype") in _NARROW:
        flags["grad_reduce_in_bf16"] = True
    if str(trainer.get("precision", "")).startswith("bf16"):
        flags["bf16"] = True
    if flags.get("recompute_granularity") != "full":
        # Without effect: recipes have a method and 0 layers beside selective recomputation.
        flags.pop("recompute_method", None)
        flags.pop("recompute_num_layers", None)
    return replace(read_mapping(with_model_flags(flags), gpus, paths), launched=launched)


def is_bridge(document: Mapping[str, Any]) -> bool:
    """Returns whether it is a configuration of Megatron-Bridge: sizes under `train`."""
    train = document.get("train")
    return (
        isinstance(train, Mapping)
        and isinstance(document.get("model"), Mapping)
        and "micro_batch_size" in train
        and any("model_parallel" in str(key) for key in document["model"])
    )


def read_bridge(document: Mapping[str, Any], gpus: int) -> Configuration:
    """Returns what Megatron-Bridge's YAML says."""
    flags: dict[str, Any] = {}
    paths: dict[str, str] = {}
    for name in ("dataset", "model", "train", "ddp", "optimizer"):
        section = document.get(name)
        if isinstance(section, Mapping):
            flags.update(_scalars(section, name, paths))
    flags.update(_precision(document.get("mixed_precision", ""), paths))
    read = read_mapping(with_model_flags(flags), gpus, paths)
    if "_target_" in document["model"] and "gated_linear_unit" not in flags:
        return replace(read, named=NamedModel(missing="what model._target_ sets by itself"))
    return read


def _precision(given: Any, paths: dict[str, str]) -> dict[str, Any]:
    """Returns the flags of Megatron-Bridge's `mixed_precision`, a name or members; adds what the
    file calls them to `paths`."""
    if not isinstance(given, Mapping):
        name = str(given)
        flags = {"bf16": True} if name.startswith("bf16") else {}
        known = next(
            (of for part, of in _NAMED_PRECISIONS.items() if f"with_{part}_mixed" in name), {}
        )
        paths.update(dict.fromkeys(known, "mixed_precision"))
        return {**flags, **known}
    members = _scalars(given, "mixed_precision", paths)
    flags = {name: members[name] for name in _PRECISION_MEMBERS if members.get(name)}
    flags["bf16"] = members.get("bf16", False)
    flags["grad_reduce_in_bf16"] = given.get("grad_reduce_in_fp32") is False
    return flags


def is_primus(document: Mapping[str, Any]) -> bool:
    """Returns whether it is an experiment of Primus: overrides of a trainer's module."""
    return _primus(document) is not None


def _primus(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    modules = document.get("modules")
    trainer = modules.get("pre_trainer") if isinstance(modules, Mapping) else None
    return trainer if isinstance(trainer, Mapping) and "overrides" in trainer else None


def read_primus(document: Mapping[str, Any], gpus: int) -> Configuration:
    """Returns what Primus' YAML says, for one of its backends."""
    trainer = _primus(document) or {}
    overrides = trainer.get("overrides")
    backend = str(trainer.get("framework", "megatron"))[:40]
    if not isinstance(overrides, Mapping) or backend not in ("megatron", *_BACKENDS):
        raise BadInput(
            f"got {backend!r}",
            field="modules.pre_trainer.framework",
            expected="megatron, torchtitan or maxtext, with overrides",
        )
    preset = NamedModel(str(trainer.get("model", "")).removesuffix(".yaml"))
    if backend in _BACKENDS:
        read = _BACKENDS[backend](overrides, gpus)
        return replace(read, named=preset) if preset.name else read
    paths: dict[str, str] = {}
    flags = _scalars(overrides, "modules.pre_trainer.overrides", paths)
    read = read_mapping({**_PRIMUS, **flags}, gpus, paths)
    return replace(read, named=preset) if preset.name else read


def is_recipe(document: Mapping[str, Any]) -> bool:
    """Returns whether it is a recipe of Megatron's own tests."""
    return isinstance(document.get("MODEL_ARGS"), Mapping)


def read_recipe(document: Mapping[str, Any], gpus: int) -> Configuration:
    """Returns what `MODEL_ARGS` say."""
    return read_mapping(document["MODEL_ARGS"], gpus)


def _scalars(section: Mapping[str, Any], path: str, paths: dict[str, str]) -> dict[str, Any]:
    """Returns the members of a section that are no mappings, by Megatron's names; adds what the
    file calls them to `paths`."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        if not isinstance(value, Mapping) and len(found) < _LARGEST:
            name = _NEMO.get(str(key), str(key))
            found[name] = value
            paths[name] = f"{path}.{str(key)[:60]}"
    return found
