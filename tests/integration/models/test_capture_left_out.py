"""Presets that leave part of a published file out: the parts together have its parameters."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.capture.presets import presets

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

PUBLISHED = {
    "qwen3-next-80b-a3b": 81_324_862_720,
    "qwen3.5-9b": 9_653_104_368,
    "qwen3.5-27b": 27_781_427_952,
    "qwen3.5-35b-a3b": 35_951_822_704,
    "qwen3.5-122b-a10b": 125_086_497_008,
    "qwen3.5-397b-a17b": 403_397_928_944,
    "llama4-scout": 108_641_793_536,
    "llama4-maverick": 401_583_781_376,
    "ministral3-3b": 3_849_090_048,
    "gemma3-4b": 4_300_079_472,
    "gemma3-12b": 12_187_325_040,
    "gemma3-27b": 27_432_406_640,
    "glm-4.5": 358_337_791_296,
    "glm-4.5-air": 110_468_824_832,
}
"""Parameters of all tensors in the files of the repositories that the table names as sources.

A hub counts them (`safetensors.total`): with the vision model, the layer that predicts a second
token, and the biases of routers, which are buffers of transformers' models.
"""

SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "image_size": 896,
    "patch_size": 14,
    "vision_use_head": False,
}
LLAMA4 = {
    "hidden_size": 1408,
    "intermediate_size": 5632,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "vision_output_dim": 4096,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
}
"""Vision models as their config.json have them, where it is not the class's own default."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_left_out_makes_up_the_published_file(name: str) -> None:
    preset = presets()[name]
    config = getattr(transformers, preset.config)(**preset.fields)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
        images = vision(preset.config, config)
    biases = sum(b.numel() for key, b in model.named_buffers() if "correction_bias" in key)
    assert preset.parameters == parameters(model) + biases
    assert PUBLISHED[name] == preset.parameters + images + second_token(model, config)


def parameters(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


def vision(kind: str, text: Any) -> int:
    """Returns the parameters of the vision model and its projection onto the text's width."""
    one = {"text_config": {"hidden_size": text.hidden_size, "num_hidden_layers": 1}}
    if kind.startswith("Qwen3_5"):
        whole = transformers.Qwen3_5Config(
            vision_config={"out_hidden_size": text.hidden_size}, **one
        )
        return parameters(transformers.Qwen3_5ForConditionalGeneration(whole).model.visual)
    makers = {
        "Gemma3TextConfig": ("Gemma3", SIGLIP, {}),
        "Llama4TextConfig": ("Llama4", LLAMA4, {}),
        "Ministral3Config": ("Mistral3", None, {"model_type": "ministral3"}),
    }
    if kind not in makers:
        return 0
    family, fields, more = makers[kind]
    one["text_config"].update(more)
    given = one if fields is None else {**one, "vision_config": fields}
    made = getattr(transformers, f"{family}ForConditionalGeneration")(
        getattr(transformers, f"{family}Config")(**given)
    )
    text_parts = ("language_model", "lm_head")
    return sum(
        p.numel() for key, p in made.named_parameters() if not any(t in key for t in text_parts)
    )


def second_token(model: Any, config: Any) -> int:
    """Returns the parameters of the layer that predicts a second token, where a file has one.

    It is a layer with full attention, a projection of the state beside the token's embedding, and
    three norms; GLM's has its own table and head, Qwen's those of the model.
    """
    width = config.hidden_size
    last = model.model.layers[-1]
    joined = 2 * width * width + 3 * width + parameters(last)
    if type(config).__name__.startswith("Qwen"):
        assert hasattr(last, "self_attn")
        return joined
    if type(config).__name__ == "Glm4MoeConfig":
        return joined + config.n_routed_experts + 2 * config.vocab_size * width
    return 0
