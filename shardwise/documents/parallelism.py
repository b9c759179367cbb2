"""Parallelism of a whole model in the terms of trainers: degrees, ZeRO stage, recomputation."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from shardwise.documents.model_facts import ModelFacts

Recomputed = Literal["none", "selective", "full"]
"""What backward computes again: nothing, all of a block but its products by weights, all of it."""


Part = Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"]
"""Parts of a block that may run again on their own, by Megatron's names (`peers/parts.py`)."""

ContextForm = Literal["gather", "ring", "ulysses"]
"""How attention sees all positions: keys and values are gathered, go round, or are exchanged for
heads."""


class Parallelism(msgspec.Struct, frozen=True):
    """One strategy for every layer alike: `replicas` × `shards` × `context` × `tensor` devices.

    Samples are divided among `replicas` × `shards`. ZeRO shards over `shards` devices and its
    shards have `replicas` copies (HSDP); without ZeRO `shards` is 1. `tensor` is the degree of
    tensor parallelism, innermost in the mesh; `sequence` says whether positions are split over
    the same devices between the products (sequence parallelism). `zero` is the stage, 0 to 3.
    `expert` devices of those that divide samples, the innermost ones, have different experts of a
    mixture, each in `tensor` parts, and send one another the tokens of these; ZeRO shards experts
    over the others. With `whole_experts` these are in no parts: the innermost `expert` of all
    devices have different ones, those of tensor parallelism among them. `context` devices divide
    the positions of each sample, outside of those of tensor parallelism, in the form that
    `context_form` says; ZeRO shards over these too.

    Full recomputation is of every block, unless `recompute_layers` says of how many, the first
    ones, or `recompute_every` of each how many-th; never both. Selective recomputation is of all
    but products by weights, unless `recompute_modules` names the parts of a block that run again.
    """

    replicas: int = 1
    shards: int = 1
    tensor: int = 1
    sequence: bool = False
    zero: int = 0
    recompute: Recomputed = "none"
    micro_batches: int = 1
    recompute_layers: Annotated[int, msgspec.Meta(ge=1)] | UnsetType = UNSET
    recompute_every: Annotated[int, msgspec.Meta(ge=1)] | UnsetType = UNSET
    expert: Annotated[int, msgspec.Meta(ge=1)] = 1
    context: Annotated[int, msgspec.Meta(ge=1)] = 1
    context_form: ContextForm = "gather"
    whole_experts: bool = False
    recompute_modules: tuple[Part, ...] | UnsetType = UNSET

    @property
    def recomputed_blocks(self) -> slice:
        """Returns which of the blocks run again, in their order."""
        if self.recompute_every is not UNSET:
            return slice(self.recompute_every - 1, None, self.recompute_every)
        return slice(None if self.recompute_layers is UNSET else self.recompute_layers)

    @property
    def in_part(self) -> bool:
        """Whether some of the blocks run again and others do not."""
        return not (self.recompute_layers is UNSET and self.recompute_every is UNSET)

    @property
    def gpus(self) -> int:
        return self.replicas * self.shards * self.context * self.tensor

    @property
    def sharded(self) -> int:
        """Returns over how many devices ZeRO shards."""
        return self.shards * self.context

    @property
    def data(self) -> int:
        """Returns among how many devices samples are divided."""
        return self.replicas * self.shards


class PlannedTrainer(msgspec.Struct, frozen=True):
    """The trainer whose space a plan was searched in, and what that costs (docs/trainers.md).

    `sequence_length` is in tokens, null where samples are not sequences. `any_time_s` is the
    replayed step of the plan without the restriction, and `slower` the excess over it, relative;
    both are null where that search found nothing. `dtype` is that of the graph's parameters, null
    where it does not say. `implied` are the options of the step that the trainer sets by itself,
    such as `gradients float32`; `gradients` is the dtype that gradients add up in, `captured` for
    that of the parameters. `model` is what the graph shows of a decoder.
    """

    name: str
    parallelism: Parallelism
    sequence_length: int | None
    any_time_s: float | None
    slower: float | None
    dtype: str | None = None
    implied: list[str] | UnsetType = UNSET
    gradients: str | UnsetType = UNSET
    model: ModelFacts | UnsetType = UNSET


def text_of(parallelism: Parallelism) -> str:
    """Returns text such as `dp_shard 8 × tp 8 with sequence parallelism, full recomputation`."""
    parts = [_degrees(parallelism)]
    if parallelism.recompute != "none":
        parts.append(f"{recomputation_text(parallelism)} recomputation")
    if parallelism.micro_batches > 1:
        parts.append(f"{parallelism.micro_batches} micro-batches")
    return ", ".join(parts)


def recomputation_text(parallelism: Parallelism) -> str:
    """Returns text such as `selective`, `selective (core_attn)`, `partial (27 layers)` or `partial
    (1 layer in 3)`."""
    if parallelism.recompute_every is not UNSET:
        return f"partial (1 layer in {parallelism.recompute_every})"
    if parallelism.recompute_layers is not UNSET:
        layers = parallelism.recompute_layers
        return f"partial ({layers} layer{'s' if layers > 1 else ''})"
    if parallelism.recompute_modules is not UNSET:
        return f"selective ({', '.join(parallelism.recompute_modules)})"
    return parallelism.recompute


def whole(parallelism: Parallelism) -> Parallelism:
    """Returns the same strategy with the recomputation of all blocks and parts."""
    return replace(
        parallelism, recompute_layers=UNSET, recompute_every=UNSET, recompute_modules=UNSET
    )


def _degrees(parallelism: Parallelism) -> str:
    """Returns the degrees that are above 1, with the ZeRO stage where it is not 3."""
    stage = f" (ZeRO-{parallelism.zero})" if parallelism.zero in (1, 2) else ""
    sequence = " with sequence parallelism" if parallelism.sequence else ""
    degrees = [
        (parallelism.replicas, "dp_replicate" if parallelism.zero else "dp", ""),
        (parallelism.shards, "dp_shard", stage),
        (parallelism.tensor, "tp", sequence),
        (parallelism.expert, "ep", " of whole experts" if parallelism.whole_experts else ""),
        (parallelism.context, "cp", f" ({parallelism.context_form})"),
    ]
    return " × ".join(f"{name} {n}{more}" for n, name, more in degrees if n > 1) or "one GPU"


def trainer_text(trainer: PlannedTrainer) -> str:
    """Returns a plan's trainer, its strategy, and what its space costs, in one line."""
    if trainer.slower is None:
        than = ""
    elif trainer.slower == 0.0:
        than = "; as fast as the fastest strategy of any kind that was found"
    else:
        than = f"; {trainer.slower:.1%} slower than the fastest strategy of any kind"
    implied = "" if trainer.implied is UNSET else f"; with {', '.join(trainer.implied)}"
    return f"{trainer.name}: {text_of(trainer.parallelism)}{implied}{than}"
