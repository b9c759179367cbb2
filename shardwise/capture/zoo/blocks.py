"""Modules from plain functions, so that no file of the zoo needs torch before it is used."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

PREFIX = "model."
"""The attribute in which `with_loss` keeps the body; left out of names."""


def block(forward: Callable[..., Any], **children: Any) -> Any:
    """Returns a module with `children` and the forward `forward(module, *inputs)`."""
    return _block_class()(forward, children)


def with_loss(body: Any) -> Any:
    """Returns `body` with the cross entropy of its logits [batch, classes, …] against labels."""
    import torch

    def forward(self: Any, *inputs: Any) -> Any:
        *data, labels = inputs
        return torch.nn.functional.cross_entropy(self.model(*data).float(), labels)

    return block(forward, model=body)


@cache
def _block_class() -> Any:
    import torch

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, forward: Callable[..., Any], children: dict[str, Any]) -> None:
            super().__init__()
            self._function = forward
            for name, child in children.items():
                if isinstance(child, torch.Tensor) and not isinstance(child, torch.nn.Parameter):
                    self.register_buffer(name, child, persistent=False)
                else:
                    setattr(self, name, child)

        def forward(self, *inputs: Any) -> Any:
            return self._function(self, *inputs)

    return Block
