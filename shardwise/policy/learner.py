"""Learning by gradients, in torch: imitation, policy gradients, Adam.

    imitation     minimise -mean_n Σ_a q_na log π(a | n)
    REINFORCE     maximise mean_s (r_s - R̄) mean_n log π(a_sn | n) + λ mean_n H(π(· | n))

with n the units, q a teacher's shares, R̄ a moving average of rewards (Williams 1992; HeteroG
§4.1.3). Means over units instead of sums keep the rate independent of a graph's size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.policy.architecture import Size
from shardwise.policy.features import Inputs
from shardwise.policy.network import scores
from shardwise.policy.sampling import softmax
from shardwise.policy.task import Decisions
from shardwise.policy.torch_arithmetic import TorchArithmetic
from shardwise.sharding.layout import Floats

BETA_1, BETA_2, SMALL = 0.9, 0.98, 1e-9
MOST_NORM = 1.0
"""Gradients are shortened to this norm."""
WEIGHT_DECAY = 2e-4
Arrays = dict[str, NDArray[np.float32]]


@dataclass
class AdamState:
    """The means of gradients and of their squares, and how many steps were taken."""

    mean: Arrays
    square: Arrays
    steps: int

    @classmethod
    def of(cls, weights: Mapping[str, NDArray[np.float32]]) -> AdamState:
        """Returns the state before any step."""
        zero = {name: np.zeros_like(array) for name, array in weights.items()}
        return cls(zero, {name: array.copy() for name, array in zero.items()}, 0)


class Learner:
    """A network that learns; `weights` are copied. Raises `BadInput` without torch.

    One thread computes, so that the same steps give the same bytes.
    """

    def __init__(
        self,
        weights: Mapping[str, NDArray[np.float32]],
        size: Size,
        rate: float,
        state: AdamState | None = None,
    ) -> None:
        self._arithmetic = TorchArithmetic()
        self._torch = self._arithmetic.torch
        self._size, self.rate = size, rate
        self._weights = {
            name: self._torch.from_numpy(array.copy()).requires_grad_()
            for name, array in weights.items()
        }
        state = state or AdamState.of(weights)
        self._mean, self._square = (
            {name: self._torch.from_numpy(array.copy()) for name, array in arrays.items()}
            for arrays in (state.mean, state.square)
        )
        self._steps = state.steps

    @property
    def weights(self) -> Arrays:
        """Copies of the parameters."""
        return {name: one.detach().numpy().copy() for name, one in self._weights.items()}

    @property
    def state(self) -> AdamState:
        """A copy of Adam's state."""
        mean, square = (
            {name: one.numpy().copy() for name, one in some.items()}
            for some in (self._mean, self._square)
        )
        return AdamState(mean, square, self._steps)

    def _scores(self, inputs: Inputs) -> Any:
        return scores(self._weights, inputs, self._size, self._arithmetic)

    def probabilities(self, inputs: Inputs) -> Floats:
        """Returns the probability of every action for every unit, (units, actions)."""
        with _one_thread(self._torch), self._torch.no_grad():
            return softmax(self._scores(inputs).numpy())

    def imitate(self, inputs: Inputs, shares: Floats) -> float:
        """Takes a step towards a teacher's shares (units, actions); returns the loss before it."""
        with _one_thread(self._torch):
            logarithms = self._torch.log_softmax(self._scores(inputs), -1)
            target = self._torch.from_numpy(shares.astype(np.float32))
            loss = -(target * logarithms).sum(-1).mean()
            return self._step(loss)

    def reinforce(
        self, inputs: Inputs, decisions: Decisions, advantages: Floats, entropy: float
    ) -> None:
        """Takes a step of REINFORCE for decisions (S, units) with advantages (S,), and an entropy
        weight."""
        torch = self._torch
        with _one_thread(torch):
            logarithms = torch.log_softmax(self._scores(inputs), -1)
            units = torch.arange(decisions.shape[1])[None]
            chosen = logarithms[units, torch.from_numpy(decisions)].mean(-1)
            gained = (torch.from_numpy(advantages.astype(np.float32)) * chosen).mean()
            spread = -(logarithms.exp() * logarithms).sum(-1).mean()
            self._step(-gained - entropy * spread)

    def _step(self, loss: Any) -> float:
        torch = self._torch
        names = list(self._weights)
        gradients = torch.autograd.grad(loss, [self._weights[name] for name in names])
        norm = torch.sqrt(sum((gradient * gradient).sum() for gradient in gradients))
        shorter = min(1.0, MOST_NORM / max(float(norm), 1e-12))
        self._steps += 1
        first, second = 1.0 - BETA_1**self._steps, 1.0 - BETA_2**self._steps
        with torch.no_grad():
            for name, gradient in zip(names, gradients, strict=True):
                own = gradient * shorter
                self._mean[name].mul_(BETA_1).add_(own, alpha=1.0 - BETA_1)
                self._square[name].mul_(BETA_2).addcmul_(own, own, value=1.0 - BETA_2)
                moved = (self._mean[name] / first) / ((self._square[name] / second).sqrt() + SMALL)
                weight = self._weights[name]
                weight.sub_(self.rate * (moved + WEIGHT_DECAY * weight))
        return float(loss.detach())


class _one_thread:
    """Lets torch compute by one thread while a block runs."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __enter__(self) -> None:
        self._before = self._torch.get_num_threads()
        self._torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        self._torch.set_num_threads(self._before)
