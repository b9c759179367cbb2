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
from shardwise.graph.document import GRAPH_FILE
from shardwise.step_sizes import StepSizes, sized, split_sizes

FOLDER = DATA / "graphs"
PRESETS_FOLDER = DATA / "presets"
"""Graphs of presets with their defaults, so that these need no torch (`tools/ship_graphs.py`)."""
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


def preset_graph(name: str) -> Path | None:
    """Returns the file of a preset's graph with its defaults; None where it is not shipped."""
    path = PRESETS_FOLDER / f"{name}.json.gz"
    return path if path.is_file() else None


def shipped_presets() -> dict[str, Path]:
    """Returns the files of the presets whose graphs are shipped, by name."""
    return {path.name.removesuffix(".json.gz"): path for path in PRESETS_FOLDER.glob("*.json.gz")}


def load_graph(
    spec: str | Path,
    progress: Progress = quiet,
    *,
    batch: int | None = None,
    seq: int | None = None,
) -> Graph:
    """Reads a graph file or the graph of `shipped:NAME`, or returns that of a preset by its name.

    Each may be of another `batch` (samples) or `seq` (tokens of a sample), also by its name, as in
    `llama3-8b:batch=128,seq=4096`. A file of that name goes before the preset. With options of its
    own, or where its graph is not shipped, a preset is captured, and `progress` is told each stage.
    Raises BadInput where there is neither, and for sizes that a file does not hold for.
    """
    named = StepSizes(batch, seq)
    if Path(spec).exists():
        return read_graph(spec, named)
    text, sizes = split_sizes(sized(str(spec), named))
    if text.startswith(SHIPPED):
        return read_graph(shipped_graph(text.removeprefix(SHIPPED)), sizes)
    if not Path(text).exists():
        preset = parse_preset(text)
        if preset is not None:
            shipped = None if preset.options else preset_graph(preset.target)
            if shipped is not None:
                return _of_preset(shipped, preset.target, sizes)
            from shardwise.capture.capture import capture

            return capture(text, batch=sizes.batch, seq=sizes.seq, progress=progress)
        near = near_presets(text.removeprefix("preset:").partition(":")[0])
        expected = ", ".join(near) or f"a preset of docs/presets.md, or {GRAPH_FILE}"
        raise BadInput("no such file or preset", file=text, expected=expected)
    return read_graph(text, sizes)


def _of_preset(shipped: Path, name: str, sizes: StepSizes) -> Graph:
    try:
        return read_graph(shipped, sizes)
    except BadInput as error:
        raise error.in_file(name) from None
