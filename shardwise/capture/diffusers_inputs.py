"""The example inputs of diffusers' models, on the meta device, with their lengths and targets.

A step starts where autoencoder, text encoders and the scheduler's noise have done their part:
latents with noise, a timestep per sample, embeddings of the text, and the target, which is the
noise (or the velocity) that the model is to predict. A target has the channels of the model's
output; where that predicts variances too (DiT, PixArt), the channels of the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.errors import CaptureError

ADDED = ("text_embeds", "time_ids", "resolution", "aspect_ratio")
"""Inputs that models take in one dictionary, `added_cond_kwargs`."""

SAMPLE_SIZE = "sample_size"
"""The height and width of latents; an option also where the configuration has no such field."""

FRAMES = "frames"
"""The frames of a video's latents; an option, since configurations have none."""

_TIME_IDS = 6
"""Original size, crop and target size: height and width of each (Podell et al. 2023, §2.2)."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of one step: samples, text tokens, the sides of latents, dtype of real inputs, and
    of videos the frames of latents."""

    samples: int
    seq: int
    sides: tuple[int, int]
    dtype: Any
    frames: int = 1

    def real(self, *shape: int) -> Any:
        """Returns zeros of the parameters' dtype, per sample."""
        return _zeros((self.samples, *shape), self.dtype)

    def whole(self, *shape: int) -> Any:
        """Returns zeros of whole numbers, per sample."""
        import torch

        return _zeros((self.samples, *shape), torch.long)


Inputs = dict[str, Any]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """How one class of models is trained.

    `inputs` and `target` take the configuration and the sizes. `seq` is how many text tokens a
    sample has unless a user says otherwise, None without text; `side` the height and width of
    latents where the configuration does not say, `frames` those of a video's latents, None of
    images. `static` are further arguments of the model, which are no tensors.
    """

    inputs: Callable[[Config, Sizes], Inputs]
    target: Callable[[Config, Sizes], Any]
    seq: int | None
    side: int | tuple[int, int] = 64
    frames: int | None = None
    static: Callable[[Sizes], Mapping[str, int]] = lambda sizes: {}


def kind_of(name: str, config: Config) -> Kind | None:
    """Returns how models of a class are trained; None if that is not known."""
    if name == "Transformer2DModel":
        # What is published under this name are the patched transformers, which have names of
        # their own since; others are parts of a UNet.
        name = {"ada_norm_zero": "DiTTransformer2DModel", "ada_norm_single": "PixArt"}.get(
            config["norm_type"] if config.get("patch_size") else "", ""
        )
        name = "PixArtTransformer2DModel" if name == "PixArt" else name
    return KINDS.get(name)


def _unet(config: Config, sizes: Sizes) -> Inputs:
    return {
        "sample": _latents(config, sizes),
        "timestep": sizes.whole(),
        "encoder_hidden_states": sizes.real(sizes.seq, _text_width(config)),
        **_class_of_unet(config, sizes),
        **_added_to_unet(config, sizes),
    }


def _text_width(config: Config) -> int:
    projection = config["encoder_hid_dim_type"]
    if projection not in (None, "text_proj"):
        raise _unknown("encoder_hid_dim_type", projection, "none or text_proj")
    width = config["encoder_hid_dim"] or config["cross_attention_dim"]
    return int(width[0] if isinstance(width, list | tuple) else width)


def _class_of_unet(config: Config, sizes: Sizes) -> Inputs:
    kind = config["class_embed_type"]
    if kind == "timestep" or (kind is None and config["num_class_embeds"]):
        return {"class_labels": sizes.whole()}
    if kind in ("projection", "simple_projection"):
        return {"class_labels": sizes.real(config["projection_class_embeddings_input_dim"])}
    if kind is not None:
        raise _unknown("class_embed_type", kind, "timestep, projection or simple_projection")
    return {}


def _added_to_unet(config: Config, sizes: Sizes) -> Inputs:
    kind = config["addition_embed_type"]
    if kind in (None, "text"):
        return {}
    if kind != "text_time":
        raise _unknown("addition_embed_type", kind, "none, text or text_time")
    whole, each = config["projection_class_embeddings_input_dim"], config["addition_time_embed_dim"]
    if not (whole and each) or whole <= _TIME_IDS * each:
        raise CaptureError(
            f"{whole} leaves no room for a text's embedding beside {_TIME_IDS} numbers of {each}",
            field="projection_class_embeddings_input_dim",
            expected=f"more than {_TIME_IDS} · addition_time_embed_dim",
        )
    return {
        "text_embeds": sizes.real(whole - _TIME_IDS * each),
        "time_ids": sizes.real(_TIME_IDS),
    }


def _dit(config: Config, sizes: Sizes) -> Inputs:
    return {
        "hidden_states": _latents(config, sizes),
        "timestep": sizes.whole(),
        "class_labels": sizes.whole(),
    }


def _pixart(config: Config, sizes: Sizes) -> Inputs:
    more: Inputs = {}
    conditions = config["use_additional_conditions"]
    if conditions or (conditions is None and config[SAMPLE_SIZE] == 128):
        more = {"resolution": sizes.real(2), "aspect_ratio": sizes.real(1)}
    width = config["caption_channels"] or config["cross_attention_dim"]
    return {
        "hidden_states": _latents(config, sizes),
        "encoder_hidden_states": sizes.real(sizes.seq, width),
        "timestep": sizes.whole(),
        **more,
    }


def _sd3(config: Config, sizes: Sizes) -> Inputs:
    return {
        "hidden_states": _latents(config, sizes),
        "encoder_hidden_states": sizes.real(sizes.seq, config["joint_attention_dim"]),
        "pooled_projections": sizes.real(config["pooled_projection_dim"]),
        "timestep": sizes.whole(),
    }


def _flux(config: Config, sizes: Sizes) -> Inputs:
    """Returns packed latents: a token for each patch of 2 × 2."""
    tokens = _packed(sizes)
    guidance = {"guidance": sizes.real()} if config["guidance_embeds"] else {}
    axes = len(config["axes_dims_rope"])
    return {
        "hidden_states": sizes.real(tokens, config["in_channels"]),
        "encoder_hidden_states": sizes.real(sizes.seq, config["joint_attention_dim"]),
        "pooled_projections": sizes.real(config["pooled_projection_dim"]),
        "timestep": sizes.real(),
        "img_ids": _zeros((tokens, axes), sizes.dtype),
        "txt_ids": _zeros((sizes.seq, axes), sizes.dtype),
        **guidance,
    }


def _packed(sizes: Sizes) -> int:
    height, width = sizes.sides
    if height % 2 or width % 2:
        raise CaptureError(
            f"latents of {height} × {width} have no patches of 2 × 2",
            field=SAMPLE_SIZE,
            expected="an even number",
        )
    return height * width // 4


def _wan(config: Config, sizes: Sizes) -> Inputs:
    if config["image_dim"] or config["added_kv_proj_dim"]:
        raise _unknown("image_dim", config["image_dim"], "none: a model of texts alone")
    return {
        "hidden_states": _video(config, sizes),
        "timestep": sizes.whole(),
        "encoder_hidden_states": sizes.real(sizes.seq, config["text_dim"]),
    }


def _hunyuan_video(config: Config, sizes: Sizes) -> Inputs:
    if config["image_condition_type"] is not None:
        kind = config["image_condition_type"]
        raise _unknown("image_condition_type", kind, "none: a model of texts alone")
    guidance = {"guidance": sizes.real()} if config["guidance_embeds"] else {}
    return {
        "hidden_states": _video(config, sizes),
        "timestep": sizes.whole(),
        "encoder_hidden_states": sizes.real(sizes.seq, config["text_embed_dim"]),
        "encoder_attention_mask": sizes.whole(sizes.seq),
        "pooled_projections": sizes.real(config["pooled_projection_dim"]),
        **guidance,
    }


def _ltx(config: Config, sizes: Sizes) -> Inputs:
    """Returns packed latents: a token for each of them."""
    return {
        "hidden_states": sizes.real(_tokens(sizes), config["in_channels"]),
        "encoder_hidden_states": sizes.real(sizes.seq, config["caption_channels"]),
        "timestep": sizes.whole(),
        "encoder_attention_mask": sizes.whole(sizes.seq),
    }


def _mochi(config: Config, sizes: Sizes) -> Inputs:
    return {
        "hidden_states": _video(config, sizes),
        "encoder_hidden_states": sizes.real(sizes.seq, config["text_embed_dim"]),
        "timestep": sizes.whole(),
        "encoder_attention_mask": sizes.whole(sizes.seq),
    }


def _tokens(sizes: Sizes) -> int:
    return sizes.frames * sizes.sides[0] * sizes.sides[1]


def _video(config: Config, sizes: Sizes) -> Any:
    return sizes.real(config["in_channels"], sizes.frames, *sizes.sides)


def _video_target(config: Config, sizes: Sizes) -> Any:
    channels = config["out_channels"] or config["in_channels"]
    return sizes.real(channels, sizes.frames, *sizes.sides)


def _ltx_target(config: Config, sizes: Sizes) -> Any:
    return sizes.real(_tokens(sizes), config["out_channels"] or config["in_channels"])


def _extents(sizes: Sizes) -> Mapping[str, int]:
    height, width = sizes.sides
    return {"num_frames": sizes.frames, "height": height, "width": width}


def _latents(config: Config, sizes: Sizes) -> Any:
    return sizes.real(config["in_channels"], *sizes.sides)


def _noise(config: Config, sizes: Sizes) -> Any:
    inputs = config["in_channels"]
    outputs = config["out_channels"] or inputs
    return sizes.real(inputs if outputs == 2 * inputs else outputs, *sizes.sides)


def _packed_noise(config: Config, sizes: Sizes) -> Any:
    return sizes.real(_packed(sizes), config["out_channels"] or config["in_channels"])


def _unknown(key: str, value: Any, expected: str) -> CaptureError:
    return CaptureError(
        f"what a model with {value!r} reads is not known", field=key, expected=expected
    )


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    import torch

    return torch.zeros(shape, dtype=dtype, device="meta")


KINDS: Mapping[str, Kind] = {
    "UNet2DConditionModel": Kind(_unet, _noise, seq=77),
    "DiTTransformer2DModel": Kind(_dit, _noise, seq=None),
    "PixArtTransformer2DModel": Kind(_pixart, _noise, seq=120),
    # 77 tokens of CLIP and 256 of T5.
    "SD3Transformer2DModel": Kind(_sd3, _noise, seq=333),
    # Images of 1024 pixels.
    "FluxTransformer2DModel": Kind(_flux, _packed_noise, seq=512, side=128),
    # 81 frames of 480 × 832 pixels, each latent one of 4 frames and 8 × 8 pixels (Wan 2025, §4).
    "WanTransformer3DModel": Kind(_wan, _video_target, seq=512, side=(60, 104), frames=21),
    # 129 frames of 544 × 960 pixels (Kong et al. 2024), a prompt of 256 tokens.
    "HunyuanVideoTransformer3DModel": Kind(
        _hunyuan_video, _video_target, seq=256, side=(68, 120), frames=33
    ),
    # 121 frames of 512 × 768 pixels, each latent one of 8 frames and 32 × 32 pixels (HaCohen et al.
    # 2024).
    "LTXVideoTransformer3DModel": Kind(
        _ltx, _ltx_target, seq=128, side=(16, 24), frames=16, static=_extents
    ),
    # 163 frames of 480 × 848 pixels, each latent one of 6 frames and 8 × 8 pixels.
    "MochiTransformer3DModel": Kind(_mochi, _video_target, seq=256, side=(60, 106), frames=28),
}
"""Every class whose training is known."""
