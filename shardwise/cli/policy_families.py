"""The families of models that a policy is trained on and evaluated with: captured when needed, from
configurations alone, so that nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shardwise.capture.shipped import Recipe
from shardwise.errors import BadInput

if TYPE_CHECKING:
    from shardwise.policy.teaching import Family

FAMILIES: Mapping[str, Recipe] = {
    "mlp": Recipe("zoo:mlp:layers=8,hidden=4096,inputs=1024", batch=512),
    "vgg": Recipe("zoo:vgg16", batch=192),
    "resnet": Recipe("zoo:wide-resnet-50", batch=192),
    "unet": Recipe("zoo:unet:depth=3,image=256", batch=16),
    "dlrm": Recipe("zoo:dlrm:rows=100000", batch=8192),
    "transformer": Recipe("zoo:transformer:layers=2,hidden=1024", batch=256, seq=64),
    "gpt2": Recipe("hf:GPT2Config:n_layer=4", batch=64, seq=512),
    "bert": Recipe(
        "hf:BertConfig:hidden_size=1024,num_hidden_layers=4,num_attention_heads=16,"
        "intermediate_size=4096",
        batch=48,
        seq=256,
    ),
    "llama": Recipe(
        "hf:LlamaConfig:hidden_size=2048,intermediate_size=5504,num_hidden_layers=4,"
        "num_attention_heads=16,num_key_value_heads=4,vocab_size=32000",
        batch=32,
        seq=1024,
        dtype="bfloat16",
    ),
    "t5": Recipe("hf:T5Config:num_layers=2,num_decoder_layers=2", batch=64, seq=128),
    "vit": Recipe("hf:ViTConfig:num_hidden_layers=4", batch=192),
    "mobilenet": Recipe("timm:mobilenetv2_100", batch=192),
    "mixer": Recipe("timm:mixer_b16_224", batch=192),
    "convnext": Recipe("timm:convnext_atto", batch=192),
}
HELD_OUT = ("bert", "convnext", "unet", "vgg")


def training_names(chosen: Sequence[str], held_out: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the families to train on: those chosen (none: all), without those held
    out. Raises `BadInput` for an unknown one."""
    for name in held_out:
        _recipe(name, "held-out")
    return tuple(name for name in (chosen or FAMILIES) if name not in held_out)


def families(names: Sequence[str]) -> list[Family]:
    """Returns families with their graphs. Raises `BadInput` for an unknown one, `CaptureError`
    without the torch extra."""
    from shardwise.capture import capture
    from shardwise.policy.teaching import Family

    found = []
    for name in names:
        recipe = _recipe(name, "family")
        graph = capture(
            recipe.source, batch=recipe.batch, seq=recipe.seq, dtype=recipe.dtype, name=name
        )
        found.append(Family(name, graph))
    return found


def _recipe(name: str, field: str) -> Recipe:
    if name not in FAMILIES:
        raise BadInput(f"unknown family {name!r}", field=field, expected=", ".join(FAMILIES))
    return FAMILIES[name]
