"""The graphs that the benchmarks search: captured once, kept under out/bench/graphs."""

from __future__ import annotations

import re
from pathlib import Path

from shardwise.capture.families import FAMILIES, Family

FOLDER = Path("out/bench/graphs")

GPT = "hf:GPT2Config:n_embd=1024,n_head=16,n_layer={layers}"
BERT = (
    "hf:BertConfig:hidden_size=1024,num_hidden_layers=24,num_attention_heads=16,"
    "intermediate_size=4096,attention_mask=true"
)
SOURCES: dict[str, tuple[str, dict[str, int | str]]] = {
    "lstm": ("zoo:lstm", {}),
    "bert-large": (BERT, {"batch": 64, "seq": 512}),
    "wide-resnet-152": ("zoo:wide-resnet-152:width=4", {"batch": 256}),
    "mixtral-24": (
        "hf:MixtralConfig:num_hidden_layers=24",
        {"batch": 16, "seq": 2048, "dtype": "bf16"},
    ),
}
"""Source and capture arguments by name; `gpt-N` is a GPT of N layers, width 1024.

`family:NAME` is a family of docs/models.md.
"""


def path(name: str) -> str:
    """The graph file of a name, captured if it is not there yet; `shipped:` names as they are."""
    if name.startswith("shipped:"):
        from shardwise.capture import shipped_graph

        return str(shipped_graph(name.removeprefix("shipped:")))
    FOLDER.mkdir(parents=True, exist_ok=True)
    target = FOLDER / f"{name.replace(':', '-')}.json.gz"
    if not target.exists():
        from shardwise.capture import capture
        from shardwise.graph import write_graph

        source, arguments = _source(name)
        write_graph(capture(source, name=name, **arguments), target)
    return str(target)


def family_name(name: str) -> str:
    """Returns the name of a captured family here: `Llama 3 8B` is `llama-3-8b`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _of_family(family: Family) -> tuple[str, dict[str, int | str]]:
    arguments: dict[str, int | str] = {"batch": family.batch, "dtype": family.dtype}
    return family.source, arguments if family.seq is None else {**arguments, "seq": family.seq}


def _source(name: str) -> tuple[str, dict[str, int | str]]:
    for family in FAMILIES:
        if f"family:{family_name(family.name)}" == name:
            return _of_family(family)
    layers = re.fullmatch(r"gpt-(\d+)", name)
    if layers is None:
        return SOURCES[name]
    return GPT.format(layers=layers[1]), {"batch": 64, "seq": 1024, "dtype": "bf16"}
