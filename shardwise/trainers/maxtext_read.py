"""MaxText: what its YAML on top of base.yml says of a step on GPUs.

Each kind of parallelism has a degree inside a node (`ici_…`) and one across nodes (`dcn_…`), one of
which may be -1: what is left. Defaults are those of MaxText's base.yml; a batch has
`per_device_batch_size` samples for every GPU, those of tensor parallelism too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from shardwise.cost.software import COMPILED
from shardwise.cost.step_settings import CAPTURED
from shardwise.documents.parallelism import ContextForm, Parallelism, Recomputed
from shardwise.errors import BadInput
from shardwise.trainers import precisions
from shardwise.trainers.configuration import (
    LARGEST,
    ON_GPU,
    Configuration,
    NamedModel,
    Section,
    divided,
    only_one,
)
from shardwise.trainers.stated import optimizer_of

NAME = "maxtext"
NODE = 8
"""GPUs of a node where the file leaves both degrees open."""

_DATA, _FSDP, _TENSOR, _EXPERT, _CONTEXT = "data", "fsdp", "tensor", "expert", "context"
_KINDS: Mapping[str, str] = {
    "data": _DATA,
    "fsdp": _FSDP,
    "fsdp_transpose": _FSDP,
    "tensor": _TENSOR,
    "tensor_transpose": _TENSOR,
    "tensor_sequence": _TENSOR,
    "expert": _EXPERT,
    "context": _CONTEXT,
}
_OTHERS = ("sequence", "context_autoregressive", "pipeline", "diloco")
"""Kinds of parallelism that are not priced; `autoregressive` is of inference."""

_POLICIES: Mapping[str, Recomputed] = {"none": "none", "full": "full", "minimal": "selective"}
"""What keeps all of a block, nothing of it, and its products by weights."""
_OTHER_POLICIES = (
    *("minimal_with_context", "minimal_flash", "minimal_offloaded", "save_dot_except_mlp"),
    *("save_dot_except_mlpwi", "save_dot_with_context_except_mlp", "save_out_proj"),
    *("save_qkv_proj", "qkv_proj_offloaded", "custom"),
)
"""Policies that keep some products, by MaxText's RematPolicy and its decoders."""

_FORMS: Mapping[str, ContextForm] = {"all_gather": "gather", "ring": "ring"}

_LLAMA = {
    "num_hidden_layers": ("base_num_decoder_layers", 16),
    "hidden_size": ("base_emb_dim", 2048),
    "intermediate_size": ("base_mlp_dim", 7168),
    "num_attention_heads": ("base_num_query_heads", 16),
    "num_key_value_heads": ("base_num_kv_heads", 16),
    "head_dim": ("head_dim", 128),
    "vocab_size": ("vocab_size", 32_000),
}
_BEARING = (
    *("parallelism", "offload", "pipeline", "quant", "remat", "chunk", "fused", "sharding"),
    *("grad_dtype", "moe_", "sparse_matmul"),
)
"""Parts of the names of keys that bear on the step."""


def is_one(document: Mapping[str, Any]) -> bool:
    """Returns whether it is a configuration of MaxText."""
    marks = {f"{level}_{kind}_parallelism" for level in ("ici", "dcn") for kind in _KINDS}
    return bool(marks & set(document)) or (
        "base_config" in document and "per_device_batch_size" in document
    )


def read(document: Mapping[str, Any], gpus: int) -> Configuration:
    """Returns what MaxText's YAML says. Raises `BadInput` naming a field that cannot be read."""
    top = Section(document)
    notes: list[str] = []
    inside, across = _degrees(top, gpus, notes)
    data = inside[_DATA] * across[_DATA]
    shards, tensor = (inside[kind] * across[kind] for kind in (_FSDP, _TENSOR))
    expert, context = (inside[kind] * across[kind] for kind in (_EXPERT, _CONTEXT))
    # Weights are over the devices of experts and of positions too (logical_axis_rules, embed).
    shards *= expert
    form = top.word("context_parallel_strategy", "all_gather", tuple(_FORMS))
    steps = top.count("gradient_accumulation_steps", 1)
    samples = _samples(top, gpus)
    divided(samples, data * shards, "samples (data × fsdp)", "per_device_batch_size")
    zero = 3 if shards * context > 1 else 1 if top.flag("shard_optimizer_over_data") else 0
    sequential = top.given("ici_tensor_sequence_parallelism") or 1
    stated = {"framework": COMPILED}
    name = top.word("opt_type", "adamw")
    stated.update(optimizer_of("adam" if name == "adam_pax" else name, "opt_type", notes))
    narrow = top.word("mu_dtype", "") == "bfloat16"
    if top.word("weight_dtype", "float32") == "bfloat16":
        stated["state"] = CAPTURED
    elif narrow:
        stated["state"] = "32:16:32"
    parallelism = Parallelism(
        replicas=data if zero != 1 else 1,
        shards=shards if zero != 1 else data,
        tensor=tensor,
        sequence=sequential != 1,
        zero=zero,
        recompute=_recomputed(top, notes),
        micro_batches=steps,
        expert=expert,
        context=context,
        context_form=_FORMS[form],
    )
    left_out, named = list(_left_out(top)), _named(top)
    if top.word("quantization", "") in precisions.MAXTEXT:
        stated[precisions.PRECISION] = precisions.MAXTEXT[top.word("quantization", "")]
    return Configuration(
        trainer=NAME,
        parallelism=parallelism,
        batch=samples * steps,
        sequence_length=top.count("max_target_length", 2048),
        unread=[*notes, *_unread(top)],
        stated=stated,
        left_out=left_out,
        named=named,
    )


def _degrees(top: Section, gpus: int, notes: list[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the degrees inside a node and across nodes, by kind."""
    for kind in _OTHERS:
        for level in ("ici", "dcn"):
            key = f"{level}_{kind}_parallelism"
            degree = top.count(key, 1, least=-1)
            only_one(LARGEST if degree < 0 else degree, key)
    top.ignore("ici_autoregressive_parallelism", "dcn_autoregressive_parallelism")
    inside = {kind: _degree(top, "ici", kind, -1 if kind == _FSDP else 1) for kind in _KINDS}
    across = {kind: _degree(top, "dcn", kind, -1 if kind == _DATA else 1) for kind in _KINDS}
    known = [prod(one for one in level.values() if one > 0) for level in (inside, across)]
    is_open = [min(level.values()) < 0 for level in (inside, across)]
    if all(is_open):
        node = min(NODE, gpus)
        if gpus > NODE:
            notes.append(f"ici_ and dcn_ degrees of -1: read as nodes of {NODE} GPUs")
    else:
        node = known[0] if is_open[1] else divided(gpus, known[1], "GPUs (dcn)", "dcn_")
    nodes = divided(gpus, node, "GPUs (nodes)", "ici_fsdp_parallelism")
    return _filled(inside, node, "ici"), _filled(across, nodes, "dcn")


def _degree(top: Section, level: str, kind: str, default: int) -> int:
    key = f"{level}_{kind}_parallelism"
    degree = top.count(key, default, least=-1)
    if degree == 0:
        raise BadInput("got 0", field=key, expected="-1 or from 1")
    return degree


def _filled(degrees: Mapping[str, int], devices: int, level: str) -> dict[str, int]:
    """Returns degrees by what they stand for; the one of -1 takes the devices that are left."""
    given = prod(one for one in degrees.values() if one > 0)
    found = dict.fromkeys(_KINDS.values(), 1)
    for name, degree in degrees.items():
        if degree < 0:
            degree = divided(devices, given, "GPUs", f"{level}_{name}_parallelism")
        found[_KINDS[name]] *= degree
    if prod(found.values()) != devices:
        what = "inside a node" if level == "ici" else "nodes"
        raise BadInput(
            f"the degrees {level}_… make up {prod(found.values())}",
            field=f"{level}_{_FSDP}_parallelism",
            expected=f"{devices} {what}, or -1 for one of them",
        )
    return found


def _samples(top: Section, gpus: int) -> int:
    """Returns the samples of a micro-batch over all GPUs; a GPU may have a part of one."""
    each = top.given("per_device_batch_size")
    each = 12.0 if each is None else each
    if isinstance(each, bool) or not isinstance(each, int | float) or not 0 < each <= LARGEST:
        raise BadInput(f"got {each!r:.40}", field="per_device_batch_size", expected="a number")
    samples = each * gpus
    if samples != int(samples):
        raise BadInput(
            f"{each} on {gpus} GPUs are no whole number of samples",
            field="per_device_batch_size",
            expected="a product with the GPUs that is a whole number",
        )
    return int(samples)


def _recomputed(top: Section, notes: list[str]) -> Recomputed:
    policy = top.word("remat_policy", "full", (*_POLICIES, *_OTHER_POLICIES))
    if policy in _POLICIES:
        return _POLICIES[policy]
    notes.append(f"remat_policy {policy}: read as all of a layer but its products by weights")
    return "selective"


def _left_out(top: Section) -> Iterator[str]:
    """Yields what changes memory or time, and as what it is priced."""
    if "offload" in top.word("remat_policy", "full"):
        yield "remat_policy: priced with kept activations on the GPU"
    for key in ("optimizer_memory_host_offload", "parameter_memory_host_offload"):
        if top.flag(key):
            yield f"{key}: {ON_GPU}"
    if top.word("quantization", "") not in ("", *precisions.MAXTEXT):
        yield f"quantization: {precisions.OTHER}"


def _named(top: Section) -> NamedModel:
    """Returns the model by its name; without one, the Llama that base.yml describes."""
    name = top.word("model_name", "default")
    scale = top.count("global_parameter_scale", 1)
    fields: dict[str, int | bool] = {
        ours: top.count(key, default) for ours, (key, default) in _LLAMA.items()
    }
    fields["tie_word_embeddings"] = top.flag("logits_via_embedding")
    if name != "default":
        return NamedModel(name)
    block = top.word("decoder_block", "llama2")
    if block not in ("llama2", "mistral") or scale != 1:
        return NamedModel(missing=f"a decoder_block that is built here, got {block[:40]!r}")
    return NamedModel(config="LlamaConfig", fields=fields)


def _unread(top: Section) -> Iterator[str]:
    """Yields the keys that were not read and bear on the step; the others are one line."""
    others = 0
    for path in top.unread():
        if any(word in path for word in _BEARING):
            yield path
        else:
            others += 1
    if others:
        keys = "key" if others == 1 else "keys"
        yield f"{others} {keys} of data, learning rate, logging, kernels and checkpoints"
