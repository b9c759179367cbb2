"""The search by replayed time: its bounds against every strategy, its answers against the best."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.answers import curve, plan
from harness.graph_builder import GraphBuilder
from harness.models.comparison_models import hardware
from harness.models.shortened import shortened
from harness.strategies import problem_of, random_strategies
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import quiet
from shardwise.cost.pins import parse_pin
from shardwise.errors import BadInput, Cancelled
from shardwise.graph import Graph, read_graph
from shardwise.hardware import Devices, Hardware, load_hardware
from shardwise.replay.bound import StepBound, with_host
from shardwise.replay.linear import LinearStep
from shardwise.replay.moments import Moments
from shardwise.replay.replay import Replayed, Replayer
from shardwise.search import count
from shardwise.search.fitting import search_frontier
from shardwise.search.game import Bounding, Game
from shardwise.search.improve import Improver, Pool
from shardwise.search.replayed import search_replayed
from shardwise.search.search import Subject

ROUNDING = 1e-9

CASES = [
    pytest.param("gpt2", "dgx-h100", 8, 1, "never", id="gpt2"),
    pytest.param("gpt2", "dgx-a100-80gb", 16, 8, "auto", id="gpt2-two-nodes"),
    pytest.param("vgg16", "pcie-v100-8", 4, 1, "auto", id="vgg16"),
]


def step_of(model: str, machine: str, gpus: int, micro_batches: int, recompute: str) -> Replayer:
    graph = read_graph(shipped_graph(model)) if model == "vgg16" else shortened(model, 4)
    options = Options(recompute=recompute, max_configurations=60)
    problem = problem_of(graph, load_hardware(machine), gpus, options, micro_batches)
    return Replayer(problem, options.step)


@pytest.mark.parametrize(("model", "machine", "gpus", "micro_batches", "recompute"), CASES)
def test_no_strategy_is_below_its_bounds(
    model: str, machine: str, gpus: int, micro_batches: int, recompute: str
) -> None:
    """Longest paths of any strategy, and what is surely held, bound every other strategy."""
    replayer = step_of(model, machine, gpus, micro_batches, recompute)
    choices, edges = random_strategies(replayer.problem, 40, np.random.default_rng(3))
    replayed = replayer.replay(choices, edges)
    values = replayer.values(choices, edges)
    durations = with_host(values[0], replayer.host_times(choices, edges))
    paths = StepBound(replayer).longest(durations)
    assert (paths.length_s <= replayed.time_s * (1 + ROUNDING)).all()
    assert np.median(replayed.time_s / paths.length_s) < 1.1
    of_others = durations @ paths.weights.T
    assert (of_others <= replayed.time_s[:, None] * (1 + ROUNDING)).all()
    moments = Moments(replayer)
    tasks = {moments.last_backward, *(moments.task_of(int(t)) for t in replayed.peak_task[:4])}
    for task in tasks:
        held = moments.held(task).of(replayer.problem, choices, edges)
        assert (held <= replayed.peak_bytes * (1 + ROUNDING)).all()
        assert np.median(held / replayed.peak_bytes) > 0.2


@pytest.mark.parametrize(("model", "machine", "gpus", "micro_batches", "recompute"), CASES)
def test_weighted_tasks_are_costs_of_their_owners(
    model: str, machine: str, gpus: int, micro_batches: int, recompute: str
) -> None:
    replayer = step_of(model, machine, gpus, micro_batches, recompute)
    draw = np.random.default_rng(4)
    choices, edges = random_strategies(replayer.problem, 10, draw)
    values = replayer.values(choices, edges)
    durations = with_host(values[0], replayer.host_times(choices, edges))
    weights = np.floor(draw.uniform(0.0, 3.0, replayer.tasks + 1) * 2**20) / 2**20
    costs = LinearStep(replayer).weighted(weights)
    expected = pytest.approx(durations @ weights, rel=1e-9)
    assert costs.of(replayer.problem, choices, edges) == expected
    busy = replayer.replay(choices, edges)
    sums = LinearStep(replayer).weighted(StepBound(replayer).sums())
    assert sums.of(replayer.problem, choices, edges) == pytest.approx(
        busy.compute_s + busy.communication_s, rel=1e-9
    )


def random_chain(draw: np.random.Generator) -> Graph:
    """Two products of random sizes, with or without a ReLU and a sum with the input."""
    batch, width, hidden = (int(2 ** draw.integers(low, 9)) for low in (2, 3, 3))
    builder = GraphBuilder("chain")
    last = builder.input("x", batch, width)
    builder.parameter("w1", hidden, width)
    last = builder.linear("one", last, "w1", "h")
    if draw.random() < 0.5:
        last = builder.relu("act", last, "a", "")
    builder.parameter("w2", width, hidden)
    builder.linear("two", last, "w2", "y")
    return builder.graph()


def random_machine(draw: np.random.Generator) -> Hardware:
    machine = hardware(int(draw.integers(1, 3)))
    device = machine.devices[0]
    bandwidth = device.memory_bandwidth_bytes_per_s * 2.0 ** draw.integers(-3, 4)
    slower = replace(device, memory_bandwidth_bytes_per_s=bandwidth)
    return replace(machine, devices=(slower, *machine.devices[1:]))


def every_strategy(problem: SearchProblem) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    choices, edges = [], []
    for rows in product(*(range(len(cost.time_s)) for cost in problem.costs)):
        counts = [
            int(e.table.count[e.table.cell(rows[e.source], rows[e.target])]) for e in problem.edges
        ]
        for alternatives in product(*map(range, counts)):
            choices.append(rows)
            edges.append(alternatives)
    return np.array(choices, dtype=np.uint32), np.array(edges, dtype=np.uint32)


def everything(problem: SearchProblem, options: Options) -> Replayed:
    return Replayer(problem, options.step).replay(*every_strategy(problem))


def against_all(seed: int) -> tuple[float, float, float]:
    """Returns bound, answer and true optimum of a random problem under a random limit."""
    draw = np.random.default_rng(seed)
    graph, machine = random_chain(draw), random_machine(draw)
    options = Options(
        zero=(0, 3) if draw.random() < 0.5 else (0, 1, 2, 3),
        recompute="auto" if draw.random() < 0.5 else "never",
    )
    micro_batches = int(draw.choice([1, 2, 4]))
    problem = problem_of(graph, machine, 2, options, micro_batches)
    all_of_it = everything(problem, options)
    limit = float(np.quantile(all_of_it.peak_bytes, draw.choice([0.0, 0.1, 0.5, 1.0])))
    if draw.random() < 0.1:
        limit *= 0.9
    fits = all_of_it.peak_bytes <= limit
    best = float(all_of_it.time_s[fits].min(initial=inf))
    options = replace(options, memory_limit_bytes=limit, micro_batches=(micro_batches,))
    (search,) = search_replayed(Subject.of(graph), machine, Devices.alike(2), options)
    assert search.proof is not None
    answer = float(search.replayed.time_s[search.fits].min(initial=inf))
    return search.proof.bound_s(limit), answer, best


def check(seeds: range) -> None:
    found = np.array([against_all(seed) for seed in seeds])
    bound, answer, best = found.T
    assert (bound <= best * (1 + ROUNDING)).all()
    assert (answer >= best * (1 - ROUNDING)).all()
    assert np.isinf(answer).tolist() == np.isinf(best).tolist()
    some = np.isfinite(best)
    assert np.mean(answer[some] <= best[some] * (1 + ROUNDING)) > 0.9
    assert np.mean(answer[some] <= best[some] * 1.05) > 0.99
    assert (answer[some] <= best[some] * 1.15).all()
    assert np.median(best[some] / bound[some]) < 1.02


def test_answers_against_all_strategies_of_small_problems() -> None:
    check(range(40))


@pytest.mark.full
def test_answers_against_all_strategies_of_many_small_problems() -> None:
    check(range(40, 500))


def test_plans_and_curves_by_replayed_time_say_their_gap() -> None:
    graph, machine = shortened("gpt2", 4), load_hardware("dgx-h100")
    sums = plan(graph, machine, 4, options=Options(overlap=False))
    options = Options(micro_batches=(1,), simplest="never")
    replayed = plan(graph, machine, 4, options=options)
    predicted = replayed["predicted"]
    assert predicted["replayed_time_s"] < sums["predicted"]["replayed_time_s"]
    assert 0.0 <= predicted["gap"] < 0.02
    certificate = replayed["certificate"]
    assert certificate["epsilon"] == predicted["gap"] and not certificate["exact"]
    bound = certificate["time_lower_bound_s"]
    assert predicted["replayed_time_s"] == pytest.approx(bound * (1 + predicted["gap"]))
    points = curve(graph, machine, 4, options=options)["points"]
    assert points[-1]["replayed_time_s"] == predicted["replayed_time_s"]
    assert [point["gap"] < 0.02 for point in points] == [True] * 4


def test_the_same_question_has_the_same_answer() -> None:
    graph, machine = shortened("gpt2", 2), load_hardware("dgx-h100")
    options = Options(micro_batches=(1, 2), memory_limit_bytes=4 * 2**30)
    one, two = (
        search_replayed(Subject.of(graph), machine, Devices.alike(4), options)[0] for _ in range(2)
    )
    assert one.proof == two.proof
    assert one.solution.choices.tolist() == two.solution.choices.tolist()
    assert one.solution.edge_choices.tolist() == two.solution.edge_choices.tolist()


def test_that_nothing_fits_is_proven() -> None:
    options = Options(memory_limit_bytes=2**28)
    graph, machine = shortened("gpt2", 4), load_hardware("dgx-h100")
    searches = search_replayed(Subject.of(graph), machine, Devices.alike(2), options)
    assert len(searches) == len(options.counts(graph.batch_size)) > 1
    for search in searches:
        assert search.proof is not None
        assert search.proof.bound_s(options.limit_for(0.0)) == inf
        assert search.proof.bound_s(search.proof.least_bytes) < inf
        assert not search.fits.any()


def test_numbers_of_micro_batches_are_given_up_only_where_they_are_no_faster() -> None:
    graph, machine = read_graph(shipped_graph("gpt2")), load_hardware("dgx-h100")
    options = Options(memory_limit_bytes=12 * 2**30)
    searches = search_replayed(Subject.of(graph), machine, Devices.alike(4), options)
    counts = options.counts(graph.batch_size)
    assert sorted(search.micro_batches for search in searches) == list(counts)
    best_s = min(float(s.replayed.time_s[s.fits].min(initial=inf)) for s in searches)
    empty = [search for search in searches if len(search.time_s) == 0]
    assert searches[len(searches) - len(empty) :] == empty and 0 < len(empty) < len(searches)
    for search in empty:
        assert search.proof is not None and search.proof.bound_s(search.limit_bytes) >= best_s
        assert len(search.replayed.time_s) == 0 and not search.fits.any()
    alone = replace(options, micro_batches=(empty[0].micro_batches,))
    (other,) = search_replayed(Subject.of(graph), machine, Devices.alike(4), alone)
    assert best_s <= float(other.replayed.time_s[other.fits].min(initial=inf))


@pytest.mark.full
def test_what_may_be_chosen_never_makes_the_answer_slower() -> None:
    """Each wider space, more memory and a faster link is at least as fast, but for the gap."""
    graph = read_graph(shipped_graph("gpt2"))
    machine = load_hardware("dgx-a100-80gb").with_devices_per_node(2)
    plain = Options(zero=(0,), recompute="never", micro_batches=(1,), memory_limit_bytes=20 * 2**30)
    wider = (
        replace(plain, zero=(0, 1, 2, 3)),
        replace(plain, zero=(0, 1, 2, 3), recompute="auto"),
        replace(plain, micro_batches=(1, 2)),
        replace(plain, memory_limit_bytes=40 * 2**30),
    )

    def best(options: Options, on: Hardware) -> float:
        found = search_replayed(Subject.of(graph), on, Devices.alike(4), options)
        return min(float(s.replayed.time_s[s.fits].min(initial=inf)) for s in found)

    first = best(plain, machine)
    assert np.isfinite(first)
    assert all(best(options, machine) <= first * 1.01 for options in wider)
    faster = machine.with_network(2 * machine.levels[-1].bandwidth_bytes_per_s)
    assert best(plain, faster) <= first * 1.01


def test_rules_leave_out_numbers_of_micro_batches_that_are_not_named() -> None:
    """A rule that splits the batch needs as many samples; only named numbers are then an error."""
    graph, machine = shortened("gpt2", 2), load_hardware("dgx-h100")
    options = Options(pins=(parse_pin("inside=batch"),), zero=(3,), recompute="never")
    searches = search_replayed(Subject.of(graph), machine, Devices.alike(4), options)
    assert [s.micro_batches for s in searches if s.micro_batches > 16] == []
    assert min(s.micro_batches for s in searches) == 1
    with pytest.raises(BadInput, match="leaves no configuration"):
        search_replayed(
            Subject.of(graph), machine, Devices.alike(4), replace(options, micro_batches=(1, 32))
        )


def test_a_frontier_that_is_not_tracked_in_time_is_done_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(count, "MOST_TRACKING", 0)
    options = Options(micro_batches=(1, 2))
    graph, machine = shortened("gpt2", 2), load_hardware("dgx-h100")
    searches = search_frontier(Subject.of(graph), machine, Devices.alike(4), options)
    assert sum(len(search.time_s) for search in searches) > 3


def test_a_game_that_is_out_of_time_leaves_a_strategy_to_mix() -> None:
    """A query of another number of micro-batches bounds it before there is an equilibrium."""
    replayer = step_of("gpt2", "dgx-h100", 8, 1, "never")
    options = Options(recompute="never")
    first, second = (Game(replayer, Bounding.of(replayer), options, quiet) for _ in range(2))
    met = first.met(*random_strategies(replayer.problem, 5, np.random.default_rng(0)))
    bounded = first.play(met, inf, most_queries=2)
    assert second.try_first(first.best_query(inf))
    outcome = second.play(met, inf, time_limit_s=0.0)
    assert not outcome.mix.any() and bounded.mix.any()
    [mixed] = Improver(replayer, outcome.charges, inf).mixes(outcome.met, outcome.mix)
    assert (mixed == outcome.met.choices[outcome.met.time_s.argmin()]).all()
    several = Improver(replayer, bounded.charges, inf).mixes(bounded.met, bounded.mix)
    assert several.shape[1] == len(mixed)


def test_a_search_that_is_stopped_has_what_other_numbers_have_found() -> None:
    """Also where it is stopped while the next number of micro-batches is costed."""
    seen: list[str] = []

    def stop(stage: str, _: float) -> bool:
        seen.append(stage)
        return not (stage == "costs" and "bounding" in seen)

    graph, machine = shortened("gpt2", 2), load_hardware("dgx-v100-16gb")
    options = Options(micro_batches=(1, 2))
    searches = search_replayed(Subject.of(graph), machine, Devices.alike(4), options, stop)
    assert [len(search.time_s) > 0 for search in searches] == [True, False]
    assert {search.solution.status for search in searches[:1]} == {"cancelled"}
    with pytest.raises(Cancelled):
        search_replayed(
            Subject.of(graph),
            machine,
            Devices.alike(4),
            options,
            lambda stage, _: stage != "costs",
        )


def test_changes_that_gain_are_made_together() -> None:
    """The one that gains most first, none to a group that another has changed, and none that
    gains nothing or does not fit."""
    replayer = step_of("gpt2", "dgx-h100", 8, 1, "never")
    best, edges = random_strategies(replayer.problem, 1, np.random.default_rng(1))
    changed = {0: 3, 1: 5, 2: 3, 3: 7, 4: 9, 5: 11}
    made = np.repeat(best, len(changed), axis=0)
    for row, group in changed.items():
        made[row, group] += 1 + row
    times = np.array([0.9, 0.7, 0.8, 0.95, 1.2, 0.6])
    peaks = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 3.0])
    tried = Pool(made, np.repeat(edges, len(changed), axis=0), peaks, times)
    charges = LinearStep(replayer).weighted(StepBound(replayer).sums())
    improver = Improver(replayer, charges, 2.0)
    two, three = improver.together(best[0], tried, (0.0, 1.0))
    assert {g: int(two[g]) - int(best[0, g]) for g in np.flatnonzero(two != best[0])} == {
        5: 2,
        3: 3,
    }
    assert (np.flatnonzero(three != two) == [7]).all()
    assert not len(improver.together(best[0], tried, (0.0, 0.65)))
