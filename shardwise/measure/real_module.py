"""A model on a device: its graph, its module with random weights, forward and backward of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardwise.capture.capture import DEFAULT_DTYPE, build, capture
from shardwise.capture.huggingface import training_form
from shardwise.capture.source import parse_source
from shardwise.capture.values import value_of
from shardwise.graph import Graph

SCALE = 0.02
"""The standard deviation of random weights."""


@dataclass(frozen=True)
class SizedSource:
    """A source as `shardwise capture` takes it, with the samples of a batch and, as `seq`, the
    tokens of a sample."""

    name: str
    source: str
    batch: int
    seq: int | None = None

    def captured(self, dtype: str = DEFAULT_DTYPE) -> Graph:
        """Returns the training graph; raises CaptureError for a source that cannot be captured."""
        return capture(self.source, batch=self.batch, seq=self.seq, dtype=dtype, name=self.name)


@dataclass(frozen=True)
class RealModule:
    """A module that returns its loss, and its inputs; `form` is the context in which it trains."""

    module: Any
    inputs: tuple[Any, ...]
    form: Callable[[], Any]

    def gradients(self) -> None:
        """Runs forward and backward; the gradients are of this run alone."""
        self.module.zero_grad()
        with self.form():
            self.module(*self.inputs).backward()


def real_module(
    sized: SizedSource, graph: Graph, device: Any, dtype: str = DEFAULT_DTYPE
) -> RealModule:
    """Returns the model of a source and of its captured graph on one of torch's devices.

    Raises CaptureError where the model cannot be built, and what torch does without memory.
    """
    import torch

    parsed = parse_source(sized.source)
    built = build(parsed, sized.batch, sized.seq, dtype)
    _materialise(built.module, torch, device)
    for child in built.module.modules():
        if isinstance(child, torch.nn.BatchNorm2d):
            child.float()  # as training in 16 bits has it, and cuDNN needs it
    random = torch.Generator().manual_seed(0)
    tensors = (graph.tensors[name] for name in built.input_names)
    inputs = tuple(value_of(graph, t, random).to(device) for t in tensors)
    form = training_form if parsed.kind == "hf" else contextlib.nullcontext
    return RealModule(built.module, inputs, form)


def _materialise(module: Any, torch: Any, device: Any) -> None:
    """Moves a module from the meta device with random weights; tied ones stay tied."""
    made: dict[int, Any] = {}
    for child in module.modules():
        for table in (child._parameters, child._buffers):
            for name, tensor in table.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    # 0 is a valid id everywhere, 1 a variance, a frequency and a scale.
                    data = torch.full_like(tensor, tensor.is_floating_point(), device=device)
                    if isinstance(tensor, torch.nn.Parameter):
                        data.normal_(float(tensor.dim() < 2), SCALE)
                        data = torch.nn.Parameter(data, tensor.requires_grad)
                    made[id(tensor)] = data
                table[name] = made[id(tensor)]
