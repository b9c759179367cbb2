"""Adapters in the files of axolotl and LLaMA-Factory, as the option `tune` says them."""

from __future__ import annotations

import re

from shardwise.errors import BadInput
from shardwise.graph.tuning import ALL_LINEAR, FULL, LORA, LORA_8BIT, QLORA
from shardwise.trainers.configuration import Section

_NAMES = re.compile(r"[A-Za-z0-9_.*]+")
_PEFT = "the names of linear layers, or all-linear"
_OTHERS = "what other adapters and frozen parts take is not priced"
_METHODS = f"full, lora or qlora: {_OTHERS}"


def axolotl_tuning(top: Section, left_out: list[str]) -> str:
    """Returns what axolotl's file trains; adds what is priced without.

    Raises `BadInput` for other adapters, and for an adapter without rank or layers.
    """
    kind = top.word("adapter", "") or FULL
    four, eight = top.flag("load_in_4bit"), top.flag("load_in_8bit")
    if kind in (FULL, "none"):
        _refuse_bits(top, "load_in_4bit", "load_in_8bit")
        return FULL
    if kind not in (LORA, QLORA):
        raise BadInput(f"got {kind[:40]!r}", field="adapter", expected=_METHODS)
    # axolotl's qlora refuses load_in_8bit, and loads 4 bits where the file says so.
    bits = 4 if four else 8 if eight else 16
    every = top.flag("lora_target_linear")
    given = top.given("lora_target_modules")
    if not every and not given:
        raise BadInput("not given", field="lora_target_modules", expected=_PEFT)
    rank = top.maybe_count("lora_r")
    if rank is None:
        raise BadInput("not given", field="lora_r", expected="the rank of the adapters")
    top.ignore("lora_alpha", "lora_model_dir", "lora_fan_in_fan_out", "lora_target_linear")
    _leave_out(
        top,
        left_out,
        ("lora_dropout", "lora_target_parameters", "lora_modules_to_save", "peft_use_dora",
         "lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "peft_layers_to_transform"),
    )  # fmt: skip
    return _text(bits, rank, ALL_LINEAR if every else _targets(given, "lora_target_modules"))


def factory_tuning(top: Section, left_out: list[str]) -> str:
    """Returns what LLaMA-Factory's file trains; adds what is priced without.

    Raises `BadInput` for other methods than `full` and `lora`.
    """
    kind = top.word("finetuning_type", LORA)
    if kind == FULL:
        _refuse_bits(top, "quantization_bit")
        return FULL
    if kind != LORA:
        raise BadInput(f"got {kind[:40]!r}", field="finetuning_type", expected=_METHODS)
    bits = top.maybe_count("quantization_bit") or 16
    if bits not in (4, 8, 16):
        raise BadInput(f"got {bits}", field="quantization_bit", expected="4 or 8")
    targets = top.given("lora_target") or "all"
    rank = top.count("lora_rank", 8)
    top.ignore("lora_alpha", "quantization_method", "double_quantization", "quantization_type")
    _leave_out(top, left_out, ("lora_dropout", "additional_target", "use_dora", "pissa_init"))
    return _text(bits, rank, _targets(targets, "lora_target"))


def peft_tuning(top: Section, left_out: list[str]) -> str:
    """Returns what PEFT's adapter_config.json trains; adds what is priced without.

    Raises `BadInput` for other adapters than LoRA, and without rank or layers.
    """
    kind = top.word("peft_type", "")
    if kind.upper() != LORA.upper():
        raise BadInput(f"got {kind[:40]!r}", field="peft_type", expected="LORA; " + _OTHERS)
    rank, targets = top.maybe_count("r"), top.given("target_modules")
    if rank is None:
        raise BadInput("not given", field="r", expected="the rank of the adapters")
    if not targets:
        raise BadInput("not given", field="target_modules", expected=_PEFT)
    if top.word("bias", "none") != "none":
        left_out.append("bias: priced without it")
    _leave_out(
        top,
        left_out,
        ("lora_dropout", "modules_to_save", "layers_to_transform", "rank_pattern", "use_dora",
         "target_parameters", "trainable_token_indices", "loftq_config", "layer_replication"),
    )  # fmt: skip
    return _text(16, rank, _targets(targets, "target_modules"))


def _text(bits: int, rank: int, targets: str) -> str:
    kind = {4: QLORA, 8: LORA_8BIT, 16: LORA}[bits]
    return f"{kind}:{rank}:{targets}"


def _targets(given: object, field: str) -> str:
    names = given if isinstance(given, list) else str(given).split(",")
    plain = [str(name).strip() for name in names]
    if plain in (["all"], [ALL_LINEAR]):
        return ALL_LINEAR
    for name in plain:
        if not _NAMES.fullmatch(name):
            raise BadInput(f"got {name[:60]!r}", field=field, expected=_PEFT)
    return ",".join(plain)


def _refuse_bits(top: Section, *keys: str) -> None:
    for key in keys:
        if top.given(key) not in (None, False, "false"):
            raise BadInput(
                "weights in few bits are not trained", field=key, expected="an adapter beside them"
            )


def _leave_out(top: Section, left_out: list[str], keys: tuple[str, ...]) -> None:
    left_out += [f"{key}: priced without it" for key in keys if top.given(key)]
