"""A file that captures a transformers model whose task is not known: eight lines to begin with."""

from __future__ import annotations

import inspect
from typing import Any

from shardwise.errors import CaptureError

_LONG, _FLOAT = "dtype=torch.long", ""
_SHAPES = {
    "input_ids": ("batch, seq", _LONG),
    "decoder_input_ids": ("batch, seq", _LONG),
    "input_values": ("batch, 160_000", _FLOAT),
    "input_features": ("batch, 1_000, 80", _FLOAT),
    "pixel_values": ("batch, 3, 224, 224", _FLOAT),
    "labels": ("batch", _LONG),
    "start_positions": ("batch", _LONG),
    "end_positions": ("batch", _LONG),
    "next_sentence_label": ("batch", _LONG),
}
"""The inputs that the file gives a model, if its forward takes them, with usual shapes."""


class UnknownTask(CaptureError):
    """A model without a known task; the text ends with `example`, the file that captures it."""

    def __init__(self, problem: str, *, example: str = "", **where: str | None) -> None:
        self.example = example
        super().__init__(problem, **where)

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.example}" if self.example else super().__str__()

    def in_file(self, file: str) -> UnknownTask:
        """Returns the same error, naming `file`."""
        return UnknownTask(
            self.problem, example=self.example, file=file, field=self.field, expected=self.expected
        )


def example(config: Any, architecture: str | None) -> str:
    """Returns mymodel.py for a configuration's model, and the command that captures it.

    The model is `architecture` if transformers has it, else the first that has a loss.
    """
    model = _model_class(config, architecture)
    if model is None:
        return ""
    inputs = [name for name in inspect.signature(model.forward).parameters if name in _SHAPES]
    given = ", ".join(f"{name}={name}" for name in inputs)
    made = ", ".join(_zeros(name) for name in inputs)
    name = type(config).__name__
    return f"""\
# mymodel.py: set the configuration and the inputs' shapes, then
# shardwise capture mymodel:build --batch 8 -o graph.json
import torch, transformers
class WithLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = transformers.{model.__name__}(transformers.{name}())
    def forward(self, {", ".join(inputs)}):
        return self.model({given}).loss
def build(batch=8{", seq=512" if "seq" in made else ""}):
    return WithLoss(), ({made},)"""


def _zeros(name: str) -> str:
    shape, dtype = _SHAPES[name]
    return f"torch.zeros({', '.join(filter(None, (shape, dtype)))})"


def _model_class(config: Any, architecture: str | None) -> Any:
    import transformers as hf
    from transformers.models.auto import modeling_auto

    named = getattr(hf, architecture, None) if architecture else None
    if isinstance(named, type) and issubclass(named, hf.PreTrainedModel):
        return named
    mappings = [
        *(m for name, m in vars(modeling_auto).items() if name.startswith("MODEL_FOR_")),
        modeling_auto.MODEL_MAPPING,
    ]
    for mapping in mappings:
        try:
            if type(config) in mapping:
                models = mapping[type(config)]
                return models[0] if isinstance(models, tuple) else models
        except (TypeError, KeyError):
            continue
    return None
