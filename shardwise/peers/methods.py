"""Methods of practitioners by name, and the recomputations that they run with."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.cost.options import ALWAYS, AUTO, NEVER
from shardwise.documents.parallelism import ContextForm, Recomputed


@dataclass(frozen=True)
class Method:
    """What practitioners call by one name, and the ZeRO stages that it is run with."""

    title: str
    found_by: str
    stages: tuple[int, ...]


HYBRID, MEGATRON = "hsdp", "megatron"

METHODS = {
    "data-parallel": Method(
        "Data parallelism", "the batch over all devices, all parameters on each", (0,)
    ),
    "zero": Method(
        "ZeRO-1 and ZeRO-2",
        "data parallelism with the optimizer's state in shards, with ZeRO-2 gradients too",
        (1, 2),
    ),
    "fsdp": Method(
        "FSDP (ZeRO-3)",
        "data parallelism with parameters, gradients and state in shards over all devices",
        (3,),
    ),
    HYBRID: Method(
        "HSDP",
        "data parallelism with parameters, gradients and state in shards inside each node",
        (3,),
    ),
    MEGATRON: Method(
        "Megatron-style",
        "tensor parallelism on the innermost axes, data parallelism on the others, every "
        "factorisation; the least sum of its columns, rows, heads and vocabulary splits",
        (0, 1, 3),
    ),
    "ulysses": Method(
        "DeepSpeed-Ulysses",
        "positions and samples over all devices, attention by heads; ZeRO-3 over all devices",
        (3,),
    ),
    "ring-attention": Method(
        "Ring attention",
        "positions and samples over all devices, keys and values go round; ZeRO-3 over all devices",
        (3,),
    ),
    "context-parallel": Method(
        "Context parallelism",
        "positions and samples over all devices, keys and values gathered, as torchtitan has it; "
        "ZeRO-3 over all devices",
        (3,),
    ),
}
"""In the order of documents."""

IN_CONTEXT: dict[str, ContextForm] = {
    "ulysses": "ulysses",
    "ring-attention": "ring",
    "context-parallel": "gather",
}
"""Methods that divide positions, offered where there are fewer samples than devices."""

NONE, SELECTIVE, FULL = "", "selective recompute", "full recompute"
RECOMPUTATIONS = {NEVER: (NONE,), AUTO: (NONE, SELECTIVE, FULL), ALWAYS: (FULL,)}
STAGE = "practitioners"

RECOMPUTED: dict[str, Recomputed] = {NONE: "none", SELECTIVE: "selective", FULL: "full"}
"""What each recomputation is called by trainers."""
