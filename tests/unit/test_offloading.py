"""Optimizer states in the host's memory: what leaves the device, what copies and updates take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.graph_builder import layers
from harness.strategies import problem_of, random_strategies
from shardwise.answers import curve, plan
from shardwise.answers.pipelines import pipeline_or_plan
from shardwise.capture import shipped_graph
from shardwise.cost.options import Options
from shardwise.cost.step_settings import StepSettings
from shardwise.errors import BadInput
from shardwise.graph import Graph, read_graph
from shardwise.hardware import hardware_document, hardware_from_document, load_hardware
from shardwise.hardware.host import HostMemory
from shardwise.replay.replay import Replayer
from shardwise.search.search import Infeasible

H100 = load_hardware("dgx-h100")
HOSTED = StepSettings(offload="states")


@pytest.fixture(scope="module")
def gpt2() -> Graph:
    return read_graph(shipped_graph("gpt2"))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_states_take_nothing_of_a_device(stage: int) -> None:
    """Eight devices with a share of the samples each: weight and gradient stay."""
    graph = layers(2, 8, 1024)
    problem = problem_of(graph, H100, 8, Options(zero=(stage,), step=HOSTED), 1)
    item, eighth = 1024 * 1024 * 4, 1024 * 1024 * 4 / 8
    stays = {1: 2 * item, 2: item + eighth, 3: 2 * eighth}[stage]
    for pattern, cost in zip(problem.patterns, problem.costs, strict=True):
        rows = (cost.assignment == 0).all(axis=1)
        if pattern.parameters:
            assert cost.parameter_bytes[rows].min() == stays


def test_an_update_on_the_host_takes_its_bytes_and_copies_run_beside_it() -> None:
    """One device and one layer by hand: nothing hides anything."""
    graph, elements = layers(1, 8, 1024), 1024 * 1024
    machine = replace(H100, host=None)
    times = {}
    for offload in ("none", "states"):
        step = StepSettings(offload=offload, update="fused")
        options = Options(recompute="never", step=step)
        problem = problem_of(graph, machine, 1, options, 1)
        strategies = random_strategies(problem, 1, np.random.default_rng(0))
        times[offload] = float(Replayer(problem, step).replay(*strategies).time_s[0])
    memory = H100.host_memory
    assert memory is not None
    # The gradient is read; two moments and the parameter are read and written, and it is copied.
    host = elements * (4 + 2 * (8 + 4) + 4) / (memory.bandwidth_bytes_per_s * memory.efficiency)
    copies = 2 * elements * 4 / (memory.link_bytes_per_s * memory.efficiency)
    on_device = update_on_device_s(elements)
    added = times["states"] - times["none"]
    assert added == pytest.approx(host + copies - on_device, rel=1e-6)


def update_on_device_s(elements: int) -> float:
    """Returns the update on the device: seven passes of four bytes an element."""
    device = H100.devices[0]
    moved = np.array([elements * (2 * 4 + 4 + 2 * 8.0)])
    return float(device.roofline_times(np.zeros(1), moved, "float32")[0])


def test_copies_of_many_parameters_hide_behind_each_other(gpt2: Graph) -> None:
    """A step is shorter than all copies and updates one after the other."""
    options = Options(recompute="never", micro_batches=(1,), step=HOSTED)
    problem = problem_of(gpt2, H100, 1, options, 1)
    replayer = Replayer(problem, options.step)
    choices, edges = random_strategies(problem, 1, np.random.default_rng(0))
    durations = replayer.values(choices, edges)[0][0]
    labels = replayer.tape.labels
    down = sum(s for s, name in zip(durations, labels, strict=True) if name.endswith(" to host"))
    up = sum(s for s, name in zip(durations, labels, strict=True) if name.endswith(" from host"))
    assert down > 0 and up > 0
    step_s = float(replayer.replay(choices, edges).device_s[0])
    # The table of embeddings, most of all parameters, comes last and hides behind nothing.
    assert step_s < durations.sum() - 0.75 * (down + up)


def test_less_memory_and_more_time_than_states_on_the_device(gpt2: Graph) -> None:
    found = {}
    for offload in ("none", "states"):
        step = StepSettings(offload=offload)
        options = Options(zero=(1, 2, 3), micro_batches=(8,), recompute="never", step=step)
        found[offload] = plan(gpt2, H100, 1, options=options)
    here, there = found["none"].predicted, found["states"].predicted
    # 16-bit parameters: two moments and a copy in float32, 12 bytes each.
    assert here.peak_bytes - there.peak_bytes == pytest.approx(12 * gpt2.parameter_count, rel=0.01)
    assert there.replayed_time_s > here.replayed_time_s
    assert there.gap is not None and there.gap < 0.02
    assert "states and update on the host" in str(found["states"].program)
    assert found["states"].execution.offload == "states"


def test_states_that_no_host_has_room_for_are_refused(gpt2: Graph) -> None:
    """Twelve bytes of 124 million parameters take 1.39 GiB."""
    small = replace(H100, host_memory=HostMemory(1e9, 6e11, 6e10, 0.8))
    with pytest.raises(Infeasible, match=r"take 1.39 GiB of each of 1, which has 0.93 GiB"):
        plan(gpt2, small, 2, options=Options(step=HOSTED, micro_batches=(8,)))
    points = curve(gpt2, small, 2, options=Options(step=HOSTED, micro_batches=(8,))).points
    assert all(not point.feasible and "on the host" in str(point.reason) for point in points)


def test_what_is_not_offloaded_is_refused_by_name(gpt2: Graph) -> None:
    asked = Options(step=HOSTED, micro_batches=(8,))
    with pytest.raises(BadInput, match="does not state its hosts' memory"):
        plan(gpt2, load_hardware("l4"), 2, options=asked)
    with pytest.raises(BadInput, match="no answer for offloading in a pipeline"):
        pipeline_or_plan(gpt2, H100, 2, stages=(2,), options=asked)
    with pytest.raises(BadInput, match="several kinds"):
        plan(gpt2, load_hardware("h100-8+a100-8"), "h100=2,a100=2", options=asked)
    with pytest.raises(BadInput, match="sharded by ZeRO"):
        Options(step=HOSTED, zero=(0,))
    with pytest.raises(BadInput, match="sharded by ZeRO"):
        Options(step=HOSTED, method="tofu")
    with pytest.raises(BadInput) as refused:
        StepSettings(offload="everything")
    assert refused.value.field == "offload"


@pytest.mark.parametrize("member", ["memory_bytes", "bandwidth_bytes_per_s", "efficiency"])
def test_a_profile_says_what_its_hosts_have(member: str) -> None:
    document = hardware_document(H100)
    assert hardware_from_document(document).host_memory == H100.host_memory
    document["host_memory"][member] = 0.0
    with pytest.raises(BadInput) as refused:
        hardware_from_document(document)
    assert refused.value.field == f"host_memory.{member}"


def test_rented_machines_have_the_memory_that_their_cloud_states() -> None:
    rented = load_hardware("aws-p4de").host_memory
    like = load_hardware("dgx-a100-80gb").host_memory
    assert rented is not None and like is not None
    assert rented == replace(like, memory_bytes=1152 * 2**30)
    assert load_hardware("lambda-h100").host_memory is None
