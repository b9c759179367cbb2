"""The losses of transformers models, and their targets.

The loss of a language model is taken with the class dimension second:
`cross_entropy(logits.float().transpose(1, 2), labels)`. transformers' own loss first flattens batch
and sequence into one dimension, which would tie the two together in every strategy. The labels are
assumed to be shifted already: shifting them by one is up to the data. The labels of a contrastive
loss are the numbers of the samples.

CTC counts every frame and every label, as full sequences have them. Predictions of pixels are
brought to the size of the image first. Depth is compared as it is, without the shift and scale that
some recipes estimate. A detector's boxes are compared with targets that are matched to its queries
already: the matching reads the data, on the CPU, between forward and loss; generalized
intersection over union and the losses of earlier layers are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardwise.capture.hf_inputs import Inputs, frames_of
from shardwise.errors import CaptureError
from shardwise.torch_operators import by_rows

_FRAMES_PER_LABEL = 4
"""Frames of 20 ms for each character: about 12 characters a second."""

_BOXES_WEIGHT = 5.0
"""The weight of boxes against classes: DETR's `bbox_loss_coefficient`."""


@dataclass(frozen=True)
class Loss:
    """`targets` makes what a model is compared with, by name; `compute` is the loss.

    `targets` takes the model, its configuration and its inputs; `compute` takes the model's output,
    its configuration and the targets.
    """

    targets: Callable[[Any, Any, Inputs], Inputs]
    compute: Callable[..., Any]


def _classes(*shape: int) -> Any:
    import torch

    return torch.zeros(shape, dtype=torch.long, device="meta")


def _one_each(model: Any, config: Any, inputs: Inputs) -> Inputs:
    return {"labels": _classes(next(iter(inputs.values())).shape[0])}


def _of_tokens(model: Any, config: Any, inputs: Inputs) -> Inputs:
    name = "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
    return {"labels": _classes(*inputs[name].shape)}


def _token_loss(out: Any, config: Any, labels: Any) -> Any:
    import torch

    scores = out.logits.float().transpose(1, 2)
    if not torch.compiler.is_exporting():  # a module that runs has no strategies to keep apart
        scores, labels = by_rows(scores, labels)
    return torch.nn.functional.cross_entropy(scores, labels)


def _class_loss(out: Any, config: Any, labels: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(out.logits.float(), labels)


def _contrastive_loss(out: Any, config: Any, labels: Any) -> Any:
    import torch

    logits = out.logits_per_image.float()
    entropy = torch.nn.functional.cross_entropy
    return (entropy(logits, labels) + entropy(logits.t(), labels)) / 2


def _transcripts(model: Any, config: Any, inputs: Inputs) -> Inputs:
    waves = next(iter(inputs.values()))
    return {
        "labels": _classes(waves.shape[0], max(1, frames_of(model, waves) // _FRAMES_PER_LABEL))
    }


def _ctc_loss(out: Any, config: Any, labels: Any) -> Any:
    import torch

    scores = torch.nn.functional.log_softmax(out.logits.float(), -1).transpose(0, 1)
    samples, longest = labels.shape
    # Lengths in tensors, and torch's own mean over them, would read data during export.
    each = torch.ops.aten.ctc_loss.IntList(
        scores,
        labels,
        [scores.shape[0]] * samples,
        [longest] * samples,
        config.pad_token_id or 0,
        0,
        config.ctc_zero_infinity,
    )
    return each.sum() if config.ctc_loss_reduction == "sum" else (each / longest).mean()


def _of_pixels(model: Any, config: Any, inputs: Inputs) -> Inputs:
    samples, _, height, width = inputs["pixel_values"].shape
    return {"labels": _classes(samples, height, width)}


def _pixel_loss(out: Any, config: Any, labels: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(_resized(out.logits.float(), labels), labels)


def _depths(model: Any, config: Any, inputs: Inputs) -> Inputs:
    import torch

    images = inputs["pixel_values"]
    samples, _, height, width = images.shape
    return {"depths": torch.zeros(samples, height, width, dtype=torch.float32, device="meta")}


def _depth_loss(out: Any, config: Any, depths: Any) -> Any:
    import torch

    predicted = _resized(out.predicted_depth.float().unsqueeze(1), depths).squeeze(1)
    return torch.nn.functional.l1_loss(predicted, depths)


def _resized(scores: Any, target: Any) -> Any:
    """Returns [batch, channels, …] predictions at the height and width of [batch, …] targets."""
    import torch

    size = target.shape[-2:]
    if scores.shape[-2:] == size:
        return scores
    return torch.nn.functional.interpolate(scores, size=size, mode="bilinear", align_corners=False)


def _objects(model: Any, config: Any, inputs: Inputs) -> Inputs:
    import torch

    queries = getattr(config, "num_queries", getattr(config, "num_detection_tokens", None))
    if not isinstance(queries, int):
        raise CaptureError(
            f"{type(config).__name__} does not say how many objects it looks for",
            field="num_queries",
            expected="a detector with a fixed number of queries, such as DETR or YOLOS",
        )
    samples = inputs["pixel_values"].shape[0]
    boxes = torch.zeros(samples, queries, 4, dtype=torch.float32, device="meta")
    return {"labels": _classes(samples, queries), "boxes": boxes}


def _matched_loss(out: Any, config: Any, labels: Any, boxes: Any) -> Any:
    import torch

    classes = _token_loss(out, config, labels)
    return classes + _BOXES_WEIGHT * torch.nn.functional.l1_loss(out.pred_boxes.float(), boxes)


WORDS = Loss(_of_tokens, _token_loss)
TOKEN_CLASSES = Loss(_of_tokens, _token_loss)
CLASS = Loss(_one_each, _class_loss)
CONTRASTIVE = Loss(_one_each, _contrastive_loss)
CTC = Loss(_transcripts, _ctc_loss)
PIXELS = Loss(_of_pixels, _pixel_loss)
DEPTH = Loss(_depths, _depth_loss)
MATCHED = Loss(_objects, _matched_loss)
