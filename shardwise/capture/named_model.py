"""The graph of the model that a trainer's configuration names, of the file's batch and length."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from shardwise.capture.capture import capture
from shardwise.capture.presets import find_preset, near_presets, presets
from shardwise.capture.shipped import load_graph
from shardwise.capture.source import CONFIG_FILE, parse_preset
from shardwise.cost.options import Progress, quiet
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.near import plain
from shardwise.trainers.configuration import Configuration, NamedModel
from shardwise.trainers.models import MODELS, Model

_BUILT = "bfloat16"
"""The dtype of models that have no preset."""

_GRAPH = "a graph of it: shardwise capture MODEL --batch B --seq S -o graph.json"
_PADDING = 1.05
"""How much larger than the preset's a vocabulary may be that trainers pad."""


def graph_of_configuration(
    configuration: Configuration, file: str, progress: Progress = quiet
) -> Graph:
    """Returns the graph of the model that a file names, of its global batch and sequence length.

    Raises `BadInput` naming `file` and what it lacks: a model that is known here, or a batch.
    """
    source = source_of(configuration.named, file)
    batch, length = configuration.batch, configuration.sequence_length
    for name, value, flag in (("batch", batch, "--batch"), ("sequence length", length, "--seq")):
        if value is None:
            raise BadInput(
                f"the file names the model {source[:60]} and no {name}",
                file=file,
                expected=f"a graph of it: shardwise capture {source[:200]} {flag} …",
            )
    if configuration.named.name or ":" not in source:
        return _by_source(source, batch, length, progress)
    name = f"the model of {Path(file).name[:60]}"
    return capture(source, batch=batch, seq=length, dtype=_BUILT, name=name, progress=progress)


def _by_source(source: str, batch: int | None, length: int | None, progress: Progress) -> Graph:
    """Returns the graph of a preset that is shipped, where that holds for the sizes, else a
    capture."""
    if parse_preset(source) is not None:
        with suppress(BadInput):
            return load_graph(source, progress, batch=batch, seq=length)
    return capture(source, batch=batch, seq=length, progress=progress)


def source_of(named: NamedModel, file: str) -> str:
    """Returns what to capture for a model that a file names; raises `BadInput` naming `file`."""
    if named.name:
        return _by_name(named.name, file)
    preset = _by_sizes(named)
    if preset is not None:
        return preset
    if named.config and not named.missing:
        fields = ",".join(f"{key}={_written(value)}" for key, value in named.fields.items())
        return f"hf:{named.config}:{fields}"
    problem = f"names no model that is known here; missing: {named.missing}"
    if not named.missing:
        problem = "names no model: its program's script does"
    raise BadInput(problem, file=file, expected=_GRAPH)


def _by_name(name: str, file: str) -> str:
    """Returns the preset of a name of a hub, a trainer or a folder with a config.json."""
    if (Path(name) / CONFIG_FILE).is_file():
        return f"hf:{Path(name).as_posix()}/{CONFIG_FILE}"
    known = find_preset(name) or _last_parts().get(plain(name.rpartition("/")[2]))
    if known is not None:
        return known
    near = near_presets(name.rpartition("/")[2])
    raise BadInput(
        f"names the model {name[:80]!r}, which is no preset here"
        + (f"; like it are {', '.join(near)}" if near else ""),
        file=file,
        expected=_GRAPH,
    )


def _last_parts() -> Mapping[str, str]:
    """Returns presets by their names without the owner's, case and punctuation."""
    return {
        plain(one.rpartition("/")[2]): name
        for name, preset in presets().items()
        for one in (name, *preset.aliases)
    }


def _by_sizes(named: NamedModel) -> str | None:
    """Returns the preset of the sizes that a file gives, None where none has them all."""
    for name, model in MODELS.items():
        config, sizes = _sizes(model)
        given = {key: value for key, value in named.fields.items() if key in sizes}
        words = given.pop("vocab_size", sizes["vocab_size"])
        if (
            named.config == config
            and given.items() <= sizes.items()
            and sizes["vocab_size"] <= words <= _PADDING * sizes["vocab_size"]
        ):
            return name
    return None


def _sizes(model: Model) -> tuple[str, dict[str, int]]:
    """Returns a model's class of transformers and the sizes by its names."""
    if model.family == "gpt":
        return "GPT2Config", {
            "n_layer": model.layers,
            "n_embd": model.hidden,
            "n_head": model.heads,
            "n_inner": model.feed_forward,
            "vocab_size": model.vocabulary,
        }
    return "LlamaConfig" if model.family == "llama" else "Qwen3Config", {
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "intermediate_size": model.feed_forward,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.key_value_heads,
        "vocab_size": model.vocabulary,
    }


def _written(value: int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
