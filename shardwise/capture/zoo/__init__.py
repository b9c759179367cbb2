"""Models shipped for tests, demos and comparison with the papers' own figures.

`zoo:NAME[:key=value,…]`; each entry's function gives its defaults and where its sizes come from. A
paper's "parameter memory" is one fp32 copy of the weights in GiB for TensorOpt (Table 1 gives VGG16
0.52, which is 138,357,544 · 4 bytes), and weight, gradient and optimizer history, three copies, for
Tofu (§7.1).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial

from shardwise.capture.guard import foreign_code, quiet
from shardwise.capture.model import Model
from shardwise.capture.source import Source, Value
from shardwise.capture.torch_extra import require, torch_dtype
from shardwise.capture.zoo.blocks import PREFIX
from shardwise.capture.zoo.dlrm import dlrm
from shardwise.capture.zoo.lstm import lstm
from shardwise.capture.zoo.mlp import mlp
from shardwise.capture.zoo.resnet import wide_resnet, wide_resnet_cifar
from shardwise.capture.zoo.transformer import transformer
from shardwise.capture.zoo.unet import unet
from shardwise.capture.zoo.vgg import vgg16
from shardwise.errors import CaptureError
from shardwise.near import near

_ENTRIES: Mapping[str, Callable[..., Model]] = {
    "mlp": mlp,
    "vgg16": vgg16,
    "wide-resnet-50": partial(wide_resnet, 50),
    "wide-resnet-101": partial(wide_resnet, 101),
    "wide-resnet-152": partial(wide_resnet, 152),
    "wrn": wide_resnet_cifar,
    "lstm": lstm,
    "transformer": transformer,
    "transformer-s": partial(transformer, hidden=2688),
    "unet": unet,
    "dlrm": dlrm,
}


def zoo_names() -> tuple[str, ...]:
    """Returns the names that `zoo:NAME` takes."""
    return tuple(_ENTRIES)


def zoo_options(name: str) -> dict[str, int | float | str]:
    """Returns an entry's keys with their defaults. Raises CaptureError for unknown names."""
    parameters = inspect.signature(_entry(name, f"zoo:{name}")).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def build_zoo(source: Source, *, batch: int | None, seq: int | None, dtype: str) -> Model:
    """Returns a model on the meta device; raises CaptureError for unknown names and keys."""
    require("torch")
    import torch

    entry = _entry(source.target, source.text)
    defaults = zoo_options(source.target)
    options: dict[str, Value] = dict(source.options)
    options |= {k: v for k, v in (("batch", batch), ("seq", seq)) if v is not None}
    for key, value in options.items():
        if key not in defaults:
            raise CaptureError(
                f"zoo:{source.target} has no option {key!r}",
                file=source.text,
                field=key,
                expected=", ".join(defaults),
            )
        _check_value(key, value, defaults[key], source)
    with foreign_code(f"zoo:{source.target} cannot be built", source=source.text), quiet():
        with torch.device("meta"):
            model = entry(**options)
        model.module.to(torch_dtype(dtype))
        inputs = tuple(
            value.to(torch_dtype(dtype)) if value.is_floating_point() else value
            for value in model.args
        )
    return Model(model.module, inputs, prefix=PREFIX, input_names=model.input_names)


def _check_value(key: str, value: Value, default: float | str, source: Source) -> None:
    fraction = isinstance(default, float)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    low_enough = fraction and number and 0 <= float(value or 0) < 1
    if low_enough or (not fraction and number and isinstance(value, int) and value >= 1):
        return
    raise CaptureError(
        f"{value!r} is not a valid value",
        file=source.text,
        field=key,
        expected="a fraction from 0 to under 1" if fraction else "a whole number of at least 1",
    )


def _entry(name: str, source: str) -> Callable[..., Model]:
    if name not in _ENTRIES:
        close = near(name, _ENTRIES, most=3)
        raise CaptureError(
            f"the zoo has no {name!r}", file=source, expected=", ".join(close or _ENTRIES)
        )
    return _ENTRIES[name]
