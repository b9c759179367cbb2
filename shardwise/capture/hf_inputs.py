"""The example inputs of transformers models, on the meta device.

Sequences are full (hf_masks). A waveform has ten seconds at 16 kHz unless `seq` gives the number of
its samples, a spectrogram 1,000 frames or as many as its model takes. Samples that pair an image
with text begin with the image's own tokens, and the text follows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardwise.capture.hf_images import batch_images, find_grid
from shardwise.capture.source import Source
from shardwise.errors import CaptureError

_LONGEST_DEFAULT_SEQ = 1024
_DEFAULT_WAVE = 160_000
_DEFAULT_FRAMES = 1_000


@dataclass(frozen=True)
class Sizes:
    """The sizes of one step: samples, tokens per sample if given, dtype of real inputs, mask."""

    samples: int
    seq: int | None
    dtype: Any
    mask: bool


Inputs = dict[str, Any]
MakeInputs = Callable[[Any, Any, Sizes, Source], Inputs]
"""Takes the model, its configuration, the sizes and the source."""


def tokens(model: Any, config: Any, sizes: Sizes, source: Source) -> Inputs:
    """Returns the inputs of a language model."""
    return _token_ids(model, config, sizes, source)


def pairs(model: Any, config: Any, sizes: Sizes, source: Source) -> Inputs:
    """Returns the inputs of a translator: both sides have the same length."""
    inputs = _token_ids(model, config, sizes, source)
    return {**inputs, "decoder_input_ids": inputs["input_ids"]}


def speech(model: Any, config: Any, sizes: Sizes, source: Source) -> Inputs:
    """Returns the inputs of a speech recogniser that writes token after token."""
    ids = _token_ids(model, config, sizes, source, masked=False)["input_ids"]
    return {"input_features": _mel_frames(config, sizes, source), "decoder_input_ids": ids}


def audio(model: Any, config: Any, sizes: Sizes, source: Source) -> Inputs:
    """Returns a waveform or a spectrogram, as the model's main input is one."""
    if getattr(config, "max_source_positions", None) and hasattr(config, "num_mel_bins"):
        return {"input_features": _mel_frames(config, sizes, source)}
    bins = getattr(config, "num_mel_bins", None) or getattr(
        config, "feature_projection_input_dim", 0
    )
    if bins:
        frames = sizes.seq or getattr(config, "max_length", None) or _DEFAULT_FRAMES
        return {model.main_input_name: _zeros(sizes, (frames, bins))}
    return {model.main_input_name: _zeros(sizes, (sizes.seq or _DEFAULT_WAVE,))}


def frames_of(model: Any, waves: Any) -> int:
    """Returns how many steps in time a model makes of its audio input."""
    import torch

    counted = getattr(model, "_get_feat_extract_output_lengths", None)
    if counted is None:
        return int(waves.shape[1])
    return int(counted(torch.tensor(waves.shape[1])))


def captions(model: Any, config: Any, sizes: Sizes, source: Source) -> Inputs:
    """Returns texts, and as many images."""
    text = getattr(model, "text_model", model)
    words = _token_ids(text, config.text_config, sizes, source)
    return {**words, "pixel_values": _pixels(config.vision_config, sizes)}


def illustrated(model: Any, config: Any, sizes: Sizes, source: Source) -> Inputs:
    """Returns texts of which each begins with an image; changes models that pack images.

    Raises CaptureError where the sizes of images are data that nothing is known of (hf_images).
    """
    if "image_grid_thw" in inspect.signature(model.forward).parameters:
        grid = find_grid(model, config, source)
        batch_images(model, grid)
        pixels = _zeros(sizes, (grid.patches, grid.values))
    else:
        pixels = _pixels(config.vision_config, sizes)
    words = _token_ids(model, getattr(config, "text_config", config), sizes, source)
    return {**words, "pixel_values": pixels}


def images(model: Any, config: Any, sizes: Sizes, source: Source) -> Inputs:
    """Returns images of the size that the configuration names, else of 224 pixels."""
    return {"pixel_values": _pixels(config, sizes)}


def videos(model: Any, config: Any, sizes: Sizes, source: Source) -> Inputs:
    """Returns videos of as many frames as the configuration names."""
    frames: Any = getattr(config, "num_frames", None) or getattr(config, "frames_per_clip", 16)
    return {model.main_input_name: _zeros(sizes, (frames, *_image_shape(config)))}


def _token_ids(
    model: Any, config: Any, sizes: Sizes, source: Source, masked: bool = True
) -> Inputs:
    import torch

    length = sizes.seq or _default_seq(config)
    _check_positions(model, length, source)
    ids = torch.zeros(sizes.samples, length, dtype=torch.long, device="meta")
    return {"input_ids": ids, **({"attention_mask": ids} if sizes.mask and masked else {})}


def _mel_frames(config: Any, sizes: Sizes, source: Source) -> Any:
    # The encoder's convolutions halve the frames of the spectrogram once.
    bins = getattr(config, "num_mel_bins", None)
    positions = getattr(config, "max_source_positions", None)
    if bins is None or positions is None:
        raise CaptureError(
            f"{source.target} does not say how many frames it takes",
            file=source.text,
            expected="a model with num_mel_bins and max_source_positions, such as Whisper",
        )
    return _zeros(sizes, (bins, 2 * positions))


def _pixels(config: Any, sizes: Sizes) -> Any:
    return _zeros(sizes, _image_shape(config))


def _image_shape(config: Any) -> tuple[int, ...]:
    size: Any = getattr(config, "image_size", None)
    if size is None:
        size = getattr(getattr(config, "backbone_config", None), "image_size", None) or 224
    sides = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3
    return (channels, *sides)


def _zeros(sizes: Sizes, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.zeros(sizes.samples, *shape, dtype=sizes.dtype, device="meta")


def _default_seq(config: Any) -> int:
    for key in ("max_target_positions", "max_position_embeddings"):
        longest = getattr(config, key, None)
        if isinstance(longest, int):
            return min(longest, _LONGEST_DEFAULT_SEQ)
    return 512


def _check_positions(model: Any, seq: int, source: Source) -> None:
    """Refuses a learned position table shorter than the sequence; fake tensors would accept it."""
    import torch

    for path, module in model.named_modules():
        last = path.rpartition(".")[2]
        is_table = isinstance(module, torch.nn.Embedding) and ("position" in last or last == "wpe")
        in_text = not path.startswith(("vision_", "model.vision_"))
        if is_table and in_text and "relative" not in last and module.num_embeddings < seq:
            raise CaptureError(
                f"sequence length {seq} exceeds the {module.num_embeddings} positions of {path}",
                file=source.text,
                field="seq",
                expected=f"at most {module.num_embeddings}, or a larger max_position_embeddings",
            )
