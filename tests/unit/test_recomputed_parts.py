"""Named parts of a block that run again, and what that leaves in memory."""

from __future__ import annotations

from functools import cache

import pytest

from shardwise.answers import Options
from shardwise.capture import load_graph
from shardwise.documents.parallelism import Parallelism, Part
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import load_hardware
from shardwise.peers.parts import groups_of
from shardwise.search.search import Subject
from shardwise.trainers.price import price


@cache
def graph(name: str) -> Graph:
    return load_graph(f"{name}:batch=64,seq=1024")


def _of_first(name: str, part: Part) -> set[str]:
    """Modules of the first layer with the part that run again, below the layer."""
    coarsened = Subject.of(graph(name)).coarsened
    chosen = zip(coarsened.groups, groups_of((part,), coarsened), strict=True)
    names = [m.operator.name for group, own in chosen if own for m in group.members]
    layer = names[0].split(".")[:3] if names else []
    return {n.rpartition(".")[0].split(".", 3)[-1] for n in names if n.split(".")[:3] == layer}


def test_parts_are_told_by_what_they_compute() -> None:
    of = {part: _of_first("gpt-oss-20b", part) for part in ("core_attn", "moe_act", "moe", "mlp")}
    assert of["core_attn"] == {"self_attn"}
    assert of["moe_act"] == {"mlp.experts"}
    assert {"mlp.router", "mlp.experts"} <= of["moe"]
    assert of["mlp"] == set()
    assert _of_first("llama3-8b", "mlp") >= {"mlp.gate_proj", "mlp.down_proj"}
    assert _of_first("llama3-8b", "moe") == set()
    assert "input_layernorm" in _of_first("llama3-8b", "layernorm")
    assert not {"self_attn.q_proj", "self_attn.o_proj"} & _of_first("llama3-8b", "mla_up_proj")


def _peak_bytes(framework: str, *parts: Part) -> float:
    given = Parallelism(
        shards=8,
        zero=1,
        expert=8,
        recompute="selective" if parts else "none",
        **({"recompute_modules": parts} if parts else {}),
    )
    options = Options(framework=framework, micro_batches=(1,), zero=(1,))
    found = price(graph("gpt-oss-20b"), load_hardware("dgx-h100"), 8, given, options)
    return found.plan.predicted.peak_bytes


def test_what_an_activation_makes_is_not_kept_where_it_is_made_again() -> None:
    """Its result, 4 copies of 8,192 tokens of 2,880 numbers in 24 layers, is what the last product
    keeps; torch's own checkpoint leaves it there."""
    saved = _peak_bytes("megatron-core") - _peak_bytes("megatron-core", "moe_act")
    assert saved == pytest.approx(24 * 4 * 8192 * 2880 * 2, rel=0.1)
    assert _peak_bytes("eager", "moe_act") > _peak_bytes("megatron-core", "moe_act")


def test_parts_need_selective_recomputation() -> None:
    with pytest.raises(BadInput, match="recomputation of parts"):
        price(
            graph("gpt-oss-20b"),
            load_hardware("dgx-h100"),
            8,
            Parallelism(shards=8, zero=1, recompute="full", recompute_modules=("moe",)),
        )
