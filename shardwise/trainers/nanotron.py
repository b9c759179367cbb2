"""nanotron: its YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.cost.step_settings import FLOAT32
from shardwise.documents import Plan
from shardwise.documents.model_facts import ModelFacts
from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.trainers.configuration import Configuration, NamedModel, Section
from shardwise.trainers.job import Job, Limits, Written, job_of
from shardwise.trainers.model_sizes import HEADS, HIDDEN, LAYERS
from shardwise.trainers.stated import optimizer_of
from shardwise.trainers.yaml_text import yaml_text

NAME = "nanotron"
FILENAME = "nanotron.yaml"
LIMITS = Limits(zero=(0, 1))

KEYS = (
    "dp",
    "pp",
    "tp",
    "pp_engine",
    "tp_mode",
    "tp_linear_async_communication",
    "recompute_layer",
    "moe_layer_recompute",
    "tp_recompute_allgather",
    "expert_parallel_size",
    "context_parallel_size",
)
"""What the section `parallelism` may have."""

_IGNORED = (
    "general",
    "checkpoints",
    "logging",
    "metrics_logging",
    "tokenizer",
    "data_stages",
    "data",
    "profiler",
    "lighteval",
    "s3_upload",
)
_SIZES = {LAYERS: "num_hidden_layers", HIDDEN: "hidden_size", HEADS: "num_attention_heads"}
_LLAMA = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
_LEARNING_RATE, _LEAST_LEARNING_RATE = 3e-4, 3e-5
_STEPS = 1000


def write(plan: Plan) -> Written:
    """Returns the YAML of a plan. Raises as `job_of` does."""
    job = job_of(plan, NAME, LIMITS)
    head = f"# {job.torchrun()} run_train.py --config-file {FILENAME}\n"
    return Written(head + yaml_text(_document(job)), [*job.unsaid, *_unsaid(job)])


def read(document: Mapping[str, Any], gpus: int) -> Configuration:
    """Returns what a file says. Raises `BadInput` naming a field that cannot be read."""
    top = Section(document)
    top.ignore(*_IGNORED)
    parallelism = top.section("parallelism", KEYS)
    for key in document.get("parallelism") or ():
        if key not in KEYS:
            raise BadInput(
                "nanotron has no such degree",
                field=parallelism.path(str(key)[:60]),
                expected=", ".join(key for key in KEYS if key.endswith(("p", "size"))),
            )
    parallelism.one("pp", "expert_parallel_size", "context_parallel_size")
    tensor = parallelism.count("tp", 1)
    data = parallelism.count("dp", 1)
    if data * tensor != gpus:
        raise BadInput(
            f"dp {data} × tp {tensor} on {gpus} GPUs",
            field="parallelism.dp",
            expected=f"dp × tp = {gpus}",
        )
    mode = parallelism.word("tp_mode", "ALL_REDUCE").upper()
    if mode not in ("ALL_REDUCE", "REDUCE_SCATTER"):
        raise BadInput(
            f"got {mode[:40]!r}",
            field="parallelism.tp_mode",
            expected="ALL_REDUCE or REDUCE_SCATTER",
        )
    recompute = parallelism.flag("recompute_layer")
    parallelism.ignore("pp_engine", "tp_linear_async_communication")
    zero = top.section("optimizer").count("zero_stage", 0, least=0, most=1)
    notes: list[str] = []
    stated = _stated(top.section("optimizer"), notes)
    tokens = top.section("tokens")
    micro_batches = tokens.count("batch_accumulation_per_replica", 1)
    samples = tokens.maybe_count("micro_batch_size")
    tokens.ignore_all()
    sizes = top.section("model").section("model_config")
    model = {name: sizes.maybe_count(key) for name, key in _SIZES.items()}
    named = _named(sizes)
    top.section("model").ignore_all()
    sizes.ignore_all()
    return Configuration(
        trainer=NAME,
        parallelism=Parallelism(
            shards=data,
            tensor=tensor,
            sequence=mode == "REDUCE_SCATTER",
            zero=zero,
            recompute="full" if recompute else "none",
            micro_batches=micro_batches,
        ),
        batch=None if samples is None else samples * micro_batches * data,
        sequence_length=tokens.maybe_count("sequence_length"),
        unread=[*notes, *top.unread()],
        stated=stated,
        model={name: size for name, size in model.items() if size is not None},
        named=named,
    )


def _named(sizes: Section) -> NamedModel:
    """Returns the Llama or Qwen that `model_config` describes, in the names of transformers."""
    given = {key: sizes.maybe_count(key) for key in _LLAMA}
    missing = [key for key, size in given.items() if size is None]
    fields: dict[str, int | bool] = {key: size for key, size in given.items() if size is not None}
    fields["tie_word_embeddings"] = sizes.flag("tie_word_embeddings")
    if len(missing) == len(_LLAMA):
        return NamedModel()
    if sizes.has("moe_config"):
        return NamedModel(missing="a model without moe_config, which is not built here")
    lacks = ", ".join(sizes.path(key) for key in missing)
    config = "Qwen2Config" if sizes.flag("is_qwen2_config") else "LlamaConfig"
    return NamedModel(config=config, fields=fields, missing=lacks)


def _stated(optimizer: Section, notes: list[str]) -> dict[str, str]:
    """Returns the options that the optimizer's section states."""
    stated = {"gradients": FLOAT32} if optimizer.flag("accumulate_grad_in_fp32") else {}
    factory = optimizer.section("optimizer_factory")
    if factory.has("name"):
        name = factory.word("name", "adamW")
        stated.update(optimizer_of(name, "optimizer.optimizer_factory.name", notes))
    factory.ignore_all()
    optimizer.ignore_all()
    return stated


def _document(job: Job) -> dict[str, Any]:
    p = job.parallelism
    document: dict[str, Any] = {
        "general": {"project": "shardwise", "run": "planned", "seed": 42},
        "parallelism": {
            "dp": p.data,
            "pp": 1,
            "tp": p.tensor,
            "tp_mode": "REDUCE_SCATTER" if p.sequence else "ALL_REDUCE",
            "tp_linear_async_communication": p.sequence,
            "recompute_layer": p.recompute == "full",
        },
        "model": {
            "dtype": job.dtype,
            "init_method": {"std": 0.02},
            "make_vocab_size_divisible_by": 1,
            "model_config": _model(job),
        },
        "optimizer": _optimizer(job),
        "tokens": {
            "sequence_length": job.sequence_length or 1,
            "train_steps": _STEPS,
            "micro_batch_size": job.samples,
            "batch_accumulation_per_replica": p.micro_batches,
        },
    }
    return document


def _model(job: Job) -> dict[str, Any]:
    """Returns the sizes of a Llama, those of nanotron's default where the model is another one."""
    facts = job.facts
    if facts is None or list(_unlike_llama(facts)):
        return {"is_llama_config": True}
    rows = job.model.positions if job.model else 0
    known = {
        "num_hidden_layers": facts.layers,
        "hidden_size": facts.hidden,
        "intermediate_size": facts.feed_forward,
        "num_attention_heads": facts.heads,
        "num_key_value_heads": facts.key_value_heads,
        "vocab_size": facts.vocabulary,
        "max_position_embeddings": max(rows, job.sequence_length or 1),
        "rms_norm_eps": facts.norm_epsilon,
        "rope_theta": facts.rotary_base,
        "tie_word_embeddings": facts.tied,
    }
    sizes = {name: value for name, value in known.items() if value is not None}
    return {"is_llama_config": True, **sizes}


def _unlike_llama(facts: ModelFacts) -> Iterator[str]:
    """Yields in what a model is none that nanotron's LlamaConfig says."""
    differ = {
        "its norms": facts.norm != "RMSNorm" or facts.query_key_norm,
        "its biases": facts.bias is not False or facts.qkv_bias is not False,
        "its feed-forward layers": not (facts.gated and facts.activation == "silu"),
        "its positions": facts.positions != "rotary" or facts.rotary_share != 1.0,
        "its dropout": facts.dropout != 0.0 or facts.attention_dropout != 0.0,
        "its blocks": facts.parallel or facts.causal is False,
        "the size of its heads": (facts.heads or 0) * (facts.head_size or 0) != facts.hidden,
    }
    yield from (what for what, is_so in differ.items() if is_so)


def _optimizer(job: Job) -> dict[str, Any]:
    factory: dict[str, Any] = {
        "name": "adamW",
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "adam_eps": 1e-8,
        "torch_adam_is_fused": True,
    }
    if job.optimizer != "adam":
        factory = {"name": "sgd"}
    return {
        "zero_stage": job.parallelism.zero,
        "weight_decay": 0.01,
        "clip_grad": 1.0,
        "accumulate_grad_in_fp32": job.wide_gradients,
        "optimizer_factory": factory,
        "learning_rate_scheduler": {
            "learning_rate": _LEARNING_RATE,
            "lr_warmup_steps": 100,
            "lr_warmup_style": "linear",
            "lr_decay_style": "cosine",
            "min_decay_lr": _LEAST_LEARNING_RATE,
        },
    }


def _unsaid(job: Job) -> list[str]:
    unsaid = ["Data, tokenizer and checkpoints: nanotron's file has to name them."]
    unlike = ["its sizes"] if job.facts is None else list(_unlike_llama(job.facts))
    if unlike:
        unsaid.append(
            f"The model: nanotron's Llama cannot say {', '.join(unlike)} of {job.name[:60]!r}; "
            "fill in model.model_config."
        )
    elif job.facts is not None and job.facts.rotary_base is None:
        unsaid.append("The base of the rotation: the graph does not show it; set rope_theta.")
    if job.optimizer == "momentum":
        unsaid.append("The optimizer: nanotron's SGD has no momentum, the plan counts it.")
    if job.kernels != "eager":
        unsaid.append(f"Kernels: the plan counts on {job.kernels} ones; nanotron chooses its own.")
    return unsaid
