"""What of a segment runs again in backward, and what that costs."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from harness.strategies import problem_of
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.group_work import GroupWork
from shardwise.cost.operator_costs import operator_costs
from shardwise.cost.terms import GroupTerms
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware

LAYERS = 32


@cache
def _problem(rerun: str | None = None, framework: str = "eager") -> SearchProblem:
    graph = read_graph(shipped_graph("llama-8b"))
    options = Options(rerun=rerun, framework=framework, zero=(0,), max_configurations=20)
    return problem_of(graph, load_hardware("dgx-h100"), 2, options, 64)


def test_a_llama_layer_runs_again_up_to_its_last_product() -> None:
    rerun = _problem().context.rerun
    layers = range(LAYERS)
    assert rerun.reads == {f"model.layers.{i}.mlp.down_proj.linear" for i in layers}
    # The addition after the last layer is with the last normalisation, in no layer.
    additions = {f"model.layers.{i}.add_1" for i in layers[:-1]}
    assert rerun.skipped - rerun.reads >= additions
    inside = {name for name in rerun.skipped if name.startswith("model.layers.")}
    assert inside == additions | rerun.reads


@pytest.mark.parametrize(("rerun", "framework"), [("whole", "eager"), (None, "megatron-core")])
def test_whole_segments_run_to_their_end(rerun: str | None, framework: str) -> None:
    found = _problem(rerun, framework).context.rerun
    assert not found.reads
    # What ends the layer before is no part of a segment either way.
    assert found.skipped == {f"model.layers.{i}.add_1" for i in range(LAYERS - 1)}


def test_an_addition_that_ends_a_layer_is_with_the_next_ones_segment() -> None:
    problem = _problem()
    group_of, segments = problem.coarsened.group_of, problem.context.segments
    ends, norm, query = (
        segments[group_of[name]]
        for name in (
            "model.layers.3.add_1",
            "model.layers.4.input_layernorm.mul_1",
            "model.layers.4.self_attn.q_proj.linear",
        )
    )
    assert ends == norm == query
    assert segments[group_of["model.layers.3.mlp.down_proj.linear"]] != ends


def _recomputing(name: str) -> tuple[SearchProblem, int, int]:
    """A group by an operator of it, and its first configuration that recomputes."""
    problem = _problem()
    group = problem.coarsened.group_of[name]
    return problem, group, int(problem.costs[group].recompute.argmax())


def test_the_down_projection_costs_nothing_more_where_it_is_recomputed() -> None:
    problem, group, choice = _recomputing("model.layers.4.mlp.down_proj.linear")
    cost = problem.costs[group]
    plain = np.flatnonzero(
        (cost.assignment == cost.assignment[choice]).all(axis=1) & ~cost.recompute
    )[0]
    assert cost.recompute[choice]
    assert cost.compute_s[choice] == cost.compute_s[plain]


def test_what_enters_a_layer_is_kept_by_the_group_that_makes_it() -> None:
    problem, group, choice = _recomputing("model.layers.4.input_layernorm.mul_1")
    context, pattern, cost = problem.context, problem.patterns[group], problem.costs[group]
    terms = GroupTerms(
        GroupWork(context, pattern, cost.assignment[choice][None, :], cost.proportion[choice][None])
    )
    assert terms.work.kept_still == ("model.layers.3.add_1",)
    entering = terms.work.kept_bytes(terms.work.kept_still)[0]
    assert cost.activation_bytes[choice] == entering
    operators = operator_costs(context, pattern, cost, choice)
    assert [operator.activation_bytes for operator in operators] == [
        entering, *(0.0 for _ in operators[1:])
    ]  # fmt: skip
    # Once for the addition, twice for the normalisation's forward.
    again = terms.compute.forward_s[0] * terms.computes
    assert terms.rerun_compute_s()[0] == pytest.approx(64 * again.sum())
    assert terms.computes.tolist() == [False] + [True] * (len(operators) - 1)
