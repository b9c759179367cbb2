"""Image classifiers of timm by name: `timm:swin_base_patch4_window7_224:drop_path_rate=0.1`.

The options are those of `timm.create_model`; nothing is downloaded. Images have the model's own
size unless `img_size` says otherwise; the loss is the cross entropy.
"""

from __future__ import annotations

from typing import Any

from shardwise.capture.guard import foreign_code, quiet
from shardwise.capture.model import Model
from shardwise.capture.source import Source
from shardwise.capture.torch_extra import require, torch_dtype
from shardwise.capture.zoo.blocks import PREFIX, with_loss
from shardwise.errors import CaptureError
from shardwise.near import near

DEFAULT_BATCH = 64
_NOT_OFFERED = frozenset({"pretrained", "checkpoint_path", "features_only"})


def build_timm(source: Source, *, batch: int | None, seq: int | None, dtype: str) -> Model:
    """Returns a timm model on the meta device, in training mode, with its images and labels.

    Raises CaptureError for a name that timm does not know, or an option that the model refuses.
    """
    require("torch")
    require("timm")
    import timm
    import torch

    if source.target not in timm.list_models():
        close = near(source.target, timm.list_models(), most=3)
        raise CaptureError(
            f"timm has no model {source.target!r}",
            file=source.text,
            expected=", ".join(close) or "a name of timm.list_models()",
        )
    if seq is not None:
        raise CaptureError("an image has no sequence length", file=source.text, field="seq")
    for key in source.options:
        if key in _NOT_OFFERED:
            raise CaptureError(f"{key} cannot be set", file=source.text, field=key)
    doing = f"{source.target} cannot be built"
    with foreign_code(doing, source=source.text), quiet(), torch.device("meta"):
        body = _create(source).to(torch_dtype(dtype)).train()
    shape = _input_shape(body, source)
    images = torch.zeros(batch or DEFAULT_BATCH, *shape, dtype=torch_dtype(dtype), device="meta")
    labels = torch.zeros(images.shape[0], dtype=torch.long, device="meta")
    return Model(with_loss(body), (images, labels), prefix=PREFIX, input_names=("images", "labels"))


def _create(source: Source) -> Any:
    import timm

    options = dict(source.options)
    try:
        return timm.create_model(source.target, pretrained=False, **options)
    except TypeError as error:
        if "img_size" not in options or "img_size" not in str(error):
            raise
    # A convolutional model has no fixed image size and takes any.
    del options["img_size"]
    return timm.create_model(source.target, pretrained=False, **options)


def _input_shape(body: Any, source: Source) -> tuple[int, ...]:
    channels, height, width = body.pretrained_cfg["input_size"]
    side = source.options.get("img_size")
    if side is None:
        return channels, height, width
    if not isinstance(side, int) or isinstance(side, bool) or side < 1:
        raise CaptureError(
            f"{side!r} is not a size", file=source.text, field="img_size", expected="pixels"
        )
    return int(source.options.get("in_chans") or channels), side, side
