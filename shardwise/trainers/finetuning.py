"""Files of programs that fine-tune with transformers' Trainer: axolotl, LLaMA-Factory and PEFT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace as with_fields
from typing import Any

from msgspec.structs import replace

from shardwise.cost.software import COMPILED, FUSED
from shardwise.cost.step_settings import CAPTURED
from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.graph.tuning import FULL
from shardwise.sharding.fusion import ALONE, CHUNKED, IN_PLACE
from shardwise.trainers import accelerate, deepspeed, precisions
from shardwise.trainers.adapters import axolotl_tuning, factory_tuning, peft_tuning
from shardwise.trainers.configuration import (
    ON_GPU,
    Configuration,
    NamedModel,
    Section,
    divided,
)
from shardwise.trainers.stated import optimizer_of

_OWN_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam", "use_adam_mini")
_LIGER_PASSES = (
    ("liger_rms_norm", "liger_layer_norm"),
    ("liger_glu_activation", "liger_swiglu"),
)
"""axolotl's keys of Liger's kernels: of normalisations, and of gated activations."""
_STRATEGIES = ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "no_shard")
_NODE = 8
"""GPUs of a node, which hybrid sharding counts and the file does not say."""

_OWN_LOSS = (
    "pretraining or supervised training: training on preferences or rewards runs pairs of samples, "
    "and mostly a second model, which is not priced"
)


def is_axolotl(document: Mapping[str, Any]) -> bool:
    """Returns whether it is a configuration of axolotl."""
    return "base_model" in document and bool(
        {"micro_batch_size", "datasets", "sequence_len", "adapter"} & set(document)
    )


def is_factory(document: Mapping[str, Any]) -> bool:
    """Returns whether it is a configuration of LLaMA-Factory."""
    return "model_name_or_path" in document and bool(
        {"finetuning_type", "stage", "cutoff_len"} & set(document)
    )


def read_axolotl(document: Mapping[str, Any], gpus: int) -> Configuration:
    """Returns what axolotl's YAML says. Raises `BadInput` naming what cannot be read."""
    top = Section(document)
    for key in ("rl", "reward_model", "process_reward_model"):
        if not _is_off(top.given(key)):
            raise BadInput(f"got {top.given(key)!r:.40}", field=key, expected=_OWN_LOSS)
    narrow = str(top.given("bf16")).lower() in ("true", "auto", "full")
    left_out = list(_without(top))
    tune = axolotl_tuning(top, left_out)
    samples = top.count("micro_batch_size", 1)
    checkpointing = top.given("gradient_checkpointing")
    if isinstance(checkpointing, str) and "offload" in checkpointing:
        left_out.append("gradient_checkpointing: priced with recomputed activations on the GPU")
    recompute = not _is_off(checkpointing)
    length = top.maybe_count("sequence_len")
    named = NamedModel(str(top.given("base_model")))
    found = _configuration(top, gpus, samples, length, recompute, left_out, "optimizer", named)
    # FSDP and DeepSpeed keep a copy in float32; alone the model is loaded and trained in bfloat16.
    if tune != FULL:
        return _tuned(found, tune)
    return _without_copy(found) if narrow and not found.parallelism.zero else found


def read_factory(document: Mapping[str, Any], gpus: int) -> Configuration:
    """Returns what LLaMA-Factory's YAML says. Raises `BadInput` naming what cannot be read."""
    top = Section(document)
    top.ignore("do_train")
    if top.word("stage", "sft") not in ("pt", "sft"):
        raise BadInput(f"got {top.given('stage')!r:.40}", field="stage", expected=_OWN_LOSS)
    for key in _OWN_OPTIMIZERS:
        if top.flag(key):
            raise BadInput(
                "how much state it keeps is not known, and decides what fits",
                field=key,
                expected="an optimizer by `optim`",
            )
    muon, narrow = top.flag("use_muon"), top.flag("pure_bf16")
    left_out = list(_without(top))
    tune = factory_tuning(top, left_out)
    samples = top.count("per_device_train_batch_size", 8)
    # LLaMA-Factory recomputes every block unless it is told not to.
    recompute = not top.flag("disable_gradient_checkpointing")
    length = top.count("cutoff_len", 2048)
    named = NamedModel(str(top.given("model_name_or_path")))
    found = _configuration(top, gpus, samples, length, recompute, left_out, "optim", named)
    if muon:
        notes: list[str] = []
        stated = {**found.stated, **optimizer_of("muon", "use_muon, which is", notes)}
        found = with_fields(found, stated=stated, unread=[*notes, *found.unread])
    if tune != FULL:
        return _tuned(found, tune)
    return _without_copy(found) if narrow else found


def is_peft(document: Mapping[str, Any]) -> bool:
    """Returns whether it is the adapter_config.json of PEFT."""
    return "peft_type" in document


def read_peft(document: Mapping[str, Any], gpus: int) -> Configuration:
    """Returns what PEFT's adapter_config.json says: what is trained, of which model. Raises
    `BadInput` naming what cannot be read."""
    top = Section(document)
    left_out: list[str] = []
    tune = peft_tuning(top, left_out)
    return Configuration(
        trainer=accelerate.NAME,
        parallelism=Parallelism(replicas=gpus),
        batch=None,
        sequence_length=None,
        unread=["how it is sharded: the adapter's file does not say, read as data parallelism"],
        stated={"tune": tune},
        left_out=left_out,
        named=NamedModel(str(top.given("base_model_name_or_path") or "")),
    )


def _tuned(found: Configuration, tune: str) -> Configuration:
    """Returns a configuration of adapters, which are trained in float32, or in 16 bits with a copy:
    either takes as much."""
    return with_fields(found, stated={"tune": tune, **found.stated})


def _without_copy(found: Configuration) -> Configuration:
    """Returns a configuration whose optimizer keeps what its parameters are in, without a copy."""
    return with_fields(found, stated={"state": CAPTURED, **found.stated})


def _without(top: Section) -> Iterator[str]:
    for key in ("activation_offloading", "layer_offloading"):
        if not _is_off(top.given(key)):
            yield f"{key}: priced without it"


def _configuration(
    top: Section,
    gpus: int,
    samples: int,
    length: int | None,
    recompute: bool,
    left_out: list[str],
    optimizer: str,
    named: NamedModel,
) -> Configuration:
    steps = _steps(top, samples)
    stated = {"framework": COMPILED} if top.given("torch_compile") in (True, "true") else {}
    notes: list[str] = []
    if not _is_off(top.given("fp8")):
        # Accelerate's recipe of torchao.
        stated[precisions.PRECISION] = "fp8:tensorwise"
        if top.given("fp8_enable_fsdp_float8_all_gather") in (True, "true"):
            left_out.append(f"fp8_enable_fsdp_float8_all_gather: {precisions.GATHERED}")
    stated.update(_kernels(top, notes))
    if top.has(optimizer):
        name = top.word(optimizer, "")
        stated.update(optimizer_of(name, optimizer, notes))
    trainer, parallelism = _sharded(top, gpus, left_out, notes, stated)
    return Configuration(
        trainer=trainer,
        parallelism=replace(
            parallelism,
            recompute="full" if recompute else parallelism.recompute,
            micro_batches=steps,
        ),
        batch=samples * steps * parallelism.data,
        sequence_length=length,
        unread=[*notes, *_bearing(top)],
        stated=stated,
        left_out=left_out,
        named=named,
    )


def _steps(top: Section, samples: int) -> int:
    """Returns the micro-batches of a step; axolotl's `batch_size` are samples of a device's step.

    Raises `BadInput` for both.
    """
    if not top.has("batch_size"):
        return top.count("gradient_accumulation_steps", 1)
    if top.has("gradient_accumulation_steps"):
        raise BadInput(
            "given beside gradient_accumulation_steps",
            field="batch_size",
            expected="one of the two",
        )
    return divided(top.count("batch_size", samples), samples, "samples", "batch_size")


def _is_off(value: Any) -> bool:
    """Returns whether a switch that may have other values too is off or missing."""
    return value in (None, False) or str(value).lower() in ("false", "none", "no", "off", "")


def _kernels(top: Section, notes: list[str]) -> dict[str, str]:
    """Returns the options of the kernels that a file asks for: cut cross entropy and Liger's fused
    loss never have all scores in memory, Liger's normalisations and activations are one pass each.

    Adds a note for kernels that are left out.
    """
    plugins = top.given("plugins")
    loaded = " ".join(map(str, plugins if isinstance(plugins, list) else ())).lower()
    every = top.flag("enable_liger_kernel")
    if every:
        return {"kernels": FUSED, "loss": CHUNKED}
    cut = "cut_cross_entropy" in loaded and top.flag("cut_cross_entropy", True)
    if "liger" not in loaded:
        return {"loss": CHUNKED} if cut else {}
    stated = {}
    passes = [[key for key in keys if top.flag(key)] for keys in _LIGER_PASSES]
    if all(passes):
        top.ignore("liger_rope")
        stated = {"kernels": FUSED, "loss": ALONE}
    else:
        notes += [f"{key}: priced as eager operators" for keys in passes for key in keys]
    if top.flag("liger_cross_entropy"):
        stated["loss"] = IN_PLACE
    if top.flag("liger_fused_linear_cross_entropy") or cut:
        stated["loss"] = CHUNKED
    return stated


def _bearing(top: Section) -> Iterator[str]:
    """Yields the keys that were not read and bear on the step; the others are one line."""
    bearing = (
        *("flash", "liger", "packing", "kernel", "parallel", "offload", "fp8", "attn", "cut_"),
        *("frozen", "freeze", "relora", "tiled", "unsloth"),
    )
    others = 0
    for path in top.unread():
        if any(word in path for word in bearing):
            yield path
        else:
            others += 1
    if others:
        yield f"{others} key{'s' * (others > 1)} of data, learning rate, logging and checkpoints"


def _context(top: Section) -> int:
    """Returns the degree of axolotl's context parallelism, a ring, by either of its names."""
    now, before = "context_parallel_size", "sequence_parallel_degree"
    degree = top.count(now, 1)
    if top.has(before):
        former = top.count(before, 1)
        if top.has(now) and former != degree:
            raise BadInput(
                f"got {former} beside {now}: {degree}", field=before, expected="one of the two"
            )
        degree = former
    return degree


def _strategy(fsdp: Section, words: str) -> str:
    """Returns the sharding strategy of FSDP, which either of two fields says.

    Raises `BadInput` where they differ.
    """
    inner = [key for key in ("fsdp_sharding_strategy", "sharding_strategy") if fsdp.has(key)]
    said = [word for word in words.replace(",", " ").lower().split() if word in _STRATEGIES]
    given = [fsdp.word(key, "").lower().removeprefix("_") for key in inner]
    for key, strategy in zip(inner, given, strict=True):
        if strategy not in _STRATEGIES or {*said, *given} != {strategy}:
            beside = f" beside fsdp: {' '.join(said)}" if said else ""
            raise BadInput(
                f"got {strategy[:40]!r}{beside}",
                field=fsdp.path(key),
                expected=said[0].upper() if said else " or ".join(_STRATEGIES).upper(),
            )
    return next(iter((*said, *given)), _STRATEGIES[0])


def _sharded(
    top: Section, gpus: int, left_out: list[str], notes: list[str], stated: dict[str, str]
) -> tuple[str, Parallelism]:
    """Returns the trainer underneath and how it shards the model; adds what it states."""
    top.one("context_parallel_degree", "sequence_parallel_size")
    top.one("expert_parallel_size", "expert_parallel_degree")
    context = _context(top)
    tensor = top.count("tensor_parallel_size", 1)
    replicas = top.count("dp_replicate_size", 1)
    what = "GPUs (tensor × context × replicate)"
    rest = divided(gpus, tensor * context * replicas, what, "tensor_parallel_size")
    shards = top.count("dp_shard_size", rest)
    plugin = top.given("deepspeed")
    if isinstance(plugin, str):
        raise BadInput(
            f"names another file, {plugin[:60]!r}",
            field="deepspeed",
            expected="that file, to price instead of this one",
        )
    if isinstance(plugin, Mapping):
        for key in ("dp_replicate_size", "dp_shard_size"):
            if top.has(key):
                raise BadInput(
                    "given beside deepspeed, which shards over all devices",
                    field=key,
                    expected="fsdp, or neither",
                )
        if tensor > 1:
            # axolotl writes its degree into DeepSpeed's file.
            plugin = {"tensor_parallel": {"autotp_size": tensor}, **plugin}
        own = {"train_batch_size": None, "gradient_accumulation_steps": 1}
        of_samples = divided(gpus, context, "GPUs", "context_parallel_size")
        read = deepspeed.read({**plugin, **own}, of_samples)
        left_out += read.left_out
        notes += [f"deepspeed.{line}" for line in read.unread]
        stated.update({name: read.stated[name] for name in ("offload",) if name in read.stated})
        return deepspeed.NAME, replace(read.parallelism, context=context, context_form="ring")
    fsdp = top.section("fsdp_config")
    words = top.given("fsdp")
    words = " ".join(map(str, words)) if isinstance(words, list) else str(words or "")
    if not words and not top.has("fsdp_config") and not top.has("dp_shard_size"):
        if gpus > 1:
            notes.append(
                "no fsdp and no deepspeed: read as data parallelism; a launcher may say more"
            )
        return accelerate.NAME, Parallelism(replicas=rest, context=context, context_form="ring")
    if fsdp.flag("offload_params") or fsdp.flag("fsdp_offload_params") or "offload" in words:
        left_out.append(f"fsdp offloading: {ON_GPU}")
    strategy = _strategy(fsdp, words)
    if strategy == "no_shard":
        fsdp.ignore_all()
        return accelerate.NAME, Parallelism(replicas=rest, context=context, context_form="ring")
    if strategy.startswith("hybrid") and not top.has("dp_shard_size") and shards % _NODE == 0:
        replicas, shards = replicas * shards // _NODE, _NODE
        notes.append(f"fsdp {strategy}: read as shards within nodes of {_NODE} GPUs")
    reshard = fsdp.flag("reshard_after_forward", fsdp.flag("fsdp_reshard_after_forward", True))
    recompute = fsdp.flag("activation_checkpointing", fsdp.flag("fsdp_activation_checkpointing"))
    fsdp.ignore_all()
    parallelism = Parallelism(
        replicas=replicas,
        shards=shards,
        tensor=tensor,
        context=context,
        context_form="ring",
        zero=2 if not reshard or strategy in ("shard_grad_op", "hybrid_shard_zero2") else 3,
        recompute="full" if recompute else "none",
    )
    return accelerate.NAME, parallelism
