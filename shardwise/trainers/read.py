"""Reading the configuration that somebody has: which trainer it is for, and what it says."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from shardwise.errors import BadInput
from shardwise.files import read_bounded
from shardwise.trainers import accelerate, deepspeed, megatron, nanotron, torchtitan
from shardwise.trainers.configuration import LARGEST, MOST_UNREAD, Configuration
from shardwise.trainers.job import canonical
from shardwise.yaml_reader import read_yaml

LARGEST_BYTES = 2**20
_LONG_KEY = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){16}[\w\"'-]")
KINDS = "torchtitan TOML, Megatron flags, DeepSpeed JSON, accelerate YAML or nanotron YAML"
_DEEPSPEED = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu")
_TORCHTITAN = ("parallelism", "training", "job", "activation_checkpoint", "model")
_MEGATRON = (
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--micro-batch-size",
    "--global-batch-size",
    "--num-layers",
)


def read_configuration(path: str | os.PathLike[str], gpus: int) -> Configuration:
    """Returns what a trainer's file says of a step on `gpus` GPUs.

    The trainer is recognised by what the file contains. Raises `BadInput` naming the file and
    field: for a file of no trainer, of more than a mebibyte or with misspelt keys, for degrees that
    do not make up `gpus`, for context and expert parallelism, and for pipelines of DeepSpeed and
    nanotron, and such as are not of equal layers, one stage a device.
    """
    return configuration_of(configuration_text(path), gpus, os.fspath(path))


def configuration_text(path: str | os.PathLike[str], most: int = LARGEST_BYTES) -> str:
    """Returns the text of a trainer's file of at most `most` bytes; raises `BadInput`."""
    data = read_bounded(path, KINDS, most)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput("not text in UTF-8", file=os.fspath(path), expected=KINDS) from None


def configuration_of(text: str, gpus: int, file: str) -> Configuration:
    """Returns what a trainer's text says, as `read_configuration` does; errors name `file`.

    Texts are not bounded here, and some of 64 KiB take a parser most of a minute.
    """
    if not 1 <= gpus <= LARGEST:
        raise BadInput(f"got {gpus}", field="gpus", expected=f"1 to {LARGEST}")
    try:
        configuration = _read(text, gpus, file)
    except BadInput as error:
        raise error.in_file(file) from None
    p = canonical(configuration.parallelism)
    stages = configuration.stages
    if p.gpus * stages != gpus:
        piped = f" × stages {stages}" if stages > 1 else ""
        raise BadInput(
            f"the degrees make up {p.gpus * stages} GPUs (replicas {p.replicas} × shards "
            f"{p.shards} × tensor {p.tensor}{piped})",
            file=file,
            field="gpus",
            expected=f"{gpus}, as asked",
        )
    return replace(configuration, parallelism=p, unread=configuration.unread[:MOST_UNREAD])


def _read(text: str, gpus: int, file: str) -> Configuration:
    if any(flag in text.replace("_", "-") for flag in _MEGATRON):
        return megatron.read(text, gpus)
    for document in (_json(text), _toml(text)):
        if document is not None:
            return _of_mapping(document, gpus, text)
    document = read_yaml(text, file=file, expected="a trainer's file")
    if not isinstance(document, Mapping):
        raise BadInput("not a trainer's configuration", expected=KINDS)
    return _of_mapping(document, gpus, text)


def _of_mapping(document: Mapping[str, Any], gpus: int, text: str) -> Configuration:
    """Returns what a mapping says, by the members that only one trainer has."""
    parallelism = document.get("parallelism")
    if "distributed_type" in document or "compute_environment" in document:
        return accelerate.read(document, gpus, text)
    if isinstance(parallelism, Mapping) and {"dp", "tp"} & set(parallelism):
        return nanotron.read(document, gpus)
    if any(key in document for key in _DEEPSPEED):
        return deepspeed.read(document, gpus)
    if any(isinstance(document.get(key), Mapping) for key in _TORCHTITAN):
        return torchtitan.read(document, gpus)
    raise BadInput("not a trainer's configuration", expected=KINDS)


def _json(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput(f"broken JSON: {error!s:.80}", expected=KINDS) from None


def _toml(text: str) -> dict[str, Any] | None:
    if _LONG_KEY.search(text):  # a parser takes time in its square
        raise BadInput("a name with more than 16 parts", expected=KINDS)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):  # ValueError: thousands of digits, or no TOML
        return None
