"""Reading the configuration that somebody has: which trainer it is for, and what it says."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.files import read_bounded
from shardwise.trainers import (
    accelerate_read,
    deepspeed,
    finetuning,
    maxtext_read,
    megatron_forms,
    megatron_read,
    nanotron,
    torchtitan_read,
    torchtitan_registry,
)
from shardwise.trainers.configuration import LARGEST, Configuration, bounded
from shardwise.trainers.interpolation import resolved
from shardwise.trainers.job import canonical
from shardwise.trainers.json_text import read_json
from shardwise.yaml_reader import read_yaml

LARGEST_BYTES = 2**20
_YAML_FLAG = re.compile(r"--[\w-]+:(\s|$)")
_COMMAND = re.compile(
    r"(?m)^\s*(?:(?:srun|torchrun|python3?|deepspeed|accelerate|bash)\s+\S|[A-Z_]+=\S)"
)
_LONG_KEY = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){16}[\w\"'-]")
_TABLE = re.compile(r"(?m)^[ \t]*+\[{1,2}[\w\"'][\w.\"'-]*+\]{1,2}[ \t]*+(?:#.*)?\r?$")
_ASSIGNED = re.compile(r"(?m)^[ \t]*+[\w.\"'-]++[ \t]*+=")
"""What TOML has and YAML does not: the head of a table, and a value."""

KINDS = (
    "torchtitan TOML or launches, Megatron flags, JSON of DeepSpeed or PEFT, or YAML of "
    "accelerate, nanotron, NeMo, Megatron-Bridge, Primus, MaxText, axolotl or LLaMA-Factory"
)
_DEEPSPEED = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu")
_NEOX = tuple(f"{kind}{mark}parallel{mark}size" for kind in ("pipe", "model") for mark in "_-")
_NAMED_FILE = re.compile(
    r"(--(?:job\.config[-_]file|config[-_]file|deepspeed(?:_config)?))[ =]+[\"']?([^\s\"']{1,200})"
)
"""A flag by which a launch names the file that says how it trains."""

Document = Mapping[str, Any]


class Form(NamedTuple):
    """A file that is read: which documents are one, and what they say, their text at hand."""

    name: str
    is_one: Callable[[Document], bool]
    read: Callable[[Document, int, str], Configuration]


def _of_document(
    read: Callable[[Document, int], Configuration],
) -> Callable[[Document, int, str], Configuration]:
    """Returns a reader that needs no text."""
    return lambda document, gpus, text: read(document, gpus)


def _has(*paths: str) -> Callable[[Document], bool]:
    """Returns whether a document has one of the paths, such as `train.micro_batch_size`."""

    def is_one(document: Document) -> bool:
        return any(_at(document, path) is not None for path in paths)

    return is_one


def _at(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


_FORMS = (
    Form("accelerate", _has("distributed_type", "compute_environment"), accelerate_read.read),
    Form("nanotron", _has("parallelism.dp", "parallelism.tp"), _of_document(nanotron.read)),
    Form(
        "Megatron's test recipes",
        megatron_forms.is_recipe,
        _of_document(megatron_forms.read_recipe),
    ),
    Form("Primus", megatron_forms.is_primus, _of_document(megatron_forms.read_primus)),
    Form("NeMo", megatron_forms.is_nemo, _of_document(megatron_forms.read_nemo)),
    Form("Megatron-Bridge", megatron_forms.is_bridge, _of_document(megatron_forms.read_bridge)),
    Form("MaxText", maxtext_read.is_one, _of_document(maxtext_read.read)),
    Form("axolotl", finetuning.is_axolotl, _of_document(finetuning.read_axolotl)),
    Form("LLaMA-Factory", finetuning.is_factory, _of_document(finetuning.read_factory)),
    Form("PEFT", finetuning.is_peft, _of_document(finetuning.read_peft)),
    Form(
        "DeepSpeed",
        lambda document: _has(*_DEEPSPEED)(document) and not _has(*_NEOX)(document),
        _of_document(deepspeed.read),
    ),
    Form("torchtitan", torchtitan_read.is_titan, _of_document(torchtitan_read.read)),
)
"""What is read, those with the most particular keys first."""

_OTHERS: Mapping[str, Callable[[Document], bool]] = {
    "ArcticTraining": _has("deepspeed.zero_optimization", "model.name_or_path"),
    "llm-foundry": _has("fsdp_config.sharding_strategy", "device_train_microbatch_size"),
    "OLMo": _has("device_train_microbatch_size", "fsdp.sharding_strategy"),
    "KempnerForge": _has("distributed.dp_shard", "distributed.tp", "distributed.pp"),
    "LLaMA-Factory v1": _has("dist_config.name", "model_class"),
    "litgpt": _has("train.global_batch_size", "train.micro_batch_size"),
    "GPT-NeoX": _has(*_NEOX),
    "torchtune": _has("model._component_", "tokenizer._component_"),
    "transformers' Trainer or TRL": _has("per_device_train_batch_size"),
    "NeMo 2": _has("trainer.strategy.tensor_model_parallel_size"),
    "NeMo AutoModel": _has("distributed._target_", "step_scheduler.local_batch_size"),
    "NeMo RL": _has("policy.train_micro_batch_size"),
    "verl": _has("actor_rollout_ref.actor", "trainer.n_gpus_per_node"),
    "PyTorch Lightning": _has("trainer.num_nodes", "trainer.devices"),
}
"""Programs whose files are not read, by keys that they have."""


def read_configuration(path: str | os.PathLike[str], gpus: int) -> Configuration:
    """Returns what a trainer's file says of a step on `gpus` GPUs.

    The trainer is recognised by what the file contains. Raises `BadInput` naming the file and
    field: for a file of no trainer, of more than a mebibyte or with misspelt keys, for degrees that
    do not make up `gpus`, for context and expert parallelism, and for pipelines of DeepSpeed and
    nanotron, and such as are not of equal layers, one stage a device.
    """
    return configuration_of(configuration_text(path), gpus, os.fspath(path), here=True)


def configuration_text(path: str | os.PathLike[str], most: int = LARGEST_BYTES) -> str:
    """Returns the text of a trainer's file of at most `most` bytes; raises `BadInput`."""
    data = read_bounded(path, KINDS, most)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput("not text in UTF-8", file=os.fspath(path), expected=KINDS) from None


def configuration_of(text: str, gpus: int, file: str, *, here: bool = False) -> Configuration:
    """Returns what a trainer's text says, as `read_configuration` does; errors name `file`.

    `here`: the text is of this machine's user, so that torchtitan may be asked about it.
    Texts are not bounded here, and some of 64 KiB take a parser most of a minute.
    """
    if not 1 <= gpus <= LARGEST:
        raise BadInput(f"got {gpus}", field="gpus", expected=f"1 to {LARGEST}")
    try:
        configuration = _read(text, gpus, file, here)
    except BadInput as error:
        raise error.in_file(file) from None
    p = canonical(configuration.parallelism)
    stages = configuration.stages
    if p.gpus * stages != gpus:
        piped = f" × stages {stages}" if stages > 1 else ""
        raise BadInput(
            f"the degrees make up {p.gpus * stages} GPUs (replicas {p.replicas} × shards "
            f"{p.shards} × tensor {p.tensor}{_context(p)}{piped})",
            file=file,
            field="gpus",
            expected=f"{gpus}, as asked",
        )
    return replace(
        configuration,
        parallelism=p,
        unread=bounded(configuration.unread),
        left_out=bounded(configuration.left_out),
    )


def _context(p: Parallelism) -> str:
    return f" × context {p.context}" if p.context > 1 else ""


def _read(text: str, gpus: int, file: str, here: bool) -> Configuration:
    text = text.removeprefix("\ufeff")
    document: Any = read_json(text, KINDS)
    broken = ""
    if document is None:
        document, broken = _toml(text)
    if document is None and torchtitan_registry.IN_PYTHON.search(text):
        raise torchtitan_registry.refused_source()
    if document is None and torchtitan_registry.is_launch(text):
        if not here:
            raise torchtitan_registry.refused_elsewhere()
        return torchtitan_registry.read(text, gpus)
    if document is None and not _is_script(text):
        if _TABLE.search(text) and _ASSIGNED.search(text):
            raise BadInput(f"broken TOML: {broken}", expected=KINDS)
        document = read_yaml(text, file=file, expected="a trainer's file")
    if isinstance(document, Mapping):
        return _of_mapping(document, gpus, text)
    if isinstance(document, list) and all(isinstance(one, str | int | float) for one in document):
        text = shlex.join(map(str, document))
    if megatron_read.MARKS.search(text):
        return megatron_read.read(text, gpus)
    named = _NAMED_FILE.search(text)
    if named is not None:
        raise BadInput(
            f"a launch with {named[1]} {named[2][:60]}",
            expected="that file, with what the launch says besides written into it",
        )
    raise BadInput(
        "a launch script of a program that is not read: it has none of Megatron's required flags, "
        "such as --micro-batch-size"
        if "--" in text
        else "not a trainer's configuration",
        expected=KINDS,
    )


def _is_script(text: str) -> bool:
    """Returns whether a text is a shell script or a list of flags, and no YAML."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    plain = [line for line in lines if not line.startswith("#")]
    return (
        text.startswith("#!")
        or any(
            line.startswith("--") and not line.startswith("---") and not _YAML_FLAG.match(line)
            for line in plain
        )
        or bool(_COMMAND.search(text))
    )


def _of_mapping(document: Document, gpus: int, text: str) -> Configuration:
    """Returns what a mapping says, by the members that only one trainer has."""
    document = resolved(document)
    for form in _FORMS:
        if form.is_one(document):
            return form.read(document, gpus, text)
    if "model_type" in document:
        raise BadInput(
            "the configuration of a model, not of a trainer",
            expected="shardwise capture hf:FILE for the model, and its trainer's file here",
        )
    other = next((name for name, is_one in _OTHERS.items() if is_one(document)), None)
    looks = "" if other is None else f": it looks like {other}'s, which is not read"
    raise BadInput(f"not a configuration of a trainer that is read{looks}", expected=KINDS)


def _toml(text: str) -> tuple[dict[str, Any] | None, str]:
    """Returns the document of a TOML text, or None and what is wrong with it."""
    if _LONG_KEY.search(text):  # a parser takes time in its square
        raise BadInput("a name with more than 16 parts", expected=KINDS)
    try:
        return tomllib.loads(text), ""
    except (ValueError, RecursionError) as error:  # ValueError: thousands of digits, or no TOML
        return None, f"{error!s:.80}"
