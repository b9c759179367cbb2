"""The optimizer of a plan: torch's own, or one on float32 copies of 16-bit weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from shardwise.execute.local.calling import HALVES

MASTER = "master"


def optimizer_of(
    parameters: Iterable[Any], kind: str, learning_rate: float = 1e-4, *, fused: bool = False
) -> Any:
    """Returns an optimizer of the plan's kind (`sgd`, `momentum`, `adam`) on these parameters;
    `fused`: torch's own form of it that needs no temporaries."""
    chosen = list(parameters)
    make: type[torch.optim.Optimizer] = torch.optim.Adam if kind == "adam" else torch.optim.SGD
    options: dict[str, Any] = {"lr": learning_rate}
    if kind == "momentum":
        options["momentum"] = 0.9
    if fused:
        options["fused"] = True
    if any(parameter.dtype in HALVES for parameter in chosen):
        return MasterWeights(chosen, make, **options)
    return make(chosen, **options)


class MasterWeights(torch.optim.Optimizer):  # type: ignore[misc]
    """An element-wise optimizer of `torch.optim` for parameters in 16 bits.

    It keeps a float32 copy of each such parameter (`state[parameter]["master"]`) next to the
    moments, which are float32 too, updates the copy and rounds it to the parameter: mixed-precision
    training (Micikevicius et al. 2018, section 3.1). Parameters are updated one by one, so that
    only one gradient at a time is in 32 bits; 32-bit parameters are updated directly. Groups,
    options and schedulers work as with the optimizer itself.
    """

    def __init__(
        self,
        parameters: Any,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
        **options: Any,
    ) -> None:
        whole = optimizer(parameters, **options)
        super().__init__(whole.param_groups, whole.defaults)
        # Given one parameter at a time; the state is kept here.
        self._one = whole

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> Any:
        """Does one update; returns the result of `closure`, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(group, parameter)
        return loss

    def _update(self, group: dict[str, Any], parameter: Any) -> None:
        state, target = self.state[parameter], parameter
        if parameter.dtype in HALVES:
            if MASTER not in state:
                state[MASTER] = parameter.detach().float()
            target = state[MASTER]
            target.grad = parameter.grad.float()
        moments = {key: value for key, value in state.items() if key != MASTER}
        self._one.param_groups = [{**group, "params": [target]}]
        self._one.state.clear()
        self._one.state[target] = moments
        self._one.step()
        self._one.state.clear()
        state.update(moments)
        if target is not parameter:
            target.grad = None
            parameter.copy_(target)

    def load_state_dict(self, state_dict: Any) -> None:
        """Loads like any optimizer, but float32 stays float32."""
        super().load_state_dict(state_dict)
        order = [parameter for group in self.param_groups for parameter in group["params"]]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        for number, parameter in zip(numbers, order, strict=True):
            for key, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, torch.Tensor) and key != "step":
                    self.state[parameter][key] = value.detach().to(
                        parameter.device, copy=True, memory_format=torch.preserve_format
                    )
