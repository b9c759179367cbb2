"""A perceptron by hand: whole on one device, or split over a mesh of data and model axes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from shardwise.execute.parameters import ParameterSpec, ParameterStore
from shardwise.execute.rank_mesh import RankMesh
from shardwise.execute.saved import SavedTensors
from shardwise.sharding.layout import PARTIAL as P
from shardwise.sharding.layout import REPLICATE as R

WIDTHS = {"scale": (6,), "up": (7, 6), "up_bias": (7,), "down": (3, 7), "down_bias": (3,)}
"""Seven hidden units: shares are uneven."""


class Mlp(torch.nn.Module):
    """On one device."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        for name, shape in WIDTHS.items():
            start = torch.randn(shape, generator=generator) * 0.5
            self.register_parameter(name, torch.nn.Parameter(start))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        self.seen += len(x)
        hidden = torch.relu((x * self.scale) @ self.up.T + self.up_bias)
        return hidden @ self.down.T + self.down_bias


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


class SplitMlp(torch.nn.Module):
    """The same, the batch split along the axis `data`, hidden units along `model`."""

    def __init__(self, mesh: RankMesh, zero: int = 0, axes: tuple[int, ...] = (0, 1)) -> None:
        super().__init__()
        ways = {
            "scale": ((R, R), (P, P)),
            "up": ((R, 0), (P, 0)),
            "up_bias": ((R, 0), (P, 0)),
            "down": ((R, 1), (P, 1)),
            "down_bias": ((R, R), (P, R)),
        }
        self.mesh = mesh
        self.store = ParameterStore(
            [
                ParameterSpec(n, WIDTHS[n], torch.float32, *way, zero, axes if zero else ())
                for n, way in ways.items()
            ],
            mesh,
        )
        whole = Mlp()
        self.store.load(dict(whole.named_parameters()))
        self.store.saved = self._saved = SavedTensors()
        for name, parameter in self.store.parameters().items():
            self.register_parameter(name, parameter)
        self.register_buffer("seen", whole.seen)

    def forward(self, x: Any) -> Any:
        self.seen += len(x) * self.mesh.sizes[0]
        use = self.store.use
        with self._saved.hooks():
            hidden = torch.relu((x * use("scale")) @ use("up").T + use("up_bias"))
            out = _Total.apply(hidden @ use("down").T, self.mesh.group((1,))) + use("down_bias")
        self._saved.clear()
        return out

    def part(self, batch: Any) -> Any:
        """This rank's samples."""
        share = self.mesh.share(len(batch), (0,))
        return batch[share.start : share.stop]


def batch(step: int) -> tuple[Any, Any]:
    """Samples and targets of a step."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)


def train(model: Any, optimizer: Any, steps: range) -> list[float]:
    """Losses over the whole batch."""
    losses = []
    split = isinstance(model, SplitMlp)
    for step in steps:
        x, aim = batch(step)
        if split:
            x, aim = model.part(x), model.part(aim)
        optimizer.zero_grad()
        loss = ((model(x) - aim) ** 2).sum() / 24
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        if split:
            dist.all_reduce(total, group=model.mesh.group((0,)))
        losses.append(float(total))
    return losses
