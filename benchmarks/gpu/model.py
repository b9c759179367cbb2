"""A model on its device: its graph, its prediction, and a training step of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardwise.advise import plan
from shardwise.capture import capture
from shardwise.capture.capture import build
from shardwise.capture.huggingface import training_form
from shardwise.capture.source import parse_source
from shardwise.documents.plan import Prediction
from shardwise.graph import Graph
from shardwise.hardware import Hardware

from .setting import Model, Setting

SCALE = 0.02


@dataclass(frozen=True)
class Trained:
    """A module that returns its loss, its inputs, and the optimizer of `shardwise run`: Adam, for
    parameters in 16 bits on float32 copies."""

    module: Any
    inputs: tuple[Any, ...]
    optimizer: Any
    form: Callable[[], Any]

    def gradients(self) -> None:
        """Runs forward and backward."""
        self.optimizer.zero_grad()
        with self.form():
            self.module(*self.inputs).backward()

    def step(self) -> None:
        """Trains one step."""
        self.gradients()
        self.optimizer.step()


def captured(model: Model, setting: Setting) -> Graph:
    """Returns the training graph; raises CaptureError for a source that cannot be captured."""
    sizes = {"batch": model.batch, "seq": model.seq}
    return capture(model.source, **sizes, dtype=setting.dtype, name=model.name)


def predicted(
    graph: Graph, hardware: Hardware, setting: Setting, framework: str = "eager"
) -> Prediction:
    """Returns the prediction of a step of the graph on one device."""
    return plan(graph, hardware, 1, options=setting.options(framework)).predicted


def trained(model: Model, graph: Graph, setting: Setting) -> Trained:
    """Returns the model with random weights and inputs; raises what torch does without memory."""
    import torch

    from shardwise.execute.master_weights import optimizer_of
    from shardwise.execute.synthetic import value_of

    parsed = parse_source(model.source)
    built = build(parsed, model.batch, model.seq, setting.dtype)
    _materialise(built.module, torch, setting.device)
    for child in built.module.modules():
        if isinstance(child, torch.nn.BatchNorm2d):
            child.float()  # as training in 16 bits has it, and cuDNN needs it
    random = torch.Generator().manual_seed(0)
    tensors = (graph.tensors[name] for name in built.input_names)
    inputs = tuple(value_of(graph, t, random).to(setting.device) for t in tensors)
    form = training_form if parsed.kind == "hf" else contextlib.nullcontext
    return Trained(built.module, inputs, optimizer_of(built.module.parameters(), "adam"), form)


def _materialise(module: Any, torch: Any, device: str) -> None:
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
