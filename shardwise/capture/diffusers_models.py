"""Denoisers of diffusers from their configurations: offline, without weights.

`diffusers:UNet2DConditionModel:sample_size=64` is a class with what differs from its defaults;
`diffusers:./unet` the config.json of a model, or of the model in a pipeline's folder. Options are
the fields of the configuration; a list is written with `+` (`block_out_channels=320+640+1280`).

The loss is the mean squared error, in float32, of the predicted noise against a target that is an
input (diffusers_inputs). Weights of the loss by timestep and the loss of predicted variances are
left out; labels of classes are not dropped at random, which is the data's part.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.capture.config_file import dtype_of, read_fields
from shardwise.capture.diffusers_inputs import (
    ADDED,
    FRAMES,
    KINDS,
    SAMPLE_SIZE,
    Kind,
    Sizes,
    kind_of,
)
from shardwise.capture.diffusers_steady import with_full_texts
from shardwise.capture.guard import foreign_code, quiet
from shardwise.capture.hf_config import check_type
from shardwise.capture.model import Model
from shardwise.capture.presets import presets
from shardwise.capture.source import CONFIG_FILE, Source, Value, parse_value
from shardwise.capture.torch_extra import require, torch_dtype
from shardwise.capture.zoo.blocks import PREFIX, block
from shardwise.errors import CaptureError
from shardwise.near import near

DEFAULT_BATCH = 8
_CLASS = "_class_name"
_KIND = "a config.json of diffusers, or its folder"
_PARTS = ("unet", "transformer")
"""The folders of a pipeline that have the model which is trained."""
_CHANCE = "dropout_prob"
"""How often a module drops labels for classifier-free guidance."""


@dataclass(frozen=True)
class _Origin:
    """The class of a model and the fields that differ from its defaults; sizes of a step."""

    class_name: str
    fields: Mapping[str, Any]
    dtype: str
    file: str
    batch: int | None = None
    seq: int | None = None


def build_diffusers(
    source: Source, *, batch: int | None, seq: int | None, dtype: str | None
) -> Model:
    """Returns a denoiser with its loss on the meta device, in training mode, and its inputs.

    `batch` defaults to the preset's, else to 8 samples; `seq`, the tokens of a text, to the
    preset's or to what the class of models is trained with; `dtype` to the configuration's, else
    to bfloat16, of a bare class to float32. Raises CaptureError for a class, a file or an option
    that is not known.
    """
    require("torch")
    require("diffusers")
    origin = _find_origin(source)
    model_class = _class_named(origin)
    fields = _fields(model_class, origin, source)
    defaults = _defaults(model_class)
    config = {**defaults, **fields}
    kind = kind_of(origin.class_name, config)
    if kind is None:
        raise _untrained(f"{origin.class_name} with these options is part of other models", origin)
    number = torch_dtype(dtype or origin.dtype)
    given = {key: value for key, value in fields.items() if key in defaults}
    length = _length(kind, seq or origin.seq, seq is not None, origin)
    samples, sides = batch or origin.batch or DEFAULT_BATCH, _sides(config, kind)
    sizes = Sizes(samples, length, sides, number, _frames(config, kind))
    with foreign_code(f"the inputs of {source.target} cannot be made", source=origin.file):
        inputs, target = kind.inputs(config, sizes), kind.target(config, sizes)
    body = _build(model_class, given, number, source)
    return Model(
        _with_loss(body, tuple(inputs), kind.static(sizes)),
        (*inputs.values(), target),
        prefix=PREFIX,
        input_names=(*inputs, "target"),
    )


def _find_origin(source: Source) -> _Origin:
    if source.origin == "preset":
        preset = presets()[source.target]
        dtype = preset.dtype or "bfloat16"
        return _Origin(preset.config, preset.fields, dtype, source.text, preset.batch, preset.seq)
    if source.origin == "file":
        return _read_config(Path(source.target).expanduser())
    return _Origin(source.target, {}, "float32", source.text)


def _read_config(path: Path) -> _Origin:
    if path.is_dir():
        folders = (path, *(path / part for part in _PARTS))
        path = next((f for f in folders if (f / CONFIG_FILE).is_file()), path) / CONFIG_FILE
    fields = read_fields(path, _KIND)
    name = fields.get(_CLASS)
    if not isinstance(name, str):
        raise CaptureError(
            "missing" if name is None else f"{name!r} is not a name",
            file=str(path),
            field=_CLASS,
            expected=", ".join(KINDS),
        )
    dtype = dtype_of(fields, str(path)) or "bfloat16"
    return _Origin(name, fields, dtype, str(path))


def _class_named(origin: _Origin) -> Any:
    import diffusers

    known = [*KINDS, "Transformer2DModel"]
    if origin.class_name not in known:
        close = near(origin.class_name, known, most=3)
        raise _untrained(f"how {origin.class_name!r} is trained is not known", origin, close)
    with foreign_code("diffusers cannot be imported", source=origin.file), quiet():
        return getattr(diffusers, origin.class_name)


def _untrained(problem: str, origin: _Origin, close: list[str] | None = None) -> CaptureError:
    models = ", ".join(close or KINDS)
    expected = f"{models}, or package.module:callable with a module that returns its loss"
    return CaptureError(problem, file=origin.file, expected=expected)


def _defaults(model_class: Any) -> dict[str, Any]:
    """Returns every field of a class's configuration with its default."""
    parameters = inspect.signature(model_class.__init__).parameters
    return {name: p.default for name, p in parameters.items() if name != "self"}


def _fields(model_class: Any, origin: _Origin, source: Source) -> dict[str, Any]:
    """Returns the fields of the origin that the class knows, changed by the options.

    What else a file has is ignored, as diffusers does. Raises CaptureError for an option that the
    class does not know, and for a value of another type.
    """
    defaults = {SAMPLE_SIZE: 1, FRAMES: 1, **_defaults(model_class)}
    fields = {key: value for key, value in origin.fields.items() if key in defaults}
    for key, value in fields.items():
        _check(key, value, defaults[key], origin.file)
    for key, value in source.options.items():
        if key not in defaults:
            raise CaptureError(
                f"{model_class.__name__} has no option {key!r}",
                file=source.text,
                field=key,
                expected=", ".join(near(key, defaults, most=3)) or "a field of its configuration",
            )
        fields[key] = _listed(value, defaults[key])
        _check(key, fields[key], defaults[key], source.text)
    return fields


def _listed(value: Value, default: Any) -> Any:
    """Returns `320+640` as a list of numbers, and a word where a list of words is due as one."""
    if isinstance(value, str) and ("+" in value or isinstance(default, tuple)):
        return [parse_value(part) for part in value.split("+") if part]
    return value


def _check(key: str, value: Any, default: Any, file: str) -> None:
    usual = default[0] if isinstance(default, tuple) and default else default
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, list):
            check_type(key, item, usual, file)


def _build(model_class: Any, fields: Mapping[str, Any], dtype: Any, source: Source) -> Any:
    import torch

    doing = f"{source.target} cannot be built"
    with foreign_code(doing, source=source.text), quiet(), torch.device("meta"):
        body = model_class(**fields).to(dtype).train()
    with_full_texts(body)
    for part in body.modules():
        if isinstance(getattr(part, _CHANCE, None), float):
            setattr(part, _CHANCE, 0.0)
    return body


def _length(kind: Kind, seq: int | None, asked: bool, origin: _Origin) -> int:
    if kind.seq is None and asked:
        raise CaptureError(f"{origin.class_name} reads no text", file=origin.file, field="seq")
    return seq or kind.seq or 0


def _sides(config: Mapping[str, Any], kind: Kind) -> tuple[int, int]:
    size = config.get(SAMPLE_SIZE) or kind.side
    sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if len(sides) != 2 or not all(type(side) is int and 1 <= side <= 2**16 for side in sides):
        raise CaptureError(
            f"{size!r} is not a size of latents",
            field=SAMPLE_SIZE,
            expected="an eighth of the image's pixels, such as 64, or HEIGHT+WIDTH",
        )
    return sides[0], sides[1]


def _frames(config: Mapping[str, Any], kind: Kind) -> int:
    frames = config.get(FRAMES)
    if kind.frames is None and frames is not None:
        raise CaptureError("the model makes no videos", field=FRAMES, expected="none")
    frames = frames or kind.frames or 1
    if type(frames) is not int or not 1 <= frames <= 2**16:
        raise CaptureError(
            f"{frames!r:.40} is no number of frames", field=FRAMES, expected="a whole number from 1"
        )
    return frames


def _with_loss(body: Any, names: tuple[str, ...], static: Mapping[str, int]) -> Any:
    import torch

    def forward(self: Any, *values: Any) -> Any:
        *given, target = values
        inputs = {**dict(zip(names, given, strict=True)), **static}
        added = {name: inputs.pop(name) for name in ADDED if name in inputs}
        if added:
            inputs["added_cond_kwargs"] = added
        (predicted,) = self.model(**inputs, return_dict=False)
        if predicted.shape != target.shape:
            # The channels after those of the noise predict its variance.
            predicted = predicted[:, : target.shape[1]]
        return torch.nn.functional.mse_loss(predicted.float(), target.float())

    return block(forward, model=body)
