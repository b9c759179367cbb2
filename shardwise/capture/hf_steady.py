"""What transformers decides while it runs, from chance or from data, decided beforehand.

A captured step is one that any batch may take, so that:

- every layer runs (`layerdrop` 0) and spectrograms are whole (`apply_spec_augment` off), unless the
  source sets these options itself, which then cannot be exported;
- activations are finite: detectors clamp them if some are not;
- sets of words are gone through in one order (Gemma 3 computes its rotations so), which the hashes
  of a process do not give: the same source is the same graph;
- a sample with an image begins with the image's own tokens. transformers puts an image's features
  where the tokens are its placeholders, by `masked_scatter`, whose reads depend on all samples
  before. Here the features come first and the text's embeddings follow.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.errors import CaptureError

_OFF = {
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "apply_spec_augment": False,
    "use_cache": False,
}
_UNCHECKED = "TRANSFORMERS_DISABLE_TORCH_CHECK"
"""Keeps transformers from counting placeholders, which depends on data."""

_MODELS = "transformers.models."


def steady(config: Any, options: Mapping[str, Any]) -> None:
    """Switches off what a configuration and its parts leave to chance, unless it is an option."""
    for key, value in _OFF.items():
        if hasattr(config, key) and key not in options:
            setattr(config, key, value)
    for part in vars(config).values():
        if hasattr(part, "to_dict"):
            steady(part, options)


_MOST_ROWS = 512
"""Samples that a model may go through one by one (LLaVA's images); more take minutes to trace."""


class _Ordered(set[Any]):
    """A set that every process goes through in the same order."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=str))


@contextlib.contextmanager
def _in_order() -> Iterator[None]:
    """Makes the sets that loaded models of transformers make ordered, in this context."""
    models = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(_MODELS) and module is not None and "set" not in vars(module)
    ]
    for module in models:
        vars(module)["set"] = _Ordered
    try:
        yield
    finally:
        for module in models:
            del vars(module)["set"]


class _Finite:
    def all(self) -> bool:
        return True


@contextlib.contextmanager
def decided() -> Iterator[None]:
    """Treats activations as finite, sets as ordered and images as their samples' beginnings."""
    import torch

    finite, cat, rows_of = torch.isfinite, torch.cat, torch.Tensor.__iter__
    unchecked = os.environ.get(_UNCHECKED)

    def rows(tensor: Any) -> Iterator[Any]:
        if tensor.dim() and tensor.shape[0] > _MOST_ROWS:
            raise CaptureError(
                f"the model goes through {tensor.shape[0]} samples one by one",
                expected=f"at most {_MOST_ROWS}",
            )
        for row in rows_of(tensor):
            row._row_of = tensor
            yield row

    def joined(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        whole = _whole(tensors) if not args and kwargs == {"dim": 0} else None
        return cat(tensors, *args, **kwargs) if whole is None else whole.flatten(0, 1)

    torch.isfinite = lambda tensor: _Finite()
    torch.cat = joined
    torch.Tensor.__iter__ = rows
    torch.Tensor.masked_scatter = _placed_first
    os.environ[_UNCHECKED] = "1"
    try:
        with _in_order():
            yield
    finally:
        torch.isfinite, torch.cat, torch.Tensor.__iter__ = finite, cat, rows_of
        del torch.Tensor.masked_scatter
        if unchecked is None:
            del os.environ[_UNCHECKED]
        else:
            os.environ[_UNCHECKED] = unchecked


def _whole(tensors: Any) -> Any:
    """Returns the tensor that a list has all rows of, in order; None if there is none."""
    if not isinstance(tensors, list | tuple) or not tensors:
        return None
    whole = getattr(tensors[0], "_row_of", None)
    if whole is None or whole.dim() < 2 or len(tensors) != whole.shape[0]:
        return None
    return whole if all(getattr(t, "_row_of", None) is whole for t in tensors) else None


def _placed_first(embeddings: Any, mask: Any, features: Any) -> Any:
    """Returns [batch, seq, hidden] embeddings that begin with the features of the sample's image.

    Raises CaptureError if a sequence is not longer than its image.
    """
    import torch

    samples, seq, hidden = embeddings.shape
    image = features.reshape(samples, -1, hidden)
    if image.shape[1] >= seq:
        raise CaptureError(
            f"a sequence of {seq} tokens has no room for text after the {image.shape[1]} of its "
            "image",
            field="seq",
            expected=f"more than {image.shape[1]}",
        )
    return torch.cat((image, embeddings[:, image.shape[1] :]), dim=1)
