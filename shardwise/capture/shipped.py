"""Graphs by name: those shipped with Shardwise, what they were captured from, and presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwise.capture.presets import near_presets
from shardwise.capture.source import parse_preset
from shardwise.cost.options import Progress, quiet
from shardwise.errors import BadInput, NotFound
from shardwise.files import DATA
from shardwise.graph import Graph, read_graph

FOLDER = DATA / "graphs"
SHIPPED = "shipped:"


@dataclass(frozen=True)
class Recipe:
    """The arguments of `capture` for one shipped graph."""

    source: str
    batch: int
    seq: int | None = None
    dtype: str = "float32"


RECIPES: Mapping[str, Recipe] = {
    "llama-8b": Recipe(
        "hf:LlamaConfig:hidden_size=4096,intermediate_size=14336,num_hidden_layers=32,"
        "num_attention_heads=32,num_key_value_heads=8,vocab_size=128256,"
        "max_position_embeddings=8192",
        batch=64,
        seq=4096,
        dtype="bfloat16",
    ),
    "gpt2": Recipe("hf:GPT2Config", batch=64, seq=1024, dtype="bfloat16"),
    "vgg16": Recipe("zoo:vgg16", batch=256),
    "transformer": Recipe("zoo:transformer", batch=256, seq=64),
}


def shipped_names() -> tuple[str, ...]:
    """Returns the names of the shipped graphs."""
    return tuple(RECIPES)


def shipped_graph(name: str) -> Path:
    """Returns the file of a shipped graph; raises NotFound for any other name."""
    path = FOLDER / f"{name}.json.gz"
    if name not in RECIPES or not path.is_file():
        raise NotFound(f"no shipped graph {name!r}; there are {', '.join(RECIPES)}")
    return path


def load_graph(spec: str | Path, progress: Progress = quiet) -> Graph:
    """Reads a graph file or the graph of `shipped:NAME`, or captures a preset by its name.

    A file of that name goes before the preset. `progress` is told each stage of a capture.
    Raises BadInput where there is neither.
    """
    text = str(spec)
    if text.startswith(SHIPPED):
        return read_graph(shipped_graph(text.removeprefix(SHIPPED)))
    if not Path(spec).exists():
        if parse_preset(text) is not None:
            from shardwise.capture.capture import capture

            return capture(text, progress=progress)
        near = near_presets(text.removeprefix("preset:").partition(":")[0])
        if near:
            raise BadInput("no such file or preset", file=text, expected=", ".join(near))
    return read_graph(Path(spec))
