"""transformers models from their configuration classes: offline, without weights.

The loss of a language model is the cross entropy of its logits, taken with the class dimension
in second place: `cross_entropy(logits.float().transpose(1, 2), labels)`. transformers' own loss
flattens batch and sequence into one dimension first, which would tie the two together in every
strategy. The labels are taken as already shifted: the shift by one is the data's work.
Sequences are full: no padding and no packing (see hf_masks).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from shardwise.capture.guard import foreign_code, quiet
from shardwise.capture.model import Model
from shardwise.capture.source import Source, Value
from shardwise.capture.torch_extra import require, torch_dtype
from shardwise.errors import CaptureError

DEFAULT_BATCH = 8
_MODEL_KEYS = ("attn_implementation", "experts_implementation")
_LONGEST_DEFAULT_SEQ = 1024


def build_huggingface(source: Source, *, batch: int | None, seq: int | None, dtype: str) -> Model:
    """The model of a configuration class with random-free (meta) weights, and its inputs.

    `batch` defaults to 8 samples; `seq` to the configuration's longest sequence, at most 1024.
    Raises CaptureError for a class or an option that transformers does not know.
    """
    require("torch")
    require("transformers")
    import torch

    config = _config(source)
    auto, task = _auto_class(config, source.target)
    implementations = {k: v for k, v in source.options.items() if k in _MODEL_KEYS}
    implementations.setdefault("attn_implementation", "sdpa")
    doing = f"{source.target} cannot be built"
    with foreign_code(doing, source=source.text), quiet(), torch.device("meta"):
        try:
            model = auto.from_config(config, dtype=torch_dtype(dtype), **implementations)
        except ValueError:
            if "attn_implementation" in source.options:
                raise
            # An architecture that has no sdpa: its own default then.
            implementations["attn_implementation"] = "eager"
            model = auto.from_config(config, dtype=torch_dtype(dtype), **implementations)
    model.train()
    samples = batch or DEFAULT_BATCH
    if task.pixels:
        return _image_model(model, config, samples, dtype)
    length = seq or _default_seq(config)
    _check_positions(model, length, source)
    ids = torch.zeros(samples, length, dtype=torch.long, device="meta")
    return Model(_loss_wrapper(model, task), (ids,) * (3 if task.decoder else 2), prefix="model.")


@dataclass(frozen=True)
class _Task:
    """What the model is trained to do: `decoder` wants decoder inputs, `pixels` takes images."""

    decoder: bool = False
    pixels: bool = False


def _config(source: Source) -> Any:
    import transformers

    made = getattr(transformers, source.target, None)
    base = transformers.PretrainedConfig
    if not (isinstance(made, type) and issubclass(made, base)):
        known = [name for name in dir(transformers) if name.endswith("Config")]
        raise CaptureError(
            f"transformers has no configuration class {source.target!r}",
            file=source.text,
            expected=_suggestion(source.target, known) or "a class such as GPT2Config",
        )
    options = {k: v for k, v in source.options.items() if k not in _MODEL_KEYS}
    with foreign_code(f"{source.target} cannot be configured", source=source.text), quiet():
        defaults = made()
    accepted = {*defaults.to_dict(), *getattr(made, "attribute_map", {})}
    for key, value in options.items():
        if key not in accepted:
            raise CaptureError(
                f"{source.target} has no option {key!r}",
                file=source.text,
                field=key,
                expected=_suggestion(key, sorted(accepted)) or "an attribute of the configuration",
            )
        _check_type(key, value, getattr(defaults, key, None), source)
    with foreign_code(f"{source.target} cannot be configured", source=source.text), quiet():
        config = made(**options)
        config.use_cache = False
    return config


def _check_type(key: str, value: Value, default: Any, source: Source) -> None:
    wanted = type(default)
    fitting = (int, float) if wanted is float else (wanted,)
    if default is None or value is None or wanted not in (bool, int, float, str):
        return
    if wanted is int and isinstance(value, int) and value < 0 <= default:
        raise CaptureError(
            f"{value} is negative", file=source.text, field=key, expected=f"a value like {default}"
        )
    if not isinstance(value, fitting) or (wanted is not bool and isinstance(value, bool)):
        raise CaptureError(
            f"{value!r} is no {wanted.__name__}",
            file=source.text,
            field=key,
            expected=f"a value like {default!r}",
        )


def _suggestion(word: str, known: list[str]) -> str | None:
    close = difflib.get_close_matches(word, known, n=3)
    return ", ".join(close) if close else None


def _auto_class(config: Any, name: str) -> tuple[Any, _Task]:
    import transformers as hf

    encoder_only = not config.is_encoder_decoder and not getattr(config, "is_decoder", False)
    choices = (
        (hf.AutoModelForMaskedLM, hf.MODEL_FOR_MASKED_LM_MAPPING, encoder_only, _Task()),
        (
            hf.AutoModelForSeq2SeqLM,
            hf.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
            config.is_encoder_decoder,
            _Task(decoder=True),
        ),
        (hf.AutoModelForCausalLM, hf.MODEL_FOR_CAUSAL_LM_MAPPING, True, _Task()),
        (
            hf.AutoModelForImageClassification,
            hf.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
            True,
            _Task(pixels=True),
        ),
    )
    for auto, mapping, wanted, task in choices:
        if wanted and type(config) in mapping:
            return auto, task
    raise CaptureError(
        f"{name} has neither a language model nor an image classifier",
        file=f"hf:{name}",
        expected="package.module:callable that returns (module, example inputs)",
    )


def _default_seq(config: Any) -> int:
    longest = getattr(config, "max_position_embeddings", None)
    return min(longest, _LONGEST_DEFAULT_SEQ) if isinstance(longest, int) else 512


def _check_positions(model: Any, seq: int, source: Source) -> None:
    """A learned position table that is shorter than the sequence: fake tensors would not mind."""
    import torch

    for path, module in model.named_modules():
        last = path.rpartition(".")[2]
        is_table = isinstance(module, torch.nn.Embedding) and ("position" in last or last == "wpe")
        if is_table and "relative" not in last and module.num_embeddings < seq:
            raise CaptureError(
                f"sequence length {seq} is over the {module.num_embeddings} positions of {path}",
                file=source.text,
                field="seq",
                expected=f"at most {module.num_embeddings}, or a larger max_position_embeddings",
            )


def _loss_wrapper(model: Any, task: _Task) -> Any:
    import torch

    def loss(logits: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), labels)

    class LanguageModelLoss(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, labels: Any) -> Any:
            return loss(self.model(input_ids=input_ids, use_cache=False).logits, labels)

    class SequenceToSequenceLoss(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, decoder_input_ids: Any, labels: Any) -> Any:
            out = self.model(
                input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False
            )
            return loss(out.logits, labels)

    return SequenceToSequenceLoss() if task.decoder else LanguageModelLoss()


def _image_model(model: Any, config: Any, samples: int, dtype: str) -> Model:
    import torch

    class ImageClassifierLoss(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: Any, labels: Any) -> Any:
            logits = self.model(pixel_values=pixel_values).logits
            return torch.nn.functional.cross_entropy(logits.float(), labels)

    size = getattr(config, "image_size", None) or 224
    sides = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(config, "num_channels", 3)
    pixels = torch.zeros(samples, channels, *sides, dtype=torch_dtype(dtype), device="meta")
    labels = torch.zeros(samples, dtype=torch.long, device="meta")
    return Model(ImageClassifierLoss(), (pixels, labels), prefix="model.")
