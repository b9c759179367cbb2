"""What a launch's agent may report: of that launch, and within physics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.service.launch_calls import PLAN, measurement
from service.cluster.measurements import check_measurement
from service.cluster.tied_profiles import check_profile
from service.cluster.tied_results import Tied, tied
from shardwise.errors import BadInput
from shardwise.hardware import Hardware, list_builtin, load_hardware
from shardwise.hardware.hardware import CollectiveTable

L4 = load_hardware("l4")
MEASURE: dict[str, Any] = {"agents": 1, "ranks_per_agent": 8, "hardware": "l4"}


def of(document: dict[str, Any], plan: dict[str, Any] | None = PLAN) -> Tied:
    return tied(check_measurement(document), document, plan, L4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("plan", "sha256:other"),
        ("graph", "sha256:other"),
        ("hardware", "dgx-h100"),
        ("hardware_id", load_hardware("dgx-h100").id),
        ("gpus", 8),
        ("nodes", 2),
    ],
)
def test_what_is_not_the_launchs_is_refused(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match="is not the launch's") as refused:
        of(measurement(**{name: value}))
    assert refused.value.field == f"document.{name}"


def test_peaks_are_of_the_launchs_ranks_and_of_a_plan() -> None:
    with pytest.raises(BadInput) as refused:
        of(measurement(peak_bytes={"max": 1e9, "per_rank": [1e9] * 2}))
    assert refused.value.field == "document.peak_bytes.per_rank"
    with pytest.raises(BadInput, match="the launch runs no plan"):
        of(measurement(), None)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (
            {"iteration_s": {"median": 0.41, "p10": 0.4, "p90": 50.0, "all": [50.0] * 10}},
            "iteration_s",
        ),
        ({"iteration_s": {"median": 1.2, "p10": 9.0, "p90": 0.1, "all": []}}, "iteration_s"),
        ({"iteration_s": {"median": 1.2, "p10": -3.0, "p90": 1.3, "all": []}}, "iteration_s"),
        (
            {"iteration_s": {"median": 1.2, "p10": 1.2, "p90": 9.0, "all": [1.2] * 10}},
            "iteration_s",
        ),
        (
            {"iteration_s": {"median": 1.2, "p10": 0.1, "p90": 1.2, "all": [1.2] * 10}},
            "iteration_s",
        ),
        ({"steps": -1}, "steps"),
        ({"peak_bytes": {"max": 1e9, "per_rank": [5e9]}}, "peak_bytes.max"),
        ({"peak_bytes": {"max": 1e9, "per_rank": ["1e9"]}}, "peak_bytes.per_rank"),
        ({"peak_bytes": {"per_rank": [-1e9]}}, "peak_bytes.per_rank"),
    ],
)
def test_what_contradicts_itself_is_refused(wrong: dict[str, Any], field: str) -> None:
    """A median that accuracy would count beside times that say otherwise."""
    with pytest.raises(BadInput) as refused:
        of(measurement(**wrong))
    assert refused.value.field == f"document.{field}"


def test_a_long_runs_median_may_be_one_of_later_steps() -> None:
    spread = {"median": 1.3, "p10": 1.2, "p90": 1.5, "all": [1.5] * 10}
    assert of(measurement(iteration_s=spread, steps=2000)).held is None


def test_predictions_and_errors_are_the_plans() -> None:
    """Whatever the agent says that was predicted."""
    lies = {"predicted": {"replayed_time_s": 9.0}, "graph_name": "another", "errors": {
        "iteration": 0.0, "compute": 0.0, "communication": 0.0, "peak": 0.0}}  # fmt: skip
    told = of(measurement(1.2, **lies))
    assert (told.document["predicted"], told.document["graph_name"]) == (PLAN["predicted"], "toy")
    assert told.errors.iteration == pytest.approx(0.2)
    assert told.document["errors"]["peak"] == told.errors.peak == pytest.approx(-0.05)
    assert told.errors.communication is None and told.held is None


def test_a_pipelines_step_is_what_its_iterations_are_compared_with() -> None:
    plan = {**PLAN, "schema": "shardwise.pipeline/1", "predicted": {"step_s": 2.0}}
    assert of(measurement(2.5), plan).errors.iteration == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (measurement(1e-300), "iteration: 1e-300 s, but the model's products alone take 0.4 s"),
        (measurement(0.35), "iteration: 0.35 s, but"),
        (measurement(compute_s=0.1), "compute: 0.1 s, but"),
        (measurement(101.0), "iteration: 101 times what the plan predicts"),
        (measurement(communication_s=1e300), "communication: 1e+300 s in a step of 1.2 s"),
        (measurement(compute_s=8.0), "compute: 8 s in a step of 1.2 s"),
        (measurement(peak_bytes={"max": 1e11, "per_rank": [1e11]}), "peak: 1e"),
        (measurement(peak_bytes={"max": 1e7, "per_rank": [1e7]}), "peak: 0.0095 times"),
    ],
)
def test_what_cannot_be_is_held(document: dict[str, Any], why: str) -> None:
    held = of(document).held
    assert held is not None and held.startswith(why)


def test_what_can_be_counts() -> None:
    tiny = {**PLAN, "predicted": {**PLAN["predicted"], "communication_s": 1e-9}}
    quick = {**PLAN, "predicted": {"replayed_time_s": 1e-4, "compute_s": 1e-4}}
    for document, plan in (
        (measurement(0.5), quick),
        (measurement(0.37), PLAN),
        (measurement(60.0), PLAN),
        (measurement(1.0, communication_s=0.5), tiny),
        (measurement(1.0, peak_bytes=None), {**PLAN, "predicted": {}}),
    ):
        assert of(document, plan).held is None
    assert of(measurement(1.0, communication_s=6.0), tiny).held is not None


def test_fast_convolutions_lower_the_roofline() -> None:
    saving = replace(L4.devices[0], fast_convolution_saving={"float32": 2.25})
    document = measurement(0.2)
    fast = tied(check_measurement(document), document, PLAN, replace(L4, devices=(saving,)))
    assert fast.held is None and of(document).held is not None


def faster(factor: float) -> dict[str, Callable[[Hardware], Hardware]]:
    """Profiles in which one figure is this many times the base's."""

    def device(**values: Any) -> Callable[[Hardware], Hardware]:
        return lambda of: replace(of, devices=(replace(of.devices[0], **values),))

    one, links = L4.devices[0], L4.levels
    rate = max(one.memory_bandwidth_bytes_per_s, *(link.bandwidth_bytes_per_s for link in links))
    flops = max(one.peak_flops_per_s.values())
    table = CollectiveTable("broadcast", 1, 2, True, (1e6,), (1e6 / (factor * rate),))
    level = replace(links[0], bandwidth_bytes_per_s=factor * rate)
    return {
        "flops": device(peak_flops_per_s={**one.peak_flops_per_s, "float32": factor * flops}),
        "memory": device(memory_bandwidth_bytes_per_s=factor * rate),
        "link": lambda of: replace(of, levels=(level, *links[1:])),
        "collective": lambda of: replace(of, collectives=(table,)),
    }


@pytest.mark.parametrize("what", faster(1.0))
def test_a_measured_profile_is_within_twice_its_base(what: str) -> None:
    check_profile(faster(1.9)[what](L4), L4, MEASURE, "measure")
    with pytest.raises(BadInput, match="2 times that of l4"):
        check_profile(faster(2.1)[what](L4), L4, MEASURE, "measure")
    with pytest.raises(BadInput, match="built-in profiles"):
        check_profile(faster(1e6)[what](L4), None, MEASURE, "measure")


def test_every_built_in_profile_could_have_been_measured() -> None:
    for name in list_builtin():
        check_profile(load_hardware(name), None, MEASURE, "measure")


def test_a_profile_has_no_more_devices_than_the_launch_had_ranks() -> None:
    node = load_hardware("dgx-h100").with_nodes(2)
    check_profile(node, None, {**MEASURE, "agents": ["a", "b"]}, "measure")
    with pytest.raises(BadInput, match="2 nodes of 8 devices"):
        check_profile(node, None, MEASURE, "measure")
