"""Method `tofu`: what the Tofu paper says of its recursion (§5.2), and how it is answered."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest

from harness.answers import curve, explain, frontier, plan
from harness.graph_builder import MUL, GraphBuilder
from shardwise import _core
from shardwise.answers import Infeasible, Options
from shardwise.capture import shipped_graph
from shardwise.cost.options import SOLVER_METHODS
from shardwise.errors import BadInput, Cancelled, SolverError
from shardwise.graph import Graph, Operator, Tensor, read_graph
from shardwise.graph.semantics import Access, IndexVariable, OperatorSemantics
from shardwise.hardware import load_hardware
from shardwise.search.problem import problem_from_json, solve_problem
from shardwise.search.search import Search, Subject, search
from shardwise.search.tofu import TofuSolution
from shardwise.search.tofu.recursion import whole_graph
from shardwise.search.tofu.step import Workers, divide, partition
from shardwise.sharding.coarsen import coarsen
from shardwise.sharding.pattern import Patterns

TOFU = Options(overlap=False, method="tofu")
BATCH, OUT, IN = 0, 1, 2
SCALE_BYTES = 2 * 4
"""The gradient of a scale of one element, all-reduced in two: there and back."""


@pytest.fixture(scope="module")
def vgg16() -> Graph:
    return read_graph(shipped_graph("vgg16"))


def product_graph(batch: int, out: int, features: int) -> Graph:
    """y = (x · s) Wᵀ, with a scale s of one element so that x has a gradient."""
    builder = GraphBuilder("product")
    builder.input("x", batch, features)
    builder.parameter("s", 1)
    builder.both("scale", MUL, "x", "s", "a")
    builder.parameter("w", out, features)
    builder.linear("product", "a", "w", "y")
    return builder.graph()


def bytes_of_one_split(graph: Graph) -> dict[int, float]:
    """By hand: what the first split of each variable of the product moves between two.

    Split by batch: W fetched forward and again for dX, dW reduced. By out: X fetched forward and
    again for dW, dX reduced. By in (output reduction): Y reduced, dY fetched.
    """
    size = {name: float(t.size_bytes) for name, t in graph.tensors.items()}
    return {BATCH: 3 * size["w"], OUT: 3 * size["a"], IN: 2 * size["y"]}


def tofu_search(graph: Graph, gpus: int, hardware: str = "dgx-h100") -> tuple[Search, TofuSolution]:
    result = search(Subject.of(graph), load_hardware(hardware), gpus, TOFU)
    assert isinstance(result.solution, TofuSolution)
    return result, result.solution


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        ((4096, 256, 256), BATCH),
        ((256, 4096, 256), OUT),
        ((256, 256, 4096), IN),
        # W and Y of one size: partition-n-reduce wins, it moves Y twice where W moves thrice.
        ((1024, 1024, 1024), IN),
    ],
)
def test_a_product_is_split_by_its_shape(shape: tuple[int, int, int], first: int) -> None:
    graph = product_graph(*shape)
    result, solution = tofu_search(graph, 2)
    assert result.subject.coarsened.groups[1].variables == ("batch", "out", "in")
    assert solution.steps[0].variables[1] == first
    expected = bytes_of_one_split(graph)[first] + SCALE_BYTES
    assert solution.steps[0].total_bytes == pytest.approx(expected)


@pytest.mark.parametrize(
    "shape",
    [
        (4096, 256, 256),
        (512, 1024, 512),
        (1024, 1024, 1024),
        (64, 2048, 512),
        (2048, 64, 128),
        (96, 160, 4096),
    ],
)
def test_steps_are_optimal_and_do_not_get_cheaper(shape: tuple[int, int, int]) -> None:
    """Theorem 1 (δᵢ ≤ δᵢ₊₁) and the optimality that follows, for one product on 16 devices.

    All workers together need p copies of what a variable in p shares does not index.
    """
    graph = product_graph(*shape)
    _, solution = tofu_search(graph, 16)
    moved = [step.total_bytes for step in solution.steps]
    assert len(moved) == 4
    assert all(a <= b for a, b in pairwise(moved))
    cost = bytes_of_one_split(graph)
    least = min(
        sum(cost[v] * (2**times - 1) for v, times in zip(cost, counts, strict=True))
        for counts in product(range(5), repeat=3)
        if sum(counts) == 4
    )
    assert sum(moved) == pytest.approx(least + SCALE_BYTES * 15)


def forced(workers: Workers, variable: int) -> Workers:
    """The product may be split by one variable only."""
    scale, heavy = workers.groups
    heavy = replace(heavy, legal=lambda v, parts: v == variable, pattern=variable)
    return Workers([scale, heavy], workers.stored, workers.count, workers.parts)


def test_the_order_of_the_steps_does_not_matter() -> None:
    """Commutativity: P then P' moves as much as P' then P, whatever is split."""
    graph = product_graph(1024, 512, 256)
    result, _ = tofu_search(graph, 8)
    cost = bytes_of_one_split(graph)
    for variables in product((BATCH, OUT, IN), repeat=3):
        workers, moved = whole_graph(result.problem), 0.0
        for variable in variables:
            step = partition(forced(workers, variable), 2, _core.solve, lambda: None)
            workers = divide(workers, step)
            moved += step.total_bytes
        shares = {v: 2 ** variables.count(v) for v in cost}
        expected = sum(cost[v] * (shares[v] - 1) for v in cost) + 7 * SCALE_BYTES
        assert moved == pytest.approx(expected), variables


def _only(kind: str, dim: int) -> OperatorSemantics:
    """An operator that can be split along one dimension alone."""
    access: dict[int, Access] = {0: Access(dim)}
    variable = IndexVariable(kind, 8)
    return OperatorSemantics(
        (variable,), (access,), (access,), (False,), (False,), 1.0, 0.0, "heavy"
    )


def test_theorem_1_does_not_hold_where_tensors_must_be_re_partitioned() -> None:
    """Rows, then columns: four devices exchange 3/4 of the matrix, half of it in step 1.

    The paper claims δᵢ ≤ δᵢ₊₁ of every graph. Counted element by element, each share of a
    quarter lacks three quarters: 3/4 |t| in all, 1/2 |t| at the first step, 1/4 |t| at the second.
    """
    tensors = {
        name: Tensor(name, (8, 8), "float32", role)
        for name, role in (("x", "input"), ("t", "activation"), ("y", "output"))
    }
    operators = (
        Operator("rows", "mylib.rows.default", ("x",), ("t",), {}, ""),
        Operator("columns", "mylib.columns.default", ("t",), ("y",), {}, ""),
    )
    graph = Graph("corner", tensors, operators)
    semantics = {"rows": _only("rows", 0), "columns": _only("columns", 1)}
    coarsened = coarsen(graph, lambda op: semantics[op.name])
    subject = Subject(graph, "corner", coarsened, Patterns(coarsened))
    result = search(subject, load_hardware("dgx-h100"), 4, TOFU)
    assert isinstance(result.solution, TofuSolution)
    size = tensors["t"].size_bytes
    assert [s.total_bytes for s in result.solution.steps] == [size / 2, size / 4]


@pytest.mark.parametrize(
    ("gpus", "factors"), [(1, []), (6, [3, 2]), (7, [7]), (8, [2, 2, 2]), (12, [3, 2, 2])]
)
def test_other_counts_are_factorised_largest_first(
    vgg16: Graph, gpus: int, factors: list[int]
) -> None:
    _, solution = tofu_search(vgg16, gpus)
    assert [step.k for step in solution.steps] == factors


def test_on_large_meshes_a_merged_axis_is_one_step() -> None:
    graph = product_graph(4096, 4096, 4096)
    result, solution = tofu_search(graph, 64)
    sizes = [axis.size for axis in result.problem.context.mesh.axes]
    assert [step.k for step in solution.steps] == sorted(sizes, reverse=True)
    shares = dict.fromkeys((BATCH, OUT, IN), 1)
    for step in solution.steps:
        shares[step.variables[1]] *= step.k
    cost = bytes_of_one_split(graph)
    moved = sum(cost[v] * (shares[v] - 1) for v in cost) + 63 * SCALE_BYTES
    assert sum(s.total_bytes for s in solution.steps) == pytest.approx(moved)


def test_every_worker_stores_its_share_alone(vgg16: Graph) -> None:
    """§5: what is stored is 1/k of one device's for every plan."""
    one, _ = tofu_search(vgg16, 1, "dgx-v100-16gb")
    _, solution = tofu_search(vgg16, 8, "dgx-v100-16gb")
    assert solution.stored_bytes == pytest.approx(float(one.memory_bytes[0]) / 8, rel=0.005)


def test_nothing_that_can_be_split_is_replicated(vgg16: Graph) -> None:
    result, _ = tofu_search(vgg16, 8, "dgx-v100-16gb")
    for cost, choice in zip(result.problem.costs, result.solution.choices[0], strict=True):
        assert (cost.assignment[choice] >= 0).all()


def test_the_answer_is_one_point_that_claims_nothing(vgg16: Graph) -> None:
    document = frontier(vgg16, load_hardware("dgx-v100-16gb"), 8, TOFU)
    assert len(document["points"]) == 1
    assert document["certificate"] == {"exact": False, "epsilon": None, "status": "heuristic"}
    assert document["search"]["method"] == "tofu"
    steps = document["search"]["tofu"]["steps"]
    assert [(s["axis"], s["worker_groups"]) for s in steps] == [("m0", 2), ("m1", 2), ("m2", 2)]


def test_its_plan_adds_up(vgg16: Graph) -> None:
    document = plan(vgg16, load_hardware("pcie-v100-8"), 6, options=TOFU)
    totals, predicted = explain(document)["totals"], document["predicted"]
    assert totals["time_s"] == pytest.approx(predicted["time_s"])
    assert totals["memory_bytes"] == pytest.approx(predicted["memory_bytes"], abs=1)
    assert predicted["gap"] is None
    points = curve(vgg16, load_hardware("dgx-h100"), 2, TOFU)["points"]
    assert [p["gap"] for p in points] == [None, None]


def test_where_its_strategy_does_not_fit_that_is_the_reason(vgg16: Graph) -> None:
    small = Options(overlap=False, method="tofu", memory_limit_bytes=1e9)
    with pytest.raises(Infeasible, match=r"Tofu's strategy needs 2\.\d GiB per GPU"):
        plan(vgg16, load_hardware("dgx-v100-16gb"), 8, options=small)


def test_limits_and_cancelling_are_honoured(vgg16: Graph) -> None:
    subject, hardware = Subject.of(vgg16), load_hardware("dgx-v100-16gb")
    with pytest.raises(SolverError, match="time limit"):
        search(subject, hardware, 8, replace(TOFU, time_limit_s=1e-6))
    stages = []

    def listener(stage: str, fraction: float) -> bool:
        stages.append(stage)
        return not stage.startswith("step 2")

    with pytest.raises(Cancelled):
        search(subject, hardware, 8, TOFU, listener)
    assert any(stage == "step 2 of 3" for stage in stages)
    assert not any(stage == "step 3 of 3" for stage in stages)


def test_a_problem_file_has_no_tensors_to_split() -> None:
    assert "tofu" not in SOLVER_METHODS
    problem = problem_from_json(
        b'{"schema":"shardwise.problem/1","edges":[],'
        b'"operators":[{"name":"a","choices":[{"memory_bytes":1,"time_s":1}]}]}'
    )
    with pytest.raises(BadInput, match="unknown method 'tofu'"):
        solve_problem(problem, method="tofu")
