"""Adapters in a module, as `graph/tuning.py` has them in its graph.

Each linear layer that gets one is replaced by a module that computes base(x) + s · B(A(x)), with
peft's names of children; everything else is frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from shardwise.capture.model import Model
from shardwise.errors import BadInput
from shardwise.execute.captured import Captured
from shardwise.graph.graph import Graph
from shardwise.graph.tuning import LORA_8BIT, QLORA, SCALING, linear_layers, parse_tuning, tuned


class Adapted(torch.nn.Module):  # type: ignore[misc]
    """A linear layer with an adapter of `rank` (Hu et al. 2021, section 4.1), which is nothing at
    first: B is 0."""

    def __init__(self, base: Any, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base_layer = base
        like = {"bias": False, "dtype": base.weight.dtype, "device": base.weight.device}
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(inputs, rank, **like)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(rank, outputs, **like)})
        if base.weight.device.type != "meta":
            torch.nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns base(x) + s · B(A(x))."""
        below = self.lora_A["default"](x)
        result: torch.Tensor = self.base_layer(x) + self.lora_B["default"](below) * SCALING
        return result


def adapt(captured: Captured, tune: str) -> Model:
    """Returns the captured model with the adapters of an option, which its module then has.

    Raises `BadInput` as `tuned`, and for weights in few bits, which nothing here computes with.
    """
    refuse_stored(tune)
    graph, module = tuned(captured.graph, tune), captured.model.module
    if graph is captured.graph:
        return captured.model
    module.requires_grad_(False)
    for layer in linear_layers(captured.graph):
        down = graph.tensors.get(f"{layer.scope}.lora_A.default.weight")
        up = graph.tensors.get(f"{layer.scope}.lora_B.default.weight")
        if down is None or up is None:
            continue
        path = captured.converted.paths[layer.weight].rpartition(".")[0]
        owner, _, last = path.rpartition(".")
        rank, inputs = down.shape
        base = module.get_submodule(path)
        setattr(module.get_submodule(owner), last, Adapted(base, inputs, up.shape[0], rank))
    return replace(captured.model, module=module)


def refuse_stored(tune: str) -> None:
    """Raises `BadInput` for an option that stores weights in few bits."""
    if parse_tuning(tune).kind in (LORA_8BIT, QLORA):
        raise BadInput(
            f"{tune} is priced and not run: weights in few bits need kernels of bitsandbytes",
            field="tune",
            expected="a plan with --tune lora:RANK",
        )


def refuse_stored_graph(graph: Graph) -> None:
    """Raises `BadInput` for a graph that has parameters in few bits."""
    kept: Mapping[str, str] = {n: t.stored for n, t in graph.tensors.items() if t.stored}
    if kept:
        name, stored = next(iter(kept.items()))
        raise BadInput(
            f"{name} is stored as {stored}, which is priced and not run",
            field="graph",
            expected="weights in a dtype of torch",
        )
