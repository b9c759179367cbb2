"""The network's operations in torch, for gradients (`arithmetic.py` says what each returns)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import BadInput
from shardwise.policy.arithmetic import GELU, SMALL, Array, Segments


class TorchArithmetic:
    """The operations in torch. Raises `BadInput` where it is not installed."""

    def __init__(self) -> None:
        try:
            import torch
        except ModuleNotFoundError:
            raise BadInput(
                "a policy's training needs torch, which is not installed",
                field="policy",
                expected="pip install 'shardwise[torch]'",
            ) from None
        self.torch = torch

    def array(self, values: NDArray[np.float32]) -> Array:
        return self.torch.from_numpy(values)

    def concatenated(self, parts: Sequence[Array]) -> Array:
        return self.torch.cat(list(parts))

    def take(self, x: Array, rows: NDArray[np.int64]) -> Array:
        return x.index_select(0, self.torch.from_numpy(rows))

    def elu(self, x: Array) -> Array:
        return self.torch.nn.functional.elu(x)

    def leaky(self, x: Array) -> Array:
        return self.torch.nn.functional.leaky_relu(x, 0.2)

    def gelu(self, x: Array) -> Array:
        return 0.5 * x * (1.0 + self.torch.tanh(GELU * (x + 0.044715 * x * x * x)))

    def softmax(self, x: Array) -> Array:
        return self.torch.softmax(x, -1)

    def normalised(self, x: Array) -> Array:
        return self.torch.nn.functional.layer_norm(x, x.shape[-1:], eps=SMALL)

    def segment_sum(self, x: Array, segments: Segments) -> Array:
        result = x.new_zeros((segments.count, *x.shape[1:]))
        return result.index_add(0, self.torch.from_numpy(segments.index), x)

    def segment_softmax(self, x: Array, segments: Segments) -> Array:
        most = np.maximum.reduceat(x.detach().numpy(), segments.starts, axis=0)
        powers = self.torch.exp(x - self.torch.from_numpy(most[segments.index]))
        return powers / self.take(self.segment_sum(powers, segments), segments.index)
