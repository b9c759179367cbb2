"""What trainers can express: each strategy by hand, and which space holds which."""

from __future__ import annotations

from itertools import product

import pytest

from shardwise.documents.parallelism import Parallelism, text_of
from shardwise.errors import BadInput
from shardwise.pipeline.asked import ANY
from shardwise.trainers.changes import change_text, changes
from shardwise.trainers.formats import TRAINERS
from shardwise.trainers.job import canonical, check
from shardwise.trainers.spaces import SPACES, space_of

FSDP = Parallelism(shards=8, zero=3)
DDP = Parallelism(replicas=8)
HSDP = Parallelism(replicas=2, shards=4, zero=3)
MEGATRON = Parallelism(shards=4, tensor=2, sequence=True, zero=1, recompute="selective")
EVERY = [
    Parallelism(replicas, shards, tensor, sequence, zero, recompute)
    for replicas, shards, tensor, sequence, zero, recompute in product(
        (1, 2), (1, 4), (1, 2), (False, True), (0, 1, 2, 3), ("none", "selective", "full")
    )
    if (shards > 1) == (zero > 0) and (tensor > 1 or not sequence)
]


@pytest.mark.parametrize(
    ("parallelism", "trainers"),
    [
        (DDP, set(SPACES)),
        (FSDP, {"torchtitan", "deepspeed", "fsdp2", "accelerate"}),
        (HSDP, {"torchtitan", "fsdp2", "accelerate"}),
        (Parallelism(shards=8, zero=1), {"megatron", "deepspeed", "accelerate", "nanotron"}),
        (Parallelism(shards=8, zero=3, recompute="selective"), {"torchtitan", "fsdp2"}),
        (MEGATRON, {"megatron"}),
        (Parallelism(replicas=4, tensor=2, sequence=True), {"megatron", "nanotron"}),
        (Parallelism(shards=4, tensor=2, zero=3), {"fsdp2"}),
        (Parallelism(shards=4, tensor=2, sequence=True, zero=3), {"torchtitan", "fsdp2"}),
        (Parallelism(tensor=8, sequence=True), {"torchtitan", "megatron", "fsdp2", "nanotron"}),
    ],
    ids=lambda one: text_of(one) if isinstance(one, Parallelism) else None,
)
def test_who_runs_what(parallelism: Parallelism, trainers: set[str]) -> None:
    assert {name for name, space in SPACES.items() if space.allows(parallelism)} == trainers


@pytest.mark.parametrize(
    ("inner", "outer"),
    [("torchtitan", "fsdp2"), ("nanotron", "megatron"), ("deepspeed", "accelerate")],
)
def test_one_space_holds_another(inner: str, outer: str) -> None:
    of_inner = [one for one in EVERY if SPACES[inner].allows(one)]
    assert of_inner
    assert all(SPACES[outer].allows(one) for one in of_inner)
    assert any(SPACES[outer].allows(one) for one in EVERY if one not in of_inner)


@pytest.mark.parametrize("trainer", SPACES)
def test_what_a_space_holds_can_be_exported(trainer: str) -> None:
    held = [one for one in EVERY if SPACES[trainer].allows(one)]
    for one in held:
        check(canonical(one), trainer, TRAINERS[trainer].limits)


def test_every_space_names_its_sources() -> None:
    assert all(space.sources for space in SPACES.values())


def test_an_unknown_trainer() -> None:
    with pytest.raises(BadInput, match="unknown trainer 'torchtian'") as refused:
        space_of("torchtian")
    assert refused.value.field == "space"
    with pytest.raises(BadInput):
        space_of(ANY)


@pytest.mark.parametrize(
    ("parallelism", "text"),
    [
        (Parallelism(), "one GPU"),
        (DDP, "dp 8"),
        (HSDP, "dp_replicate 2 × dp_shard 4"),
        (
            Parallelism(
                shards=8, tensor=8, sequence=True, zero=3, recompute="full", micro_batches=4
            ),
            "dp_shard 8 × tp 8 with sequence parallelism, full recomputation, 4 micro-batches",
        ),
        (
            MEGATRON,
            "dp_shard 4 (ZeRO-1) × tp 2 with sequence parallelism, selective recomputation",
        ),
    ],
)
def test_a_strategy_in_words(parallelism: Parallelism, text: str) -> None:
    assert text_of(parallelism) == text


@pytest.mark.parametrize(
    ("given", "other", "text"),
    [
        (FSDP, FSDP, ""),
        (FSDP, DDP, "no ZeRO instead of ZeRO-3"),
        (FSDP, HSDP, "shards over 4 devices instead of 8"),
        (DDP, HSDP, "ZeRO-3 instead of no ZeRO"),
        (FSDP, Parallelism(tensor=8), "tp 8 instead of 1"),
        (
            FSDP,
            Parallelism(tensor=8, sequence=True),
            "tp 8 with sequence parallelism instead of 1",
        ),
        (
            FSDP,
            Parallelism(shards=4, tensor=2, zero=2),
            "tp 2 instead of 1, ZeRO-2 instead of ZeRO-3",
        ),
        (
            Parallelism(shards=4, tensor=2, zero=3),
            Parallelism(shards=4, tensor=2, sequence=True, zero=3, micro_batches=2),
            "2 micro-batches instead of 1, with sequence parallelism",
        ),
        (
            MEGATRON,
            Parallelism(shards=4, tensor=2, zero=1),
            "no recomputation instead of selective, without sequence parallelism",
        ),
    ],
)
def test_changes_in_words(given: Parallelism, other: Parallelism, text: str) -> None:
    assert change_text(given, other) == text
    assert len(changes(given, other)) == len(list(filter(None, text.split(", "))))
