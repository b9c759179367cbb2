"""Time by kernels: light operators that run as one pass, measured products and attention."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from harness.graph_builder import ADD, MUL, GraphBuilder, mlp
from harness.strategies import problem_of
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.group_work import GroupWork
from shardwise.cost.products import Product
from shardwise.errors import BadInput
from shardwise.graph import Graph, read_graph
from shardwise.hardware import Hardware, load_hardware
from shardwise.hardware.attention import BACKWARD, AttentionTable
from shardwise.hardware.products import ProductTable, is_unaligned, sustained
from shardwise.hardware.sources import INTERPOLATED
from shardwise.sharding.fusion import GROUP, MODULE, Region, regions

BATCH, WIDTH = 64, 512
TENSOR = BATCH * WIDTH * 4.0
WEIGHT = WIDTH * WIDTH * 4.0


def chain(scopes: tuple[str, str, str] = ("m", "m", "m")) -> Graph:
    """A product, then r = relu(h), t = r * r, u = t + r, then a product of u."""
    builder = GraphBuilder("chain")
    builder.input("x", BATCH, WIDTH)
    builder.parameter("w1", WIDTH, WIDTH)
    builder.linear("one", "x", "w1", "h")
    builder.relu("r", "h", "r", scopes[0])
    builder.both("t", MUL, "r", "r", "t", scopes[1])
    builder.both("u", ADD, "t", "r", "u", scopes[2])
    builder.parameter("w2", WIDTH, WIDTH)
    builder.linear("two", "u", "w2", "y")
    return builder.graph()


def solved(graph: Graph, kernels: str, machine: Hardware | None = None) -> SearchProblem:
    hardware = machine or load_hardware("l4")
    return problem_of(graph, hardware, 1, Options(kernels=kernels, recompute="never"))


def light_region(graph: Graph, *, by_module: bool = False) -> list[Region]:
    problem = solved(graph, "eager")
    pattern = next(p for p in problem.patterns if any(m.operator.name == "t" for m in p.members))
    patterns = problem.context.patterns
    return list(regions(patterns, pattern.members, MODULE if by_module else GROUP))


def times_s(problem: SearchProblem, operator: str) -> tuple[float, float]:
    """Returns forward and backward of one operator on one device."""
    for pattern, cost in zip(problem.patterns, problem.costs, strict=True):
        for position, member in enumerate(pattern.members):
            if member.operator.name == operator:
                work = GroupWork(problem.context, pattern, cost.assignment[:1], cost.proportion[:1])
                passes = work.compute()
                return float(passes.forward_s[0, position]), float(passes.backward_s[0, position])
    raise AssertionError(operator)


def test_a_region_reads_and_writes_what_is_outside_once() -> None:
    (region,) = light_region(chain())
    assert (region.reads, region.writes) == (("h",), ("u",))
    # r is kept by relu and twice by the product; it is computed again from h.
    assert region.needed == ("h",)
    assert region.moved("forward", lambda name: True) == ("h", "u")
    assert region.moved("backward", lambda name: True) == ("h", "h", "u")


def test_what_is_used_outside_is_written_and_not_computed_again() -> None:
    graph = chain()
    builder = GraphBuilder("used")
    builder.tensors, builder.operators = dict(graph.tensors), list(graph.operators)
    builder.linear("three", "r", "w2", "z")
    builder.both("end", ADD, "y", "z", "e")
    (region,) = light_region(builder.graph())
    assert (region.reads, region.writes) == (("h",), ("r", "u"))
    assert region.needed == ("r",)


def test_libraries_fuse_within_a_module() -> None:
    assert light_region(chain(("a", "b", "c")), by_module=True) == []
    (region,) = light_region(chain(("a", "b", "b")), by_module=True)
    assert (region.reads, region.writes) == (("r",), ("u",))
    assert len(light_region(chain(("a", "b", "c")))) == 1


def test_tensors_that_are_moved_in_between_join_nothing() -> None:
    problem = solved(chain(), "eager")
    pattern = next(p for p in problem.patterns if any(m.operator.name == "t" for m in p.members))
    found = list(regions(problem.context.patterns, pattern.members, GROUP, frozenset({"r"})))
    assert [[pattern.members[p].operator.name for p in region.members] for region in found] == [
        ["t", "u"]
    ]


def test_a_fused_chain_by_hand() -> None:
    machine = load_hardware("l4")
    device = machine.devices[0]
    a_byte_s = 1.0 / (device.memory_bandwidth_bytes_per_s * device.memory_efficiency)
    problem = solved(chain(), "compiled")
    forward, backward = np.array([times_s(problem, name) for name in "rtu"]).sum(axis=0)
    assert forward == pytest.approx(2 * TENSOR * a_byte_s + device.kernel_latency_s)
    assert backward == pytest.approx(3 * TENSOR * a_byte_s + device.kernel_latency_s)
    eager = solved(chain(), "eager")
    one_by_one = np.array([times_s(eager, name) for name in "rtu"]).sum(axis=0)
    assert one_by_one[0] == pytest.approx(
        (2 + 3 + 3) * TENSOR * a_byte_s + 3 * device.kernel_latency_s
    )
    assert (one_by_one > 2 * np.array([forward, backward])).all()


@pytest.mark.parametrize("model", ["gpt2", "vgg16", "transformer"])
def test_no_group_takes_longer_than_its_operators_one_by_one(model: str) -> None:
    graph = read_graph(shipped_graph(model))
    options = partial(Options, recompute="never", max_configurations=40)
    sums = {}
    for kernels in ("eager", "fused", "compiled"):
        problem = problem_of(graph, load_hardware("dgx-v100-16gb"), 4, options(kernels=kernels))
        sums[kernels] = [cost.compute_s for cost in problem.costs]
    for eager, fused, compiled in zip(*sums.values(), strict=True):
        assert (fused <= eager * (1 + 1e-12)).all()
        assert (compiled <= fused * (1 + 1e-12)).all()
    total = {kernels: sum(c.min() for c in costs) for kernels, costs in sums.items()}
    assert total["compiled"] < total["eager"]


def test_frameworks_bring_their_kernels() -> None:
    assert [
        Options(framework=name).light_kernels
        for name in ("eager", "compiled", "graphs", "megatron-core")
    ] == ["eager", "compiled", "eager", "fused"]
    assert Options(framework="megatron-core", kernels="eager").light_kernels == "eager"
    with pytest.raises(BadInput, match="unknown kernels 'fast'"):
        Options(kernels="fast")


# Measured products and attention


def flat(utilisation: float, dtype: str = "float32") -> ProductTable:
    ends = (1.0, 1e6)
    return ProductTable(dtype, ends, ends, ends, (utilisation,) * 8)


def test_a_product_and_its_gradients_by_hand() -> None:
    machine = load_hardware("l4")
    base = machine.devices[0]
    device = replace(base, products=(flat(0.25),))
    problem = solved(mlp(1024, 1024, 2048), "eager", replace(machine, devices=(device,)))
    roofline_s = 2 * 1024 * 1024 * 2048 / device.peak("float32")
    # The first product's data have no gradient, the second's have.
    for operator, gradients in (("one", 1), ("two", 2)):
        seconds = np.array([roofline_s, gradients * roofline_s]) / 0.25 + base.kernel_latency_s
        assert times_s(problem, operator) == pytest.approx(seconds)
    group = next(c for c, p in zip(problem.costs, problem.patterns, strict=True) if p.parameters)
    by_source = group.compute_by_source_s[0]
    # The rest is the update of the parameter.
    assert by_source[INTERPOLATED] == pytest.approx(sum(times_s(problem, "one")))


def test_each_gradient_is_the_product_that_it_is() -> None:
    """m, n and k of A · B, of the gradient of A and of that of B are told apart."""
    seen: list[tuple[float, float, float]] = []

    class Spy(ProductTable):
        def of(self, m: np.ndarray, n: np.ndarray, k: np.ndarray) -> np.ndarray:
            seen.append((float(m[0]), float(n[0]), float(k[0])))
            return np.full(np.shape(m), 0.5)

    machine = load_hardware("l4")
    table = flat(0.5)
    spy = Spy(table.dtype, table.m, table.n, table.k, table.utilisation)
    device = replace(machine.devices[0], products=(spy,))
    problem = solved(mlp(256, 1024, 2048), "eager", replace(machine, devices=(device,)))
    seen.clear()
    times_s(problem, "two")
    assert sorted(set(seen)) == sorted({(256, 1024, 2048), (256, 2048, 1024), (2048, 1024, 256)})


@pytest.mark.parametrize(("outputs", "slow"), [(50256, False), (50257, True), (50304, False)])
def test_rows_that_begin_between_loads_slow_products_down(outputs: int, slow: bool) -> None:
    device = load_hardware("h200-8").devices[0]
    m, k = 8192, 768
    flops = 2.0 * m * k * outputs
    sizes = (np.array([float(size)]) for size in (flops, m * k, k * outputs, m * outputs))
    table = device.product_table("bfloat16")
    assert table is not None
    product = Product(table, *sizes, item_bytes=2, is_window=False)
    least_s = flops / (0.126 * device.peak("bfloat16"))
    forward_s = product.times(device, "bfloat16", None)[0]
    backward_s = product.times(device, "bfloat16", (True, True))[0]
    assert bool(forward_s == pytest.approx(least_s)) is slow
    assert bool(backward_s == pytest.approx(2 * least_s)) is slow
    assert forward_s <= least_s * 1.0001


def test_only_rows_count_and_shares_by_their_largest() -> None:
    n, k = np.array([8.0, 12.0, 8.0, 6282.125, 6280.0]), np.array([64.0, 64.0, 65.0, 64.0, 64.0])
    assert is_unaligned(n, k, 2).tolist() == [False, True, True, True, False]
    assert is_unaligned(n, k, 4).tolist() == [False, False, True, True, False]


def test_clocks_fall_where_products_keep_the_units_busy() -> None:
    assert sustained(np.array([0.05, 0.1, 0.3, 0.5, 0.9]), 0.8).tolist() == pytest.approx(
        [0.05, 0.1, 0.27, 0.4, 0.72]
    )
    rising = sustained(np.linspace(0.01, 1.0, 100), 0.6)
    assert (np.diff(rising) > 0).all()


def test_attention_by_hand() -> None:
    batch, heads, length, size = 2, 4, 128, 64
    builder = GraphBuilder("attention")
    for name in "qkv":
        builder.input(name, batch, heads, length, size)
        builder.parameter(f"s{name}", size)
        builder.both(f"scale_{name}", MUL, name, f"s{name}", f"{name}s")
    arguments = {"query": "qs", "key": "ks", "value": "vs"}
    shape = (batch, heads, length, size)
    kind = "aten.scaled_dot_product_attention.default"
    builder.operator("attend", kind, arguments, "y", shape, is_causal=True)
    machine = load_hardware("l4")
    table = AttentionTable("float32", 64.0, (1.0, 1e4), (1.0, 1e6), (0.4,) * 4)
    device = replace(machine.devices[0], attention=(table,))
    problem = solved(builder.graph(), "eager", replace(machine, devices=(device,)))
    flops = 2 * batch * heads * length**2 * size
    forward, backward = times_s(problem, "attend")
    rate = 0.4 * device.peak("float32")
    assert forward == pytest.approx(flops / rate + device.kernel_latency_s)
    assert backward == pytest.approx(2.5 * flops / (BACKWARD * rate) + device.kernel_latency_s)
