"""What follows from a graph or from a program alone is made once, and is no other for that."""

from __future__ import annotations

import gc
from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from harness.strategies import random_strategies
from shardwise.capture import shipped_graph
from shardwise.collector import uncollected
from shardwise.cost.options import Options, quiet
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware
from shardwise.replay.kit import Kits
from shardwise.replay.moments import Moments
from shardwise.replay.replay import Replayer
from shardwise.search.search import Draft, Search, Subject, mesh_of
from shardwise.sharding.fusion import GROUP, Fusing
from shardwise.sharding.micro_batches import split_batch
from shardwise.sharding.pattern import Patterns

OPTIONS = Options(max_configurations=40)


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject.of(read_graph(shipped_graph("gpt2")))


def _search(subject: Subject, gpus: int, micro_batches: int) -> Search:
    hardware = load_hardware("dgx-h100")
    mesh = mesh_of(hardware, gpus)
    return Draft.of(subject, hardware, mesh, OPTIONS, quiet, micro_batches).joined(quiet)


def test_problems_on_other_numbers_of_gpus_share_what_follows_from_the_graph(
    subject: Subject,
) -> None:
    first, second = (_search(subject, gpus, 4).problem.context for gpus in (4, 8))
    assert first.mesh.sizes.tolist() != second.mesh.sizes.tolist()
    assert first.segments is second.segments
    assert first.families is second.families
    assert first.rerun is second.rerun
    other = _search(subject, 8, 2).problem.context
    assert other.families is not second.families


def test_moments_of_a_program_that_others_have_are_those_of_its_own(subject: Subject) -> None:
    """4 and 8 micro-batches have one program, of which the first problem makes the moments."""
    replayers = [_search(subject, 8, count).own_replayer for count in (4, 8)]
    assert replayers[0].kit.derived is replayers[1].kit.derived
    for replayer in replayers:
        own = Replayer(replayer.problem, OPTIONS.step)
        assert own.kit.derived is not replayer.kit.derived
        draw = np.random.default_rng(5)
        strategies = random_strategies(replayer.problem, 20, draw)
        first, last = replayer.passes[-1].forward_tasks[0], replayer.last_backward
        known = []
        for task in (last, first):
            shared = Moments(replayer).held(Moments(replayer).task_of(task))
            alone = Moments(own).held(Moments(own).task_of(task))
            known.append(shared.of(replayer.problem, *strategies))
            assert known[-1].tolist() == alone.of(own.problem, *strategies).tolist()
        assert (known[0] > known[1]).all()  # forward has kept what backward needs


def test_a_program_is_not_written_anew_where_other_edges_are_alike(subject: Subject) -> None:
    problem = _search(subject, 8, 2).problem
    edges = tuple(replace(edge, table=copy(edge.table)) for edge in problem.edges)
    other = replace(problem, edges=edges)
    kits: Kits = {}
    first, second, third = (
        Replayer(one, OPTIONS.step, kits) for one in (problem, other, replace(problem))
    )
    assert second.program is first.program
    assert second.table_of_edge(160) != first.table_of_edge(160)
    assert third.kit.tape is first.kit.tape is not second.kit.tape
    # What is held is found by tables, of which like edges have one.
    assert third.kit.derived is first.kit.derived is not second.kit.derived
    own = Replayer(other, OPTIONS.step)
    assert second.tape == own.tape
    strategies = random_strategies(problem, 20, np.random.default_rng(5))
    for shared, alone in zip(second.values(*strategies), own.values(*strategies), strict=True):
        assert shared.tolist() == alone.tolist()
    task = own.last_backward
    held = [Moments(one).held(task).of(other, *strategies) for one in (second, own)]
    assert held[0].tolist() == held[1].tolist()


def test_like_layers_are_divided_once(subject: Subject) -> None:
    """A batch in parts has the semantics that dividing each operator alone would give."""
    parts = subject.variant(OPTIONS, 4).coarsened
    of_layer = [
        {m.operator.name: m.semantics for g in parts.groups for m in g.members}[name]
        for name in _names(subject, "transformer.h.3", "transformer.h.7")
    ]
    half = len(of_layer) // 2
    assert half > 10
    for one, other in zip(of_layer[:half], of_layer[half:], strict=True):
        assert one is other
    whole = {m.operator.name: m.semantics for g in subject.coarsened.groups for m in g.members}
    for group in parts.groups:
        for member in group.members:
            before = whole[member.operator.name].forward_flops
            assert member.semantics.forward_flops in (before, before / 4)


def _names(subject: Subject, *scopes: str) -> list[str]:
    operators = [m.operator for g in subject.coarsened.groups for m in g.members]
    return [op.name for scope in scopes for op in operators if op.scope.startswith(f"{scope}.")]


def test_patterns_of_a_smaller_batch_share_the_wiring_and_are_those_of_their_own(
    subject: Subject,
) -> None:
    whole = subject.patterns
    smaller = Patterns(split_batch(subject.coarsened, 4))
    assert smaller.crossings is whole.crossings
    alone = Patterns(split_batch(Subject.of(subject.graph).coarsened, 4))
    assert alone.crossings is not whole.crossings
    assert alone.crossings == whole.crossings
    for group, same in zip(smaller.coarsened.groups, alone.coarsened.groups, strict=True):
        assert smaller.pattern(group) == alone.pattern(same)
    keys = [whole.pattern(group).key for group in whole.coarsened.groups]
    of_smaller = [smaller.pattern(group).key for group in smaller.coarsened.groups]
    assert keys != of_smaller
    assert len(set(keys)) == len(set(of_smaller))


def test_patterns_of_other_passes_share_no_wiring(subject: Subject) -> None:
    fused = Patterns(subject.coarsened, Fusing(GROUP))
    assert fused.of_wiring is not subject.patterns.of_wiring
    assert fused.crossings == subject.patterns.crossings


def test_the_collector_rests_for_a_while_and_goes_on_after_an_error() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    with pytest.raises(ValueError, match="some error"), uncollected():
        raise ValueError("some error")
    assert gc.isenabled()
