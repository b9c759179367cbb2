"""Random operators: same numbers on replicas, others on shares, the same again in a second run.

The seed depends on the step, the operator and this rank's place along the axes that split it.
torch's own random number stream is left unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from shardwise.execute.local.calling import Run
from shardwise.execute.local.plain import plain
from shardwise.execute.local.registry import form
from shardwise.execute.local.share import Share

RANDOM = frozenset(
    {
        *("aten.rand.default", "aten.randn.default", "aten.randint.default", "aten.randint.low"),
        "aten.normal.float_float",
    }
)
"""Factories that draw random numbers."""

ELEMENTS = (
    *("alpha_dropout.default", "rrelu.default", "rand_like.default", "randn_like.default"),
    *(f"{name}.default" for name in ("bernoulli", "exponential", "geometric", "log_normal")),
    *(f"{name}.default" for name in ("normal_functional", "uniform", "cauchy", "poisson")),
    *(f"normal.{form}" for form in ("Tensor_Tensor", "Tensor_float", "float_Tensor")),
    *(f"randint_like.{form}" for form in ("default", "low_dtype")),
    *("bernoulli.p", "bernoulli.Tensor", "binomial.default", "_standard_gamma.default"),
    *("multinomial.default", "randperm.default"),
)
"""Operators that draw a number for every element."""

CHANNELS = ("feature_dropout.default", "feature_alpha_dropout.default")
MASKS = ("dropout.default", "native_dropout.default")

DRAWN = RANDOM | {f"aten.{name}" for name in (*ELEMENTS, *CHANNELS, *MASKS)}
"""All kinds whose results are random."""

SEEDS = 2**63
STRIDE = 0x9E3779B97F4A7C15
"""Keeps seeds of successive steps far apart (2⁶⁴ / golden ratio)."""


def seed_of(share: Share, axes: Sequence[int]) -> int:
    """Returns a number for the operator and the place along the axes."""
    place = [(a, share.mesh.coordinates[a]) for a in axes]
    text = f"{share.op.name} {place}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


@contextmanager
def numbers_of(seed: int, device: Any) -> Iterator[None]:
    """Uses random numbers from this seed inside; the program's own continue afterwards."""
    cuda = device is not None and torch.device(device).type == "cuda"
    generator = (
        torch.cuda.default_generators[torch.device(device).index or torch.cuda.current_device()]
        if cuda
        else torch.default_generator
    )
    state = generator.get_state()
    try:
        generator.manual_seed(seed)
        yield
    finally:
        generator.set_state(state)


def seeded(share: Share, run: Run, axes: Sequence[int]) -> Run:
    """Returns `run` with the random numbers of its step and of this place along the axes."""
    base, exchange = seed_of(share, axes), share.silent
    share.draws = True

    def drawn(*x: Any) -> list[Any]:
        device = x[0].device if x else exchange.device
        with numbers_of((base + exchange.step * STRIDE) % SEEDS, device):
            return run(*x)

    return drawn


@form(*MASKS)
def dropout(share: Share) -> Run:
    """Keeps elements with probability 1 - p; the mask is drawn from this share's seed."""
    p, train = share.attributes["p"], share.attributes["train"]
    both = share.op.kind == "aten.native_dropout.default"
    if not train or p == 0.0 or p == 1.0:
        return plain(share)
    base, exchange = seed_of(share, share.axes(*share.variables)), share.silent
    share.draws = True
    generators: dict[torch.device, torch.Generator] = {}
    scale = 1.0 / (1.0 - p)

    def run(x: Any) -> list[Any]:
        generator = generators.get(x.device)
        if generator is None:
            generator = generators[x.device] = torch.Generator(x.device)
        generator.manual_seed((base + exchange.step * STRIDE) % SEEDS)
        if both:
            kept = torch.empty_like(x, dtype=torch.bool).bernoulli_(1.0 - p, generator=generator)
            return [x * kept * scale, kept]
        mask = torch.empty_like(x).bernoulli_(1.0 - p, generator=generator).mul_(scale)
        return [x * mask]

    return run


@form(*CHANNELS)
def feature_dropout(share: Share) -> Run:
    """Drops whole channels: the same on all shares of a channel's elements."""
    axes = sorted({*share.output_axes(0, 0), *share.output_axes(0, 1)})
    return seeded(share, plain(share), axes)


@form(*ELEMENTS, *(f"{name}.input" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")))
def by_element(share: Share) -> Run:
    """Runs the overload with this share's numbers; whole operators draw the same everywhere."""
    attributes = share.attributes
    if attributes.get("dropout") == 0.0 or False in (
        attributes.get("train"),
        attributes.get("training"),
    ):
        return plain(share)
    return seeded(share, plain(share), share.axes(*share.variables))
