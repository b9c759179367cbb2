"""Why not a plan's neighbours: each has its property, its figures are replayed, none is faster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from harness.answers import document as document_of
from harness.graph_builder import mlp
from harness.page.rendered import rendered
from shardwise import documents
from shardwise.answers import Options, explain, plan
from shardwise.answers.label import Labels
from shardwise.answers.neighbours import Named, Neighbourhood, with_neighbours
from shardwise.answers.roles import Role
from shardwise.capture import shipped_graph
from shardwise.cli.explain import explain as explain_command
from shardwise.cost.options import quiet
from shardwise.documents import Plan
from shardwise.graph import Graph, read_graph
from shardwise.hardware import Devices, load_hardware
from shardwise.replay.owner_costs import OwnerCosts
from shardwise.search.chosen import Chosen, fastest
from shardwise.search.elimination import cheapest
from shardwise.search.fitting import search_fitting
from shardwise.search.neighbours import joined
from shardwise.search.search import Search, Subject

GPUS = 8
H100 = load_hardware("dgx-h100")
SEARCHED = Options(recompute="auto", micro_batches=(1, 2, 4), framework="eager")
TIGHT = replace(SEARCHED, micro_batches=(1,), memory_limit_bytes=7 * 2**30)
"""Less than GPT-2 needs without recomputation."""


@pytest.fixture(scope="module")
def gpt2() -> Graph:
    return read_graph(shipped_graph("gpt2"))


@pytest.fixture(scope="module")
def searches(gpt2: Graph) -> list[Search]:
    return search_fitting(Subject.of(gpt2), H100, Devices.alike(GPUS), SEARCHED)


@pytest.fixture(scope="module")
def named(searches: list[Search]) -> list[Named]:
    return Neighbourhood(quiet).of(answer_of(searches), searches)


@pytest.fixture(scope="module")
def tight(gpt2: Graph) -> Plan:
    return plan(gpt2, H100, GPUS, options=TIGHT)


def answer_of(searches: Sequence[Search]) -> Chosen:
    answer = fastest(searches)
    assert answer is not None
    return answer


def with_points(search: Search, points: slice) -> Search:
    """Returns a search that has found no more than some of its points."""
    arrays = ("memory_bytes", "time_s", "choices", "edge_choices")
    some = {name: getattr(search.solution, name)[points] for name in arrays}
    return replace(search, solution=replace(search.solution, **some))


def model_degrees(one: Named) -> set[int]:
    """Returns into how many shares the products of a strategy divide the model's dimensions."""
    search = one.strategy.search
    sizes = search.problem.context.mesh.sizes
    degrees = set()
    for g, roles in enumerate(Labels(search.problem).groups):
        if roles.product:
            row = search.problem.costs[g].assignment[one.strategy.choices[g]]
            split = [v >= 0 and roles.roles[v] is Role.MODEL for v in row.tolist()]
            degrees.add(int(np.where(split, sizes, 1).prod()))
    return degrees


def recomputed(one: Named) -> list[bool]:
    """Returns what each group does of those that may run forward again."""
    costs = one.strategy.search.problem.costs
    return [
        bool(cost.recompute[k])
        for cost, k in zip(costs, one.strategy.choices, strict=True)
        if cost.recompute.any()
    ]


def test_neighbours_have_their_properties(named: list[Named]) -> None:
    of = {one.name: one for one in named}
    assert list(of) == ["pure FSDP", "TP 2", "recomputation"]
    assert of["pure FSDP"].label.startswith(f"FSDP {GPUS}")
    assert of["TP 2"].label.startswith("TP 2 × ")
    assert model_degrees(of["TP 2"]) == {2}
    assert model_degrees(of["pure FSDP"]) == {1}
    assert all(recomputed(of["recomputation"]))
    assert "recompute in all 12 layers" in of["recomputation"].label


def test_their_figures_are_those_of_a_replay(named: list[Named]) -> None:
    for one in named:
        strategy = one.strategy
        again = strategy.search.replayer.replay(
            strategy.choices[None, :], strategy.edge_choices[None, :]
        )
        shown = one.document()
        assert shown.replayed_time_s == again.time_s[0]
        assert shown.peak_bytes == round(again.peak_bytes[0])
        assert shown.fits == (again.peak_bytes[0] <= strategy.search.limit_bytes)
        assert shown.micro_batches == strategy.search.micro_batches


def test_degrees_are_those_beside_the_answers(searches: list[Search], named: list[Named]) -> None:
    """Of a strategy with TP 2 they are TP 4 and none, and recomputation is what it lacks."""
    two = next(one for one in named if one.name == "TP 2").strategy
    search = joined(with_points(two.search, slice(0, 0)), two)
    others = [search if s is two.search else s for s in searches]
    around = {one.name: one for one in Neighbourhood(quiet).of(Chosen(search, 0), others)}
    assert {"pure FSDP", "TP 4", "no TP"} <= set(around)
    assert model_degrees(around["TP 4"]) == {4} and model_degrees(around["no TP"]) == {1}
    assert around["no TP"].strategy.time_s < two.time_s < around["TP 4"].strategy.time_s


def test_a_faster_neighbour_is_the_answer(searches: list[Search]) -> None:
    """From searches that know only what needs the least memory."""
    slow = [with_points(search, slice(0, 1)) for search in searches]
    before = answer_of(slow)
    better, neighbours = with_neighbours(slow, quiet)
    after = answer_of(better)
    assert after.replayed_time_s < before.replayed_time_s
    assert neighbours
    assert all(not n.fits or n.replayed_time_s >= after.replayed_time_s for n in neighbours)
    proof = after.search.proof
    assert proof is not None
    gap = after.replayed_time_s / proof.bound_s(after.search.limit_bytes) - 1.0
    assert after.search.solution.epsilon == pytest.approx(gap)


def test_a_plan_has_neighbours_that_are_not_faster(tight: Plan) -> None:
    assert tight.neighbours
    of = {one.name: one for one in tight.neighbours}
    assert set(of) == {"pure FSDP", "TP 2", "no recomputation", "more room"}
    assert not of["no recomputation"].fits
    assert "recompute" not in of["no recomputation"].label
    assert of["no recomputation"].peak_bytes > tight.memory_limit_bytes
    assert of["pure FSDP"].fits and "recompute" in of["pure FSDP"].label
    for one in tight.neighbours:
        assert not one.fits or one.replayed_time_s >= tight.predicted.replayed_time_s
    made = json.loads(msgspec.json.encode(tight))
    jsonschema.validate(made, documents.json_schema("plan"))
    assert documents.read(made, Plan) == tight


def test_an_explanation_says_why_not(tight: Plan) -> None:
    explanation = explain(tight)
    assert explanation.neighbours
    of = {one.name: one for one in explanation.neighbours}
    fsdp, without = of["pure FSDP"], of["no recomputation"]
    assert fsdp.text.startswith(f"Pure FSDP: slower by {fsdp.slower:.1%} (")
    assert fsdp.text.endswith(f" GiB): {fsdp.label}")
    step_s = tight.predicted.replayed_time_s
    assert fsdp.slower == pytest.approx(fsdp.replayed_time_s / step_s - 1.0)
    assert without.text.startswith("No recomputation: does not fit (needs ")
    assert without.text.endswith(f" of 7.0 GiB): {without.label}")
    made = json.loads(msgspec.json.encode(explanation))
    jsonschema.validate(made, documents.json_schema("explanation"))


def test_a_plan_of_an_earlier_version_is_explained_as_before(tight: Plan) -> None:
    old = document_of(tight)
    del old["neighbours"]
    before = document_of(explain(documents.read(old, Plan)))
    now = document_of(explain(tight))
    assert "neighbours" not in before
    del now["neighbours"]
    assert before == now


def test_neighbours_are_printed_and_on_the_page(tight: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(tight))
    printed = CliRunner().invoke(explain_command, [str(path)], catch_exceptions=False).output
    assert "Why not" in printed and "Pure FSDP: slower by" in printed
    page = rendered("plan", tight)
    assert "Why not…" in page and "does not fit" in page
    old = document_of(tight)
    del old["neighbours"]
    assert "Why not…" not in rendered("plan", old)


@pytest.mark.parametrize(
    ("objective", "options"),
    [("mini-time", Options(overlap=False)), ("mini-memory", Options(overlap=True))],
)
def test_without_a_search_near_the_limit_there_are_none(objective: str, options: Options) -> None:
    made = plan(mlp(), load_hardware("l4"), 2, objective=objective, options=options)
    assert "neighbours" not in document_of(made)


def test_a_search_that_is_to_end_has_none(gpt2: Graph) -> None:
    stopped = plan(
        gpt2,
        H100,
        GPUS,
        options=replace(SEARCHED, micro_batches=(1,)),
        progress=lambda stage, _: stage != "neighbours",
    )
    assert stopped.neighbours == [] and stopped.certificate.status != "cancelled"


def test_an_elimination_of_some_configurations(searches: list[Search]) -> None:
    """It finds what it finds where all others cost more than any strategy."""
    search = next(search for search in searches if search.charges is not None)
    assert search.charges is not None
    problem, charges = search.problem, search.charges.time
    draw = np.random.default_rng(5)
    masks = {id(cost): draw.random(len(cost.time_s)) < 0.3 for cost in problem.costs}
    for mask in masks.values():
        mask[draw.integers(len(mask))] = True
    allowed = [masks[id(cost)] for cost in problem.costs]
    dear: dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]] = {}
    for mask, costs in zip(allowed, charges.groups, strict=True):
        dear.setdefault(id(costs), np.where(mask, costs, costs + 1e3))
    others = OwnerCosts(charges.constant, [dear[id(c)] for c in charges.groups], charges.edges)
    some, whole = cheapest(problem, charges, allowed=allowed), cheapest(problem, others)
    assert all(mask[k] for mask, k in zip(allowed, some.choices, strict=True))
    costs_of = [
        charges.of(problem, one.choices[None, :], one.edge_choices[None, :])[0]
        for one in (some, whole)
    ]
    assert costs_of[0] == pytest.approx(costs_of[1])
    assert some.bound == pytest.approx(whole.bound)
