"""Rows that are sent to the devices of their experts: which, what that takes, what it is called."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from shardwise.answers import plan
from shardwise.cost.legality import splits_twice
from shardwise.cost.options import Options
from shardwise.cost.pins import parse_pin
from shardwise.documents.parallelism import Parallelism, text_of
from shardwise.documents.plan import Plan
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.graph.graph import Spread
from shardwise.hardware import load_hardware
from shardwise.search.search import Subject
from shardwise.sharding.layout import local_elements, local_extents
from shardwise.sharding.routing import ROUTED, with_routing
from shardwise.tdl.registry import analyse
from shardwise.trainers.price import price

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

GPUS = 4
TOKENS, COPIES, HIDDEN, WIDTH, EXPERTS = 8 * 64, 2, 64, 128, 16
_SIZES = (
    f"hidden_size={HIDDEN},num_hidden_layers=1,num_attention_heads=4,num_key_value_heads=2,"
    f"vocab_size=128,intermediate_size={WIDTH}"
)
FAMILIES = {
    "Mixtral": f"MixtralConfig:{_SIZES},num_local_experts={EXPERTS}",
    "gpt-oss": f"GptOssConfig:{_SIZES},head_dim=16,num_local_experts={EXPERTS},"
    "num_experts_per_tok=2,pad_token_id=0",
}


@cache
def _graph(family: str = "Mixtral", seq: int = 64) -> Graph:
    from shardwise.capture import capture

    return capture(f"hf:{FAMILIES[family]}", batch=8, seq=seq, dtype="bf16", name=family)


@cache
def _plan(*pins: str, imbalance: float = 1.0, seq: int = 64) -> Plan:
    options = Options(
        micro_batches=(1,),
        zero=(0,),
        recompute="never",
        pins=tuple(parse_pin(p) for p in pins),
        expert_imbalance=imbalance,
    )
    return plan(_graph(seq=seq), load_hardware("dgx-h100"), GPUS, options=options)


EVERYWHERE = tuple(
    f"{name}:m{axis}={split}"
    for axis in range(2)
    for name, split in (
        ("*expert_linear*", ROUTED),
        ("*experts.chunk*", ROUTED),
        ("*self_attn*", "batch"),
        ("*norm*", "batch"),
        ("*lm_head*", "batch"),
        ("*experts.mul_1", "batch"),
        ("*gate*", "batch"),
    )
)
"""Experts over all devices, and samples everywhere else."""


def test_rows_between_products_may_be_sent_and_no_others() -> None:
    graph = _graph("gpt-oss")
    routing = with_routing(graph, {op.name: analyse(op, graph.tensors) for op in graph.operators})
    kinds = {name.rpartition(".")[2].rstrip("_0123456789") for name in routing.regions}
    assert kinds == {"expert_linear", "index", "add", "slice", "clamp", "mul", "sigmoid"}
    sums = [op for op in graph.operators if op.kind == "aten.sum.dim_IntList"]
    assert sums
    assert not any(op.name in routing.regions for op in sums)
    # The vector of each row's expert is looked up where the row is, for the first product alone.
    looked_up = [op for op in graph.operators if op.kind == "aten.index.Tensor"]
    assert [op.name in routing.regions for op in looked_up] == [True, False]
    for name, route in routing.routes.items():
        tensor = routing.graph.tensors[name]
        assert tensor.extents == (*tensor.shape, Spread(EXPERTS))
        assert tensor.shape[:2] == graph.tensors[route].shape
    others = routing.graph.tensors.keys() - routing.routes.keys()
    assert all(routing.graph.tensors[name].spread is None for name in others)
    assert all(t.spread is None for t in graph.tensors.values())


def test_a_model_without_experts_is_as_it_was() -> None:
    from harness.models.shortened import shortened

    graph = shortened("gpt2", 1)
    semantics = {op.name: analyse(op, graph.tensors) for op in graph.operators}
    routing = with_routing(graph, semantics)
    assert routing.graph is graph
    assert routing.semantics == semantics


def test_a_spread_is_no_number_of_elements() -> None:
    assert Spread(8) != 8
    assert (4, Spread(8)) != (4, 8)
    assert len({8: "", Spread(8): ""}) == 2
    shape, sizes = (6, 5, Spread(8)), np.array([2, 2])
    layouts = np.array([[-1, -1], [0, 2], [2, 2]], dtype=np.int8)
    assert local_elements(shape, layouts, sizes).tolist() == [30.0, 7.5, 7.5]
    assert local_extents(shape, layouts, sizes)[1].tolist() == [3.0, 5.0, 0.5]


def test_weights_behind_a_transpose_are_cut_with_their_experts() -> None:
    subject = Subject.of(_graph("gpt-oss"))
    group = next(g for g in subject.coarsened.groups if "expert_linear" in g.name)
    ports = {
        m.operator.kind: [
            v.name for v, of in zip(m.semantics.variables, m.variables, strict=True)
            if group.variables[of] == ROUTED
        ]
        for m in group.members
    }  # fmt: skip
    assert ports == {"aten.transpose.int": [ROUTED], "shardwise.expert_linear.default": [ROUTED]}
    assert {"expert", ROUTED} <= set(group.variables)


def test_experts_are_cut_in_one_way_only() -> None:
    assignment = np.array([[0, 1], [1, 1], [2, 2], [1, 2], [-1, -1]], dtype=np.int8)
    twice = splits_twice(("token", ROUTED, "expert"), assignment)
    assert twice.tolist() == [False, False, False, True, False]
    assert not splits_twice(("token", "expert"), assignment).any()


def _steps(planned: Plan, tensor: str) -> list[Any]:
    edges = [edge for edge in planned.edges if any(tensor in name for name in edge.tensors)]
    return [step for edge in edges for step in (*edge.forward, *edge.backward)]


def test_tokens_are_sent_to_experts_and_back_by_all_to_all() -> None:
    """Per rank k · tokens · H · item bytes go through each of the four (PIPELINE, GShard)."""
    planned = _plan(*EVERYWHERE)
    sent = [*_steps(planned, "experts.expand"), *_steps(planned, "experts.expert_linear_1")]
    assert [step.operation for step in sent] == ["all_to_all"] * 4
    bytes_of_rank = TOKENS // GPUS * COPIES * HIDDEN * 2
    assert [step.size_bytes for step in sent] == [bytes_of_rank] * 4
    # The experts that rows have chosen go with them, as whole numbers of 8 bytes.
    chosen = _steps(planned, "topk.1")
    assert {step.size_bytes for step in chosen} == {TOKENS // GPUS * COPIES * 8}


def test_a_device_holds_its_experts_and_the_rows_of_these() -> None:
    sent, data = (_plan(*pins) for pins in (EVERYWHERE, ("*:m0=batch,none", "*:m1=batch,none")))
    for wanted, whole in zip(sent.groups, data.groups, strict=True):
        if "expert_linear" in wanted.name:
            assert wanted.parameter_bytes == pytest.approx(whole.parameter_bytes / GPUS)
    (product,) = [
        op for g in sent.groups for op in g.operators if op.name.endswith("experts.expert_linear")
    ]
    rows, matrices, _ = product.inputs.values()
    assert rows == ["shard(3)"] * 2
    assert matrices == ["shard(0)"] * 2


def test_its_label_is_expert_parallelism() -> None:
    assert "EP 4" in _plan(*EVERYWHERE).predicted.label
    assert "TP" not in _plan(*EVERYWHERE).predicted.label


@pytest.mark.parametrize(
    ("tensor", "expert", "share"), [(1, 1, 1), (1, 2, 2), (1, 4, 4), (2, 1, 2), (2, 2, 4)]
)
def test_degrees_are_those_of_trainers(tensor: int, expert: int, share: int) -> None:
    """Megatron's tp × ep of the devices that divide samples: experts in tp · ep shares."""
    given = Parallelism(replicas=GPUS // tensor, tensor=tensor, expert=expert)
    priced = price(_graph(), load_hardware("dgx-h100"), GPUS, given, Options(micro_batches=(1,)))
    assert priced.parallelism == given
    held = sum(g.parameter_bytes for g in priced.plan.groups if "expert_linear" in g.name)
    # A parameter, its gradient, and three numbers of the optimizer in float32.
    assert held == pytest.approx(3 * EXPERTS * WIDTH * HIDDEN * (2 + 2 + 12) / share)


@pytest.mark.parametrize(("tensor", "expert"), [(2, 2), (2, 4), (4, 4)])
def test_whole_experts_lie_over_the_devices_of_tensor_parallelism(tensor: int, expert: int) -> None:
    """Megatron's `--expert-tensor-parallel-size 1` beside tp: no share of an expert is cut."""
    given = Parallelism(replicas=GPUS // tensor, tensor=tensor, expert=expert, whole_experts=True)
    priced = price(_graph(), load_hardware("dgx-h100"), GPUS, given, Options(micro_batches=(1,)))
    assert priced.parallelism == given
    assert f"ep {expert} of whole experts" in text_of(given)
    products = [
        op
        for g in priced.plan.groups
        for op in g.operators
        if op.name.endswith(("experts.expert_linear", "experts.expert_linear_1"))
    ]
    assert products
    for product in products:
        rows, matrices, _ = product.inputs.values()
        # Along the axes of experts both lie by expert; along the others rows are cut by tokens.
        assert rows.count("shard(3)") == matrices.count("shard(0)")
        assert set(matrices) <= {"shard(0)", "replicate"}
        assert 2 ** matrices.count("shard(0)") == expert
    held = sum(g.parameter_bytes for g in priced.plan.groups if "o_proj" in g.name)
    assert held == pytest.approx(HIDDEN * HIDDEN * (2 + 2 + 12) / tensor)


@pytest.mark.parametrize(
    ("tensor", "expert", "message"), [(4, 2, "a multiple of 4"), (2, 8, "a divisor of 4")]
)
def test_whole_experts_need_all_devices_of_tensor_parallelism(
    tensor: int, expert: int, message: str
) -> None:
    given = Parallelism(replicas=GPUS // tensor, tensor=tensor, expert=expert, whole_experts=True)
    with pytest.raises(BadInput, match="experts over") as refused:
        price(_graph(), load_hardware("dgx-h100"), GPUS, given, Options(micro_batches=(1,)))
    assert message in str(refused.value)


@pytest.mark.parametrize(("expert", "message"), [(3, "a divisor of 4"), (8, "a divisor of 4")])
def test_degrees_that_do_not_divide_are_refused(expert: int, message: str) -> None:
    given = Parallelism(replicas=GPUS, expert=expert)
    with pytest.raises(BadInput) as refused:
        price(_graph(), load_hardware("dgx-h100"), GPUS, given, Options(micro_batches=(1,)))
    assert "parallelism.expert" in str(refused.value)
    assert message in str(refused.value)


def test_a_dense_model_has_no_experts_to_send_to() -> None:
    from harness.models.shortened import shortened

    given = Parallelism(replicas=GPUS, expert=2)
    with pytest.raises(BadInput, match="rows are not sent to experts over 2 devices"):
        price(
            shortened("gpt2", 1),
            load_hardware("dgx-h100"),
            GPUS,
            given,
            Options(micro_batches=(1,)),
        )


def test_the_busiest_device_gets_as_many_rows_as_is_said() -> None:
    # With fewer tokens it is as fast to gather all rows.
    even, uneven = (_plan(*EVERYWHERE, imbalance=of, seq=4096) for of in (1.0, 1.5))
    assert uneven.predicted.time_s > even.predicted.time_s
    bytes_of_rank = 1.5 * 8 * 4096 // GPUS * COPIES * HIDDEN * 2
    sent = [*_steps(uneven, "experts.expand"), *_steps(uneven, "experts.expert_linear_1")]
    assert [step.size_bytes for step in sent] == [bytes_of_rank] * 4
    held = [sum(g.parameter_bytes for g in planned.groups) for planned in (even, uneven)]
    assert held[0] == held[1]
    shape, layouts = (6, 5, Spread(8, 1.5)), np.array([[2, -1], [2, 2], [-1, 0]], dtype=np.int8)
    assert local_elements(shape, layouts, np.array([2, 2])).tolist() == [22.5, 11.25, 15.0]
    assert local_elements((6, Spread(8, 9.0)), layouts[:1] - 1, np.array([2, 2])) == 6.0


@pytest.mark.parametrize("imbalance", [0.9, float("nan"), 1e9])
def test_an_imbalance_is_a_factor_of_the_mean(imbalance: float) -> None:
    with pytest.raises(BadInput, match="1 to 1000"):
        Options(expert_imbalance=imbalance)


def test_a_dense_model_has_no_imbalance() -> None:
    from harness.models.shortened import shortened

    graph, hardware = shortened("gpt2", 1), load_hardware("dgx-h100")
    plans = [
        plan(graph, hardware, 2, options=Options(micro_batches=(1,), expert_imbalance=of))
        for of in (1.0, 3.0)
    ]
    assert plans[0].predicted.time_s == plans[1].predicted.time_s


def test_what_is_held_for_a_moment_is_of_the_rows_sent_here() -> None:
    """Gradients of rows and workspaces lie with them; parameters are fewer."""
    hardware, options = load_hardware("dgx-h100"), Options(micro_batches=(1,))
    peaks = [
        price(
            _graph(seq=4096), hardware, GPUS, Parallelism(replicas=GPUS, expert=expert), options
        ).plan.predicted.peak_bytes
        for expert in (1, 2, GPUS)
    ]
    assert sorted(peaks, reverse=True) == peaks
    assert peaks[0] > peaks[-1] > 0.9 * peaks[0]
