"""Context parallelism: which shares do equal work, what a ring sends, and what it is called."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from shardwise.answers import frontier, plan
from shardwise.cost.legality import splits_twice
from shardwise.cost.merging import fraction_of_work
from shardwise.cost.options import Options
from shardwise.cost.pins import parse_pin
from shardwise.documents.parallelism import Parallelism
from shardwise.documents.plan import Plan
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.graph.graph import Operator, Tensor
from shardwise.graph.semantics import QUERY, RING, OperatorSemantics
from shardwise.hardware import load_hardware
from shardwise.peers.comparison import compare
from shardwise.sharding.zigzag import (
    constant_operators,
    pieces_of,
    with_zigzag,
    zigzag_order,
)
from shardwise.tdl.claims import Mismatch, check_claims
from shardwise.tdl.example import Example
from shardwise.tdl.registry import analyse, analyse_strictly
from shardwise.tdl.verification import verify
from shardwise.trainers.price import price

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

GPUS = 4
SEQ = 32768
KIND = "aten.scaled_dot_product_attention.default"
_SIZES = (
    "hidden_size=2048,num_hidden_layers=1,num_attention_heads=16,num_key_value_heads=4,"
    "vocab_size=512,intermediate_size=4096"
)


@cache
def _graph(batch: int = 1, seq: int = SEQ) -> Graph:
    from shardwise.capture import capture

    return capture(f"hf:LlamaConfig:{_SIZES}", batch=batch, seq=seq, dtype="bf16", name="l")


@cache
def _plan(*pins: str) -> Plan:
    options = Options(
        micro_batches=(1,), zero=(0,), recompute="never", pins=tuple(map(parse_pin, pins))
    )
    return plan(_graph(), load_hardware("dgx-h100"), GPUS, options=options)


def _pinned(*splits: str) -> Plan:
    return _plan(*(f"*.scaled_dot*:m{a}={split}" for a, split in enumerate(splits)))


def _attention(
    keys: int = 8, mask: bool = False, heads: int = 2, **attributes: Any
) -> tuple[Operator, dict[str, Tensor]]:
    shapes = {"query": (2, 4, 8, 16), "key": (2, heads, keys, 16), "value": (2, heads, keys, 16)}
    if mask:
        shapes["attn_mask"] = (1, 1, 8, keys)
    tensors = {name: Tensor(name, shape, "float32", "activation") for name, shape in shapes.items()}
    tensors["output"] = Tensor("output", (2, 4, 8, 16), "float32", "activation")
    named = {"tensor_arguments": list(shapes), **attributes}
    return Operator("attention", KIND, tuple(shapes), ("output",), named), tensors


def _semantics(**how: Any) -> OperatorSemantics:
    return analyse_strictly(*_attention(**how))


def test_keys_go_round_with_the_queries_where_that_is_exact() -> None:
    sem = _semantics(is_causal=True)
    ring = [v.name for v in sem.variables].index(RING)
    assert all(access[ring].dim == 2 for access in (*sem.inputs, *sem.outputs))
    assert sem.merging is not None and sem.merging.ring == ring
    assert sem.merging.inputs == (1, 2) and sem.merging.causal
    for how in ({"dropout_p": 0.1}, {"mask": True}, {"keys": 6}):
        other = _semantics(**how)
        assert RING not in [v.name for v in other.variables], how
        assert other.merging is not None and other.merging.ring is None
    assert [v.name for v in _semantics(dropout_p=0.1).variables] == ["d0", "head", QUERY]


@pytest.mark.parametrize("causal", [False, True])
def test_the_description_of_a_ring_is_verified(causal: bool) -> None:
    shapes = {"query": (2, 4, 8, 6), "key": (2, 4, 8, 6), "value": (2, 4, 8, 6)}
    example = Example(shapes, {"is_causal": causal})
    (verified,) = verify(KIND, example)
    assert {c.parts for c in verified.checks if (c.variable, c.method) == (RING, "merge")} == {
        2,
        3,
        4,
    }


def test_a_ring_that_merges_by_places_is_found_out() -> None:
    operator, tensors = _attention(heads=4)
    places = np.arange(1.0, 9.0).reshape(1, 1, 8, 1)

    def by_places(arrays: Any) -> Any:
        query, key, value = arrays
        return [query + (key * places).sum(2, keepdims=True) + value.sum(2, keepdims=True)]

    with pytest.raises(Mismatch, match="ring"):
        check_claims(operator, tensors, by_places)


def test_rows_are_not_split_both_ways() -> None:
    assignment = np.array([[0, 1], [1, 1], [0, 0], [2, 1]], dtype=np.int8)
    assert splits_twice((QUERY, RING, "head"), assignment).tolist() == [True, False, False, False]


@pytest.mark.parametrize("shares", [2, 3, 4, 8])
def test_causal_shares_cost_what_the_busiest_computes(shares: int) -> None:
    extent = 240
    sem = _semantics(is_causal=True)
    parts = np.array([float(shares)])

    def priced(sem: OperatorSemantics, name: str, extent: int = extent) -> float:
        variables = tuple(replace(v, extent=extent) for v in sem.variables)
        at = [v.name for v in variables].index(name)
        return float(fraction_of_work(replace(sem, variables=variables), at, parts)[0])

    def busiest(order: list[int]) -> float:
        step = extent // shares
        seen = [sum(p + 0.5 for p in order[r * step : (r + 1) * step]) for r in range(shares)]
        return max(seen) / (extent * extent / 2)

    contiguous = busiest(list(range(extent)))
    assert priced(sem, RING) == pytest.approx(contiguous)
    assert contiguous == pytest.approx((2 * shares - 1) / shares**2)
    assert priced(sem, "head") == pytest.approx(1 / shares, rel=0.1)
    assert sem.merging is not None
    even = replace(sem, merging=replace(sem.merging, balanced=True))
    order = [p for piece in zigzag_order(extent, pieces_of(extent, shares)) for p in piece]
    assert sorted(order) == list(range(extent))
    assert busiest(order) == pytest.approx(1 / shares)
    assert priced(even, RING) == priced(even, QUERY) == pytest.approx(1 / shares)
    assert priced(even, RING, extent=241) > 1.4 / shares
    dropped = _semantics(is_causal=True, dropout_p=0.1)
    assert priced(dropped, QUERY) == pytest.approx(min(2 / shares, 1.0))


def test_coarser_shares_of_a_zigzag_order_are_even_too() -> None:
    order = np.array([p for piece in zigzag_order(64, 16) for p in piece])
    for shares in (2, 4, 8):
        work = order.reshape(shares, -1).sum(axis=1)
        assert (work == work[0]).all()


@pytest.mark.parametrize(("pieces", "shares"), [(0, 4), (8, 4), (8, 2), (16, 4), (0, 5)])
def test_blocks_cover_what_causal_queries_see_and_nothing_else(pieces: int, shares: int) -> None:
    from shardwise.execute.local.ring_attention import (
        blocks_of,
        pieces_of_rows,
        positions_of,
    )

    extent = 80
    step = extent // shares
    parts = [pieces_of_rows(range(r * step, (r + 1) * step), extent, pieces) for r in range(shares)]
    assert sorted(p for part in parts for p in positions_of(part)) == list(range(extent))
    for queries, keys in product(parts, parts):
        rows, columns = np.array(positions_of(queries)), np.array(positions_of(keys))
        seen = np.zeros((step, step), dtype=int)
        for block in blocks_of(queries, keys, causal=True):
            part = seen[block.queries, block.keys]
            part += np.tril(np.ones_like(part)) if block.diagonal else 1
        assert (seen == (columns[None, :] <= rows[:, None])).all()


def test_sequences_lie_in_zigzag_order_where_every_position_is_alone() -> None:
    graph = _graph()
    semantics = {op.name: analyse(op, graph.tensors) for op in graph.operators}
    zigzag = with_zigzag(graph, semantics, constant_operators(graph))
    assert {"input_ids", "labels"} <= zigzag.dims.keys()
    balanced = [s.merging for s in zigzag.semantics.values() if s.merging is not None]
    assert balanced and all(merging.balanced for merging in balanced)
    name = next(name for name, dim in zigzag.dims.items() if graph.tensors[name].shape == (1, SEQ))
    rolled = Operator("rolled", "aten.roll.default", (name,), ("r",), {"shifts": [1], "dims": [1]})
    told = Graph(
        graph.name,
        {**graph.tensors, "r": Tensor("r", (1, SEQ), "int64", "activation")},
        (*graph.operators, rolled),
    )
    semantics["rolled"] = analyse(rolled, told.tensors)
    assert not with_zigzag(told, semantics, constant_operators(told)).dims


def test_a_plan_divides_positions_unasked() -> None:
    label = _plan().predicted.label
    assert label is not None and ("Ulysses" in label or "CP" in label)


def test_a_ring_sends_more_and_hides_it() -> None:
    gathered, ring = _pinned(QUERY, QUERY).predicted, _pinned(RING, RING).predicted
    assert (gathered.label, ring.label) == ("CP 4", "ring CP 4")
    assert _pinned("head", RING).predicted.label == "Ulysses 2 × ring 2"
    # Of keys and values of 4 heads, 2 · S/4 · 512 · 2 bytes, 3 times; once more with gradients.
    assert ring.communication_s > gathered.communication_s
    assert ring.exposed_communication_s < 0.2 * ring.communication_s
    assert ring.exposed_communication_s < gathered.exposed_communication_s
    assert ring.replayed_time_s < gathered.replayed_time_s
    assert ring.peak_bytes < gathered.peak_bytes
    assert ring.compute_s == pytest.approx(gathered.compute_s)


def test_a_ring_sends_keys_and_values_of_a_share_in_every_step() -> None:
    hardware = load_hardware("dgx-h100")
    ring = _pinned(RING, RING)
    (attention,) = (
        operator for group in ring.groups for operator in group.operators if operator.kind == KIND
    )
    block = 2 * (SEQ / 4) * 4 * 128 * 2  # keys and values, bf16
    level = hardware.levels[0]
    sent = [block] * 3 + [block] * 3 + [2 * block] * 3  # gradients add up in float32
    least = sum(sent) / (level.bandwidth_bytes_per_s * level.efficiency)
    assert least <= attention.communication_s <= 1.3 * least


@pytest.mark.parametrize(
    ("form", "label"),
    [("gather", "CP 4"), ("ring", "ring CP 4"), ("ulysses", "Ulysses 4")],
)
def test_trainers_divide_positions_in_three_forms(form: Any, label: str) -> None:
    given = Parallelism(shards=2, context=4, context_form=form, zero=3)
    trainer = "megatron" if form == "ulysses" else "torchtitan"
    options = Options(micro_batches=(1,))
    graph = _graph(2, 8192)
    priced = price(graph, load_hardware("dgx-h100"), 8, given, options, trainer=trainer)
    assert priced.plan.predicted.label == f"{label} × FSDP 8"
    assert given.gpus == 8 and given.sharded == 8


def test_more_positions_than_heads_are_refused_by_degree() -> None:
    given = Parallelism(context=8, context_form="ulysses", zero=3)
    with pytest.raises(BadInput, match=r"cp 8 \(ulysses\)"):
        price(_graph(2, 8192), load_hardware("dgx-h100"), 8, given, Options(micro_batches=(1,)))


def test_experts_and_positions_together_are_refused() -> None:
    given = Parallelism(shards=2, context=2, expert=2, zero=3)
    with pytest.raises(BadInput, match="beside context parallelism"):
        price(_graph(2, 8192), load_hardware("dgx-h100"), 4, given)


def test_comparisons_have_rows_of_what_divides_positions() -> None:
    options = Options(micro_batches=(1,), recompute="never")
    comparison = compare(_graph(), load_hardware("dgx-h100"), GPUS, options)
    found = {method.method: method.points for method in comparison.methods}
    steps = {
        name: found[name][0].replayed_time_s
        for name in ("ulysses", "ring-attention", "context-parallel")
    }
    assert all(found[name][0].label == "cp4" for name in steps)
    assert steps["ulysses"] < steps["ring-attention"] < steps["context-parallel"]
    many = compare(_graph(8, 512), load_hardware("dgx-h100"), GPUS, options)
    assert "ulysses" not in {method.method for method in many.methods}


def test_frontiers_name_what_divides_positions() -> None:
    answer = frontier(_graph(), load_hardware("dgx-h100"), GPUS, Options(micro_batches=(1,)))
    labels = {named.label for named in answer.named}
    assert {"Ulysses 4 × FSDP 4", "ring CP 4 × FSDP 4", "CP 4 × FSDP 4"} <= labels
