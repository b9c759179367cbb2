"""The optimizer of a plan: torch's own, or on float32 master copies where weights have 16 bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}


def optimizer_of(parameters: Iterable[Any], kind: str, learning_rate: float = 1e-4) -> Any:
    """An optimizer of the plan's kind (`sgd`, `momentum`, `adam`) on these parameters."""
    chosen = list(parameters)
    if any(parameter.element_size() < 4 for parameter in chosen):
        return MasterWeights(chosen, kind, learning_rate)
    if kind == "adam":
        return torch.optim.Adam(chosen, lr=learning_rate)
    return torch.optim.SGD(chosen, lr=learning_rate, momentum=0.9 if kind == "momentum" else 0.0)


class MasterWeights:
    """Adam, momentum or SGD on float32 master copies of parameters in 16 bits, one by one."""

    def __init__(self, parameters: Iterable[Any], kind: str, learning_rate: float = 1e-4) -> None:
        self.parameters = list(parameters)
        self.kind = kind
        self.learning_rate = learning_rate
        self.state: dict[Any, dict[str, Any]] = {}

    def zero_grad(self) -> None:
        """Free the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """One update."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                self._update(parameter)

    def _update(self, parameter: Any) -> None:
        if parameter not in self.state:
            master = parameter.detach().float()
            moments = {f"m{i}": torch.zeros_like(master) for i in range(MOMENTS[self.kind])}
            self.state[parameter] = {"master": master, **moments}
        state = self.state[parameter]
        gradient = parameter.grad.float()
        if self.kind == "adam":
            state["m0"].lerp_(gradient, 0.1)
            state["m1"].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            denominator = (state["m1"].sqrt() / 0.5).add_(1e-8)
            state["master"].addcdiv_(state["m0"], denominator, value=-self.learning_rate)
        elif self.kind == "momentum":
            state["m0"].mul_(0.9).add_(gradient)
            state["master"].add_(state["m0"], alpha=-self.learning_rate)
        else:
            state["master"].add_(gradient, alpha=-self.learning_rate)
        parameter.copy_(state["master"])
