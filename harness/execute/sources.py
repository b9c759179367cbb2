"""Models by their sources, with random weights and inputs, captured to be run on ranks."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from shardwise.capture.capture import build
from shardwise.capture.model import Model
from shardwise.capture.source import parse_source
from shardwise.execute.adapters import adapt
from shardwise.execute.captured import Captured, capture_module
from shardwise.graph.tuning import FULL


@cache
def captured_source(
    source: str, batch: int | None = None, seq: int | None = None, tune: str = FULL
) -> Captured:
    """Returns a source's model in float32 with weights and inputs that are always the same."""
    prepared = build(parse_source(source), batch, seq, "float32")
    if tune != FULL:
        prepared = adapt(capture_module(prepared, source), tune)
    prepared.module.to_empty(device="cpu")
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in prepared.module.parameters():
            p.copy_(torch.randn(p.shape, generator=random) * 0.02 + (0.5 if p.dim() < 2 else 0.0))
        for b in prepared.module.buffers():
            b.fill_(1)
    inputs: tuple[Any, ...] = tuple(
        torch.randn(x.shape, generator=random)
        if x.is_floating_point()
        else torch.randint(0, 10, x.shape, generator=random)
        for x in prepared.args
    )
    model = Model(prepared.module, inputs, prepared.kwargs, prepared.prefix, prepared.input_names)
    return capture_module(model, source)
