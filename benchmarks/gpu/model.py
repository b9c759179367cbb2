"""A model on its device: its graph, its prediction, and a training step of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwise.answers import plan
from shardwise.documents.prediction import Prediction
from shardwise.graph import Graph
from shardwise.hardware import Hardware
from shardwise.measure.real_module import RealModule, SizedSource, real_module

from .setting import Setting


@dataclass(frozen=True)
class Trained(RealModule):
    """A module with its inputs and the optimizer of `shardwise run`: Adam, for parameters in 16
    bits on float32 copies."""

    optimizer: Any

    def step(self) -> None:
        """Trains one step."""
        self.gradients()
        self.optimizer.step()


def predicted(
    graph: Graph, hardware: Hardware, setting: Setting, framework: str = "eager"
) -> Prediction:
    """Returns the prediction of a step of the graph on one device."""
    return plan(graph, hardware, 1, options=setting.options(framework)).predicted


def trained(model: SizedSource, graph: Graph, setting: Setting) -> Trained:
    """Returns the model with random weights and inputs; raises what torch does without memory."""
    from shardwise.execute.master_weights import optimizer_of

    real = real_module(model, graph, setting.device, setting.dtype)
    optimizer = optimizer_of(real.module.parameters(), "adam")
    return Trained(real.module, real.inputs, real.form, optimizer)
