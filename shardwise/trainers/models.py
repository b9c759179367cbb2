"""Presets that trainers know: their sizes, and what torchtitan calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class Model(NamedTuple):
    """Sizes of a decoder. `titan` is torchtitan's name of the model and its flavor, if it has it.

    `gpt` has learned positions, biases, LayerNorm and tied embeddings; `llama` has none of them,
    `qwen` adds a norm of queries and keys to it.
    """

    family: Literal["gpt", "llama", "qwen"]
    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    feed_forward: int
    vocabulary: int
    positions: int
    rope_theta: float = 0.0
    titan: tuple[str, str] | None = None

    @property
    def norm_epsilon(self) -> float:
        """Returns what norms add to the variance."""
        return 1e-6 if self.family == "qwen" else 1e-5


def _gpt(layers: int, hidden: int, heads: int, positions: int = 1024) -> Model:
    return Model("gpt", layers, hidden, heads, heads, 4 * hidden, 50257, positions)


def _llama2(layers: int, hidden: int, heads: int, key_value_heads: int, wide: int) -> Model:
    return Model("llama", layers, hidden, heads, key_value_heads, wide, 32000, 4096, 10000.0)


def _llama3(layers: int, hidden: int, heads: int, wide: int, flavor: str) -> Model:
    titan = ("llama3", flavor)
    return Model("llama", layers, hidden, heads, 8, wide, 128256, 8192, 500000.0, titan)


def _qwen3(layers: int, hidden: int, heads: int, wide: int, flavor: str) -> Model:
    titan = ("qwen3", flavor)
    return Model("qwen", layers, hidden, heads, 8, wide, 151936, 40960, 1000000.0, titan)


MODELS: Mapping[str, Model] = {
    "gpt2": _gpt(12, 768, 12),
    "gpt2-medium": _gpt(24, 1024, 16),
    "gpt2-large": _gpt(36, 1280, 20),
    "gpt2-xl": _gpt(48, 1600, 25),
    "gpt3-175b": _gpt(96, 12288, 96, 2048),
    "llama2-7b": _llama2(32, 4096, 32, 32, 11008),
    "llama2-13b": _llama2(40, 5120, 40, 40, 13824),
    "llama2-70b": _llama2(80, 8192, 64, 8, 28672),
    "llama3-8b": _llama3(32, 4096, 32, 14336, "8B"),
    "llama3-70b": _llama3(80, 8192, 64, 28672, "70B"),
    "llama3-405b": _llama3(126, 16384, 128, 53248, "405B"),
    "qwen3-8b": _qwen3(36, 4096, 32, 12288, "8B"),
    "qwen3-14b": _qwen3(40, 5120, 40, 17408, "14B"),
    "qwen3-32b": _qwen3(64, 5120, 64, 25600, "32B"),
}
"""Models by the name of their preset, which is that of its graph."""
