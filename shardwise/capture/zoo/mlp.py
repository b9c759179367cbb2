"""A small multi-layer perceptron, for tests and demos."""

from __future__ import annotations

from shardwise.capture.model import Model
from shardwise.capture.zoo.blocks import with_loss


def mlp(
    layers: int = 4, inputs: int = 256, hidden: int = 1024, classes: int = 16, batch: int = 64
) -> Model:
    """Returns `layers` linear layers with ReLU between them and a cross entropy loss."""
    import torch
    from torch import nn

    widths = [inputs, *[hidden] * (layers - 1), classes]
    parts: list[object] = []
    for position in range(layers):
        parts.append(nn.Linear(widths[position], widths[position + 1]))
        if position < layers - 1:
            parts.append(nn.ReLU())
    features = torch.zeros(batch, inputs)
    labels = torch.zeros(batch, dtype=torch.long)
    return Model(
        with_loss(nn.Sequential(*parts)), (features, labels), input_names=("features", "labels")
    )
