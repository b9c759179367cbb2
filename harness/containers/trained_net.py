"""A user's module with its loss, for training functions that run in other environments."""

from __future__ import annotations

from typing import Any

import torch

BATCH = 16


class Net(torch.nn.Module):
    """Three layers and a cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(12, 20)
        self.second = torch.nn.Linear(20, 20)
        self.last = torch.nn.Linear(20, 8)

    def forward(self, features: Any, labels: Any) -> Any:
        x = torch.relu(self.first(features))
        x = torch.tanh(self.second(x))
        return torch.nn.functional.cross_entropy(self.last(x), labels)


def a_net() -> Net:
    """Returns the module with the same weights in every process."""
    torch.manual_seed(3)
    return Net()


def a_batch() -> tuple[Any, Any]:
    """Returns features and labels."""
    random = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 8, (BATCH,), generator=random)
    return torch.randn(BATCH, 12, generator=random), labels
