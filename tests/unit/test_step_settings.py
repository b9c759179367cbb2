"""How a step is executed, as far as its memory depends on it: states, gradients, accumulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET

from harness.graph_builder import GraphBuilder
from harness.strategies import problem_of
from shardwise.answers import Options, plan
from shardwise.capture import load_graph
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.pins import parse_pin
from shardwise.cost.step_settings import StepSettings
from shardwise.documents.parallelism import Parallelism
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import load_hardware
from shardwise.replay.replay import Replayer
from shardwise.trainers.price import price

BATCH, WIDTH, LAYERS = 64, 512, 12
ELEMENTS = LAYERS * WIDTH**2
GPUS = 4
MACHINE = replace(load_hardware("dgx-h100"), host=None)


def deep() -> Graph:
    """Returns products of WIDTH by WIDTH with a ReLU after each."""
    builder = GraphBuilder("deep")
    last = builder.input("x", BATCH, WIDTH)
    for layer in range(LAYERS):
        builder.parameter(f"w{layer}", WIDTH, WIDTH)
        last = builder.linear(f"product{layer}", last, f"w{layer}", f"h{layer}")
        last = builder.relu(f"relu{layer}", last, f"a{layer}")
    return builder.graph()


def asked(zero: int = 3, micro_batches: int = 4, **settings: Any) -> Options:
    return Options(
        zero=(zero,),
        recompute="never",
        precision="bf16",
        micro_batches=(micro_batches,),
        step=StepSettings(**settings),
        pins=(parse_pin("inside=batch"),),
    )


def problem(options: Options) -> SearchProblem:
    return problem_of(deep(), MACHINE, GPUS, options, options.micro_batches[0])


def parameters_bytes(options: Options) -> float:
    """Returns weights, gradients and states of a device, as the search adds them up."""
    return sum(float(cost.parameter_bytes[0]) for cost in problem(options).costs)


def peak_bytes(options: Options) -> float:
    solved = problem(options)
    replayer = Replayer(solved, options.step)
    rows = np.zeros((1, len(solved.costs)), dtype=np.uint32)
    edges = np.zeros((1, len(solved.edges)), dtype=np.uint32)
    return float(replayer.replay(rows, edges).peak_bytes[0])


@pytest.mark.parametrize(
    ("optimizer", "state", "of_16_bits", "of_32_bits"),
    [
        ("adam", "float32", 12, 8), ("adam", "captured", 4, 8), ("adam", "8bit", 2, 2),
        ("momentum", "float32", 8, 4), ("momentum", "captured", 2, 4), ("sgd", "float32", 4, 0),
        ("sgd", "captured", 0, 0), ("adam", "16:16:8", 5, 3), ("adam", "0:32:16", 6, 6),
        ("momentum", "32:16:8", 6, 2), ("adam", "32:32:32", 12, 8),
    ],
)  # fmt: skip
def test_bytes_of_state(optimizer: str, state: str, of_16_bits: int, of_32_bits: int) -> None:
    options = Options(optimizer=optimizer, step=StepSettings(state=state))
    assert options.state_bytes_per_element(2) == of_16_bits
    assert options.state_bytes_per_element(4) == of_32_bits


@pytest.mark.parametrize("stage", [2, 3])
def test_whole_gradients_between_micro_batches(stage: int) -> None:
    """FSDP with no_sync keeps every gradient whole until the last micro-batch scatters it."""
    shards, whole = asked(stage), asked(stage, accumulation="whole")
    gained = 2 * ELEMENTS * (1 - 1 / GPUS)
    assert parameters_bytes(whole) - parameters_bytes(shards) == pytest.approx(gained)
    assert peak_bytes(whole) - peak_bytes(shards) > 0.4 * gained
    reduced = {
        name: sum(float(cost.communication_s[0]) for cost in problem(options).costs)
        for name, options in (("shards", shards), ("whole", whole))
    }
    assert reduced["whole"] < reduced["shards"]


@pytest.mark.parametrize(("stage", "micro_batches"), [(1, 4), (3, 1)])
def test_without_micro_batches_to_add_up_nothing_is_kept_whole(
    stage: int, micro_batches: int
) -> None:
    shards = asked(stage, micro_batches)
    whole = replace(shards, step=StepSettings(accumulation="whole"))
    assert parameters_bytes(whole) == parameters_bytes(shards)
    assert peak_bytes(whole) == peak_bytes(shards)


@pytest.mark.parametrize(("stage", "kept"), [(0, 1.0), (1, 1.0), (3, 1 / GPUS)])
def test_float32_gradients_add_up_in_a_buffer_that_lasts(stage: int, kept: float) -> None:
    captured, main = asked(stage), asked(stage, gradients="float32")
    assert parameters_bytes(main) - parameters_bytes(captured) == pytest.approx(2 * ELEMENTS * kept)
    # Gradients of a micro-batch exist beside the buffer, and none is converted in the update.
    assert peak_bytes(main) > peak_bytes(captured) - 4 * ELEMENTS * kept


def test_gradients_of_float32_parameters_are_float32_anyway() -> None:
    captured = replace(asked(0), precision="captured")
    main = replace(captured, step=StepSettings(gradients="float32"))
    assert parameters_bytes(main) == parameters_bytes(captured)
    assert peak_bytes(main) == peak_bytes(captured)


def test_less_state_and_no_temporaries_lower_the_peak() -> None:
    peaks = [
        peak_bytes(asked(0, 1, state=state, update=update))
        for state, update in (
            ("float32", "foreach"), ("float32", "fused"), ("captured", "fused"), ("8bit", "fused")
        )
    ]  # fmt: skip
    # Adam's roots and the float32 gradients; moments and the copy; a byte of each moment.
    assert peaks[0] - peaks[1] == pytest.approx(8 * ELEMENTS, rel=0.2)
    assert peaks[1] - peaks[2] == pytest.approx(8 * ELEMENTS, rel=1e-3)
    assert peaks[2] - peaks[3] == pytest.approx(2 * ELEMENTS, rel=1e-3)


def test_plans_say_how_their_step_runs() -> None:
    document = plan(deep(), MACHINE, GPUS, options=asked(accumulation="whole", state="8bit"))
    assert document.execution is not UNSET
    assert (document.execution.accumulation, document.execution.state) == ("whole", "8bit")


def test_states_in_bits_have_no_temporaries() -> None:
    usual, bits = asked(0, 1, update="fused"), asked(0, 1, state="16:16:8")
    assert peak_bytes(usual) - peak_bytes(bits) == pytest.approx(7 * ELEMENTS, rel=1e-3)
    for wrong in ("16:16", "8:8:8", "16:16:8:8", "32:32:64"):
        with pytest.raises(BadInput, match=r"unknown state .*such as 16:16:8"):
            StepSettings(state=wrong)


@pytest.mark.parametrize("field", ["device", "update", "state", "gradients", "accumulation"])
def test_unknown_settings_are_refused(field: str) -> None:
    with pytest.raises(BadInput, match=f"{field}: unknown {field} 'other'"):
        replace(StepSettings(), **{field: "other"})  # type: ignore[arg-type]


def test_weights_in_8_bits_alone_take_no_16_bits() -> None:
    """Of a parameter under MXFP8: two rounded copies of 33/32 bytes, its gradient, its states."""
    graph = load_graph("llama3-8b:batch=8,seq=1024")
    peaks = {}
    for weights in ("captured", "rounded"):
        options = Options(
            framework="megatron-core",
            precision="fp8:mxfp8",
            micro_batches=(1,),
            zero=(1,),
            step=StepSettings(weights=weights),
        )
        given = Parallelism(shards=8, zero=1)
        peaks[weights] = price(graph, load_hardware("gb200-nvl72"), 8, given, options)
    saved = [one.plan.predicted.peak_bytes for one in peaks.values()]
    # All but the table, the head and the norms.
    assert saved[0] - saved[1] == pytest.approx(2 * 6.98e9, rel=0.02)
    assert peaks["rounded"].plan.execution.weights == "rounded"
    assert StepSettings(weights="rounded", state="16:16:8").master_bytes(2) == 4
