"""What torch counts for a model: parameters, and forward flops by `torch.utils.flop_counter`.

The module runs once on the meta device: no data and no weights, whatever its size. Experts run in
transformers' own `batched_mm` form, so that the count does not depend on our operator.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from shardwise.capture.capture import build
from shardwise.capture.guard import foreign_code, quiet
from shardwise.capture.huggingface import training_form
from shardwise.capture.source import parse_source


@dataclass(frozen=True)
class Counted:
    """The elements of all parameters, each counted once, and the flops of one forward pass."""

    parameters: int
    forward_flops: int


def count(source: str, *, batch: int | None, seq: int | None, dtype: str | None) -> Counted:
    """Counts the model that `capture` would export; raises CaptureError if it cannot be run."""
    from torch.utils.flop_counter import FlopCounterMode

    parsed = parse_source(source)
    if parsed.kind == "hf":
        options = {"experts_implementation": "batched_mm", **parsed.options}
        # transformers would read the mask's values; the mask changes no count.
        options.pop("attention_mask", None)
        parsed = replace(parsed, options=options)
    model = build(parsed, batch, seq, dtype)
    counter = FlopCounterMode(display=False)
    form = training_form() if parsed.kind == "hf" else contextlib.nullcontext()
    with foreign_code("the model cannot be run on the meta device", source=source), quiet():
        with form, counter:
            model.module(*model.args, **model.kwargs)
        parameters = sum(p.numel() for p in model.module.parameters())
    return Counted(parameters, counter.get_total_flops())
