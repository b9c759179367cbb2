"""The time of searches on devices of several kinds: its limit, and what is computed once."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from harness.graph_builder import GraphBuilder, mlp
from harness.kinds import FAST, SLOW, everything, mixed_search, profile
from harness.strategies import random_strategies
from shardwise.answers import Options, frontier, plan
from shardwise.cost.group_work import GroupWork
from shardwise.cost.options import Progress, quiet
from shardwise.cost.space import EVEN
from shardwise.cost.terms import GroupTerms
from shardwise.errors import SolverError
from shardwise.graph import Graph
from shardwise.hardware import Blocks, Devices, Hardware
from shardwise.replay.mixed.replay import MixedReplayer
from shardwise.search import replayed, watch
from shardwise.search.chosen import fastest
from shardwise.search.group_alone import fastest_alone
from shardwise.search.mixed.search import MixedDraft, MixedSearch, limits_of
from shardwise.search.replayed import search_replayed
from shardwise.search.search import Subject
from shardwise.search.watch import OutOfTime, Watch

KINDS = {"fast": FAST, "slow": SLOW}
TWO_KINDS = [("a", "fast", 1, 2), ("b", "slow", 2, 2)]


def layers(layers: int, batch: int, width: int) -> Graph:
    builder = GraphBuilder(f"{layers} layers")
    data = builder.input("x", batch, width)
    for i in range(layers):
        weight = builder.parameter(f"w{i}", width, width)
        data = builder.relu(f"act{i}", builder.linear(f"fc{i}", data, weight, f"h{i}"), f"a{i}")
    return builder.graph()


@pytest.fixture(scope="module")
def two_kinds() -> Hardware:
    return profile(TWO_KINDS, KINDS)


@pytest.fixture(scope="module")
def searched(two_kinds: Hardware) -> MixedSearch:
    return mixed_search(layers(3, 16, 512), two_kinds, Options())


def noting(stages: list[str]) -> Progress:
    """Returns progress that notes its stages and goes on."""

    def note(stage: str, _: float) -> bool:
        stages.append(stage)
        return True

    return note


def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a second pass whenever a search looks at the time."""
    clock = count()
    monkeypatch.setattr(watch, "monotonic", lambda: float(next(clock)))


def test_whenever_the_limit_passes_there_is_an_answer_or_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit passes at every stage in turn; later limits never find less than nothing."""
    monkeypatch.setattr(replayed, "FIRST_ANSWER_S", 0.0)
    hardware, graph = profile([("a", "fast", 1, 1), ("b", "slow", 1, 1)], KINDS), mlp()
    best = plan(graph, hardware, "a=1,b=1", options=Options(micro_batches=(1, 2)))
    answered: list[bool] = []
    for limit_s in (2, 10, 20, 40, 80, 160, 320, 640, 1280, 2560):
        ticking(monkeypatch)
        options = Options(micro_batches=(1, 2), time_limit_s=limit_s)
        try:
            found = plan(graph, hardware, "a=1,b=1", options=options)
        except SolverError as reason:
            assert "the time limit passed before" in str(reason)
            answered.append(False)
        else:
            slower = found.predicted.replayed_time_s / best.predicted.replayed_time_s
            assert slower >= 1.0 - 1e-9
            answered.append(True)
    assert answered == sorted(answered)
    assert answered[-1] and not answered[0]


def test_a_first_strategy_is_replayed_however_short_the_limit(two_kinds: Hardware) -> None:
    graph, options = layers(3, 16, 512), Options(micro_batches=(1, 2), time_limit_s=1e-6)
    found = plan(graph, two_kinds, everything(two_kinds), options=options)
    assert found.certificate.status == "budget"
    assert found.predicted.replayed_time_s >= found.certificate.time_lower_bound_s
    whole = frontier(graph, two_kinds, everything(two_kinds), options)
    assert whole.points and whole.certificate.status == "budget"


def test_costs_end_with_the_limit(monkeypatch: pytest.MonkeyPatch, two_kinds: Hardware) -> None:
    """The time is looked at while costs are computed, and nothing is computed after the limit."""
    looked: list[str] = []

    def costed(limit_s: float) -> None:
        ticking(monkeypatch)
        strict = Watch(noting(looked), limit_s, strict=True)
        subject, bundle = Subject.of(layers(3, 16, 512)), everything(two_kinds)
        draft = MixedDraft.of(subject, two_kinds, bundle, Options(), strict.costing, 1)
        assert draft.joined(strict.costing).replayer is not None

    costed(1e6)
    every = len(looked)
    assert every > 10
    for limit_s in range(1, every - 1, 3):
        looked.clear()
        with pytest.raises(OutOfTime):
            costed(limit_s)
        assert len(looked) <= limit_s + 1
    looked.clear()
    lenient = Watch(noting(looked), 1.0)
    assert all(lenient.costing("costs", 0.5) for _ in range(3))


def test_costs_may_be_computed_beyond_the_part_of_one_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticking(monkeypatch)
    whole = Watch(quiet, 50.0, strict=True)
    part = whole.within(0.1)
    for _ in range(10):
        part.costing("costs", 0.0)
    assert part.is_over and not part.again(1.0, whole).is_over
    with pytest.raises(OutOfTime):
        for _ in range(50):
            part.costing("costs", 0.0)


def test_places_that_share_layouts_have_the_terms_of_their_own(searched: MixedSearch) -> None:
    problem = searched.problem
    first, *others = [place.context for place in (*problem.places, problem.joins)]
    for pattern, cost in zip(problem.patterns, problem.costs, strict=True):
        shared = GroupWork(first, pattern, cost.assignment, cost.proportion)
        _ = (shared.moves, shared.loads, shared.kept_still)
        for context in others:
            alone = GroupTerms(GroupWork(context, pattern, cost.assignment, cost.proportion))
            other = GroupTerms(shared.at(context))
            for name in ("passes_compute_s", "passes_communication_s", "kept_bytes"):
                assert (getattr(other, name)() == getattr(alone, name)()).all(), name
            for stage in (0, 3):
                own, same = (
                    terms.parameters(stage, 0, cost.zero_axes).bytes for terms in (alone, other)
                )
                assert (own == same).all()
    sizes = [shared.at(context).sizes for context in (first, *others)]
    assert any((one != sizes[0]).any() for one in sizes[1:])


def test_collectives_take_as_long_under_all_shares_of_the_same_blocks(
    searched: MixedSearch,
) -> None:
    numbers = np.arange(len(searched.problem.cluster.proportions), dtype=np.int8)
    sizes = np.geomspace(1.0, 1e9, 40)
    for place in (*searched.problem.places, searched.problem.joins):
        mesh, hardware = place.context.mesh, place.context.hardware
        alike = mesh.alike_for_collectives(numbers).tolist()
        assert len(set(alike)) < len(alike)
        for operation in ("all_reduce", "all_gather", "reduce_scatter", "send_receive"):
            for mask in range(1, 1 << len(mesh.axes)):
                times = [
                    mesh.collective_times(hardware, operation, mask, sizes, number)
                    for number in numbers.tolist()
                ]
                for own, first in zip(times, alike, strict=True):
                    assert (own == times[first]).all()


def test_numbers_of_micro_batches_share_programs_and_replay_as_without(
    two_kinds: Hardware,
) -> None:
    subject, bundle = Subject.of(layers(3, 16, 512)), everything(two_kinds)
    four, eight = (
        MixedDraft.of(subject, two_kinds, bundle, Options(), quiet, number).joined(quiet)
        for number in (4, 8)
    )
    shared = [one.mixed_replayer for one in (four, eight)]
    assert len(shared[0].places) == len(shared[1].places)
    assert shared[0].tape is shared[1].tape
    for one, replayer in zip((four, eight), shared, strict=True):
        limits = limits_of(one.problem, one.options)
        own = MixedReplayer(one.problem, one.options.step, limits)
        assert own.tape is not replayer.tape
        chosen = random_strategies(one.problem, 20, np.random.default_rng(3))
        expected, found = own.replay(*chosen), replayer.replay(*chosen)
        assert (found.time_s == expected.time_s).all()
        assert (found.peak_bytes == expected.peak_bytes).all()


def test_columns_of_cells_that_are_kept_are_those_of_the_cells(searched: MixedSearch) -> None:
    replayer, problem = searched.mixed_replayer, searched.problem
    for place in replayer.places:
        for seed in range(3):
            choices, edges = random_strategies(problem, 20, np.random.default_rng(seed))
            for e, edge in enumerate(problem.edges):
                values = place.edge_values(place.table_of_edge(e))
                assert values is not None
                chosen = choices[:, edge.source], choices[:, edge.target], edges[:, e]
                cells = values.cells(*(column.astype(np.int64) for column in chosen))
                known, at = values.rows(cells)
                assert (known[at] == values.values(cells)).all()


def test_what_a_proportion_computes_at_least_is_no_more_than_any_step_within_it(
    searched: MixedSearch,
) -> None:
    problem = searched.problem
    choices, edges = random_strategies(problem, 40, np.random.default_rng(6))
    bounds = []
    for number in range(len(problem.cluster.proportions)):
        bound_s = problem.least_everywhere_s(number)
        bounds.append(bound_s)
        within = choices.copy()
        for g, mask in enumerate(problem.everywhere(number)):
            rows = np.flatnonzero(mask)
            within[:, g] = rows[within[:, g] % len(rows)]
        replayed = searched.mixed_replayer.replay(within, np.zeros_like(edges))
        assert (replayed.time_s >= bound_s * (1 - 1e-9)).all()
    even_s = bounds[EVEN]
    alone = [
        bound
        for bound, p in zip(bounds, problem.cluster.proportions, strict=True)
        if len(p.support) == 1
    ]
    assert min(alone) > even_s > 0.0


def test_a_group_that_is_surely_slower_alone_is_not_searched(two_kinds: Hardware) -> None:
    graph, bundle = layers(3, 64, 1024), everything(two_kinds)
    subject, options = Subject.of(graph), Options(micro_batches=(1,))
    slow = two_kinds.of_group("b")
    known = search_replayed(subject, slow, Devices.alike(4), options)
    assert any(len(one.time_s) for one in known)
    fastest_s = min(float(one.replayed.time_s.min()) for one in known)
    stages: list[str] = []
    found = search_replayed(
        subject,
        slow,
        Devices.alike(4),
        options,
        noting(stages),
        cutoff_s=0.1 * fastest_s,
    )
    assert not any(len(one.time_s) for one in found)
    assert set(stages) == {"costs"}
    # Without anything to compare with each group is searched, beside a faster answer none.
    watch_ = Watch(quiet, 60.0)
    alone = fastest_alone(subject, two_kinds, bundle, options, watch_)
    assert alone is not None and alone.best.replayed_time_s <= fastest_s * (1 + 1e-9)
    together = search_replayed(subject, two_kinds, bundle, options)
    best = fastest(together)
    assert best is not None and best.replayed_time_s <= alone.best.replayed_time_s
    assert fastest_alone(subject, two_kinds, bundle, options, watch_, together) is None


def test_blocks_of_eight_are_split_alike_alone_and_together() -> None:
    """Strategies of one kind alone have the axes of those of all."""
    hardware = profile([("a", "fast", 1, 8), ("b", "slow", 1, 8)], KINDS)
    assert Blocks.of(hardware, everything(hardware)).size == 8
    options = Options(micro_batches=(1,), zero=(0,), recompute="never")
    found = plan(layers(2, 64, 1024), hardware, "a=8,b=8", options=options)
    assert found.predicted.replayed_time_s > 0.0
