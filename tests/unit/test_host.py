"""The host's part of a step: the soft maximum, what launching takes, answers that say so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.graph_builder import mlp
from harness.strategies import problem_of, random_strategies
from shardwise.answers import Options, explain, frontier, plan
from shardwise.cost.software import FRAMEWORKS
from shardwise.errors import BadInput
from shardwise.hardware import Hardware, hardware_document, hardware_from_document, load_hardware
from shardwise.hardware.host import EAGER, SHARPNESS, Host, soft_maximum, supporting_weights
from shardwise.replay.owner_costs import host_costs
from shardwise.replay.replay import Replayer

times = st.floats(0.0, 1e6) | st.just(0.0)
HOST = Host(operator_s=50e-6, collective_s=60e-6)


def machine(host: Host | None = HOST) -> Hardware:
    return replace(load_hardware("dgx-v100-16gb"), host=host)


@given(times, times)
def test_a_step_takes_at_least_both_and_little_more(device_s: float, host_s: float) -> None:
    step_s = float(soft_maximum(np.array(device_s), np.array(host_s)))
    larger = max(device_s, host_s)
    assert larger * (1 - 1e-12) <= step_s <= larger * 2 ** (1 / SHARPNESS) * (1 + 1e-12)


@given(times, times, times, times)
def test_slopes_anywhere_bound_every_step(
    device_s: float, host_s: float, other_device_s: float, other_host_s: float
) -> None:
    device, host = supporting_weights(np.array(device_s), np.array(host_s))
    other_s = float(soft_maximum(np.array(other_device_s), np.array(other_host_s)))
    assert device * other_device_s + host * other_host_s <= other_s * (1 + 1e-9)
    here_s = float(soft_maximum(np.array(device_s), np.array(host_s)))
    assert device * device_s + host * host_s == pytest.approx(here_s)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_every_pass_is_launched_in_every_micro_batch(micro_batches: int) -> None:
    """Three operators forward; backward one product, one activation, two products."""
    options = Options(recompute="auto")
    problem = problem_of(mlp(), machine(), 1, options, micro_batches)
    costs = host_costs(problem)
    assert costs is not None
    choices = np.array(
        [
            [int(np.flatnonzero(cost.recompute == again)[0]) for cost in problem.costs]
            for again in (False, True)
            if all((cost.recompute == again).any() for cost in problem.costs)
        ],
        dtype=np.uint32,
    )
    edges = np.zeros((len(choices), len(problem.edges)), dtype=np.uint32)
    seconds = costs.of(problem, choices, edges)
    assert seconds[0] == pytest.approx(micro_batches * (3 + 4) * HOST.operator_s)
    assert (seconds[1:] > seconds[0]).all()


def test_collectives_are_launched_too() -> None:
    """Of the strategies on two devices, those that communicate keep the host busy for longer."""
    problem = problem_of(mlp(), machine(), 2, Options(recompute="never"))
    replayer = Replayer(problem, Options().step)
    choices, edges = random_strategies(problem, 50, np.random.default_rng(1))
    replayed = replayer.replay(choices, edges)
    least_s = (3 + 4) * HOST.operator_s
    more = np.round((replayed.host_s - least_s) / HOST.collective_s, 6)
    assert (more >= 0).all() and len(np.unique(more)) > 2
    assert (more == np.round(more)).all(), "whole collectives, and no recomputation"


def test_a_replayed_step_waits_for_its_host() -> None:
    graph, options = mlp(), Options(recompute="auto")
    steps = {}
    for host in (None, HOST):
        problem = problem_of(graph, machine(host), 2, options)
        choices, edges = random_strategies(problem, 20, np.random.default_rng(2))
        steps[host] = Replayer(problem, options.step).replay(choices, edges)
    without, waiting = steps[None], steps[HOST]
    assert (without.host_s == 0.0).all() and (without.time_s == without.device_s).all()
    assert (waiting.time_s == soft_maximum(waiting.device_s, waiting.host_s)).all()
    assert (waiting.time_s > 1.05 * waiting.device_s).all(), "small layers are host bound"


def test_frameworks_differ_in_what_launching_takes() -> None:
    graph, steps = mlp(), {}
    for framework in FRAMEWORKS:
        document = plan(graph, machine(), 2, options=Options(framework=framework))
        assert document.framework == framework
        steps[framework] = document.predicted.replayed_time_s
    order = ["graphs", "compiled", "eager", "megatron-tests"]
    assert sorted(order, key=lambda framework: steps[framework]) == order
    assert steps["megatron-core"] <= steps["eager"], "the same launches of fewer kernels"
    with pytest.raises(BadInput, match="framework"):
        Options(framework="jax")


def test_answers_say_what_is_bound_by_the_host() -> None:
    document = plan(mlp(), machine(), 2)
    predicted = document.predicted
    assert predicted.bound_by == "host"
    assert isinstance(predicted.host_s, float) and predicted.host_s > predicted.compute_s
    assert "larger batch or CUDA graphs" in str(predicted.to_go_faster)
    eager = plan(mlp(), machine(), 2, options=Options(framework="eager"))
    advice = str(eager.predicted.to_go_faster)
    assert "larger batch, compiling the model or CUDA graphs" in advice
    assert any(line.startswith("Host bound") for line in explain(document).text)
    graphs = plan(mlp(), machine(), 2, options=Options(framework="graphs"))
    assert graphs.predicted.bound_by != "host"
    points = frontier(mlp(), machine(), 2).points
    assert all(isinstance(point.host_s, float) for point in points)


def test_a_search_answers_with_the_step_that_waits() -> None:
    """More micro-batches are more work for the host: the proof holds, and one is enough."""
    document = plan(mlp(64), machine(), 2)
    assert document.micro_batches == 1
    assert document.predicted.gap is not None and document.predicted.gap < 0.05


def test_profiles_have_their_host() -> None:
    profile = load_hardware("dgx-h100")
    assert profile.host == HOST == EAGER
    document = hardware_document(profile)
    assert hardware_from_document(document) == profile
    assert "host" not in hardware_document(machine(None))
    with pytest.raises(BadInput, match=r"host\.operator_s"):
        hardware_from_document({**document, "host": {"operator_s": -1.0, "collective_s": 0.0}})
