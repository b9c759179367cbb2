"""Power limits: what they slow, what they leave, and which are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import shardwise
from harness.graph_builder import GraphBuilder, mlp
from service.questions.question import Limits, frontier_question
from shardwise.answers import Options, frontier, quote
from shardwise.cli.lists import hardware as hardware_command
from shardwise.cli.plan import plan as plan_command
from shardwise.cost.named_options import options_from_request, options_schema
from shardwise.documents import FrontierRequest
from shardwise.errors import BadInput
from shardwise.graph import Graph, write_graph
from shardwise.hardware import (
    hardware_document,
    hardware_from_document,
    load_hardware,
    new_profile,
    read_offers,
)
from shardwise.hardware.power import (
    KEPT,
    SHARES,
    kept,
    limited,
    power_range,
    with_power_limit,
)
from shardwise.hardware.watts import parse_power

H100, MI300X = load_hardware("dgx-h100"), load_hardware("mi300x-8")
LIMITS = (700.0, 600.0, 500.0, 400.0, 300.0)


def busy() -> Graph:
    """Returns two large products, which keep a GPU busy."""
    builder = GraphBuilder("busy")
    hidden = builder.input("x", 8192, 4096)
    for name in ("one", "two"):
        weight = builder.parameter(f"{name}.w", 4096, 4096)
        hidden = builder.linear(name, hidden, weight, f"{name}.out")
    return builder.graph()


def fastest_s(graph: Graph, hardware: str, limit_w: float | None) -> float:
    options = Options(precision="bf16", power_limit_w=limit_w, epsilon=0.0)
    answer = frontier(graph, load_hardware(hardware), 2, options)
    return min(point.replayed_time_s for point in answer.points)


@pytest.mark.parametrize(
    ("text", "watts"), [("500W", 500.0), (" 0.5 kW", 500.0), ("72.5 w", 72.5), ("1KW", 1000.0)]
)
def test_watts_are_read_with_their_unit(text: str, watts: float) -> None:
    assert parse_power(text) == watts


@pytest.mark.parametrize("text", ["500", "", "W", "0W", "-1W", "500V", "0.7", "5e2W", "9" * 99])
def test_watts_without_a_unit_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="power-limit") as refused:
        parse_power(text)
    assert "500W" in (refused.value.expected or "") and len(str(refused.value)) < 200


def test_the_law_falls_with_the_limit() -> None:
    assert len(SHARES) == len(KEPT) and (SHARES[-1], KEPT[-1]) == (1.0, 1.0)
    assert all(np.diff(SHARES) > 0) and all(np.diff(KEPT) > 0)
    assert kept(0.55) == pytest.approx((KEPT[1] + KEPT[2]) / 2)


@given(st.floats(0.4, 1.0))
def test_less_power_costs_less_than_its_share_of_the_speed(share: float) -> None:
    assert share < kept(share) + 1e-9 <= 1.0 + 1e-9


def test_the_law_agrees_with_the_clocks_of_published_steps_on_h100() -> None:
    at_500 = load_hardware("grand-teton-h100-96gb").devices[0].sustained_clock
    by_law = limited(H100.devices[0], 500.0).sustained_clock
    assert by_law == pytest.approx(at_500, rel=0.05)


def test_the_full_power_changes_nothing() -> None:
    device = H100.devices[0]
    assert limited(device, 700.0) is device
    assert fastest_s(mlp(), "h100", 700.0) == fastest_s(mlp(), "h100", None)


def test_a_limit_slows_what_computes_and_not_what_moves() -> None:
    for device in (H100.devices[0], MI300X.devices[0]):
        slow = limited(device, 400.0)
        flops, moved = np.array([0.0, 1e15]), np.array([1e9, 1e6])
        before, after = (d.roofline_times(flops, moved, "bfloat16") for d in (device, slow))
        assert after[0] == before[0] and after[1] > 1.05 * before[1]
        assert slow.memory_bandwidth_bytes_per_s == device.memory_bandwidth_bytes_per_s
        assert slow.peak_flops_per_s == device.peak_flops_per_s


@pytest.mark.parametrize("hardware", ["h100", "mi300x-8"])
def test_a_smaller_limit_never_makes_an_answer_faster(hardware: str) -> None:
    times = [fastest_s(busy(), hardware, limit) for limit in LIMITS]
    assert times == sorted(times)
    assert times[-1] > 1.2 * times[0]


@pytest.mark.parametrize(
    ("hardware", "watts", "why"),
    [
        ("h100", 701.0, "more than the 700 W"), ("h100", 279.0, "below 40% of its 700 W"),
        ("dgx-v100-16gb", 149.0, "less than the 150 W that the driver takes"),
        ("grand-teton-h100-96gb", 600.0, "more than the 500 W"),
        ("tpu-v6e", 100.0, "is not known"), ("dgx2-v100-32gb", 200.0, "is not known"),
    ],
)  # fmt: skip
def test_a_limit_that_the_gpu_does_not_have_is_refused(
    hardware: str, watts: float, why: str
) -> None:
    with pytest.raises(BadInput, match=why) as refused:
        frontier(mlp(), load_hardware(hardware), 2, Options(power_limit_w=watts))
    assert refused.value.field == "power-limit" and refused.value.expected


@pytest.mark.parametrize("watts", [0.0, -5.0, float("inf"), float("nan")])
def test_no_watts_are_refused(watts: float) -> None:
    with pytest.raises(BadInput, match="power-limit"):
        Options(power_limit_w=watts)


def test_measured_operators_have_the_power_that_they_were_measured_at() -> None:
    document = hardware_document(load_hardware("l4")) | {"operators": [measured_operator()]}
    profile = hardware_from_document(document)
    with pytest.raises(BadInput, match=r"power-limit: operators of l4 were measured"):
        frontier(mlp(), profile, 2, Options(power_limit_w=60.0))


def measured_operator() -> dict[str, Any]:
    return {
        "kind": "aten.relu.default", "direction": "forward", "device": "L4-24GB",
        "attributes": {}, "arguments": ["self"], "dtypes": ["float32"], "strides": [""],
        "gradients": [True], "outputs": 1, "threads": 0, "ranks": 1, "flushed": True,
        "shapes": [[[8, 8], [8, 8]]], "flops": [64.0], "moved_bytes": [512.0],
        "times_s": [1e-5], "spreads": [0.02], "repetitions": [12],
    }  # fmt: skip


def test_an_answer_says_its_limit_and_what_it_is_based_on() -> None:
    answer = frontier(mlp(), H100, 2, Options(power_limit_w=500.0))
    assert "GPUs at 500 W" in str(answer.program)
    (said,) = [text for text in answer.warnings if text.startswith("at 500 W")]
    assert "keep 89% (H100-SXM5-80GB)" in said and "not measured on these GPUs" in said
    full = frontier(mlp(), H100, 2, Options(power_limit_w=700.0))
    assert not any("busy products" in text for text in full.warnings)


def test_devices_of_several_kinds_are_limited_each_by_its_own_power() -> None:
    pair = load_hardware("l40s-4+a100-4")
    names = [group.name for group in pair.groups]
    bundle = ",".join(f"{name}=1" for name in names)
    at = {w: frontier(mlp(), pair, bundle, Options(power_limit_w=w)) for w in (350.0, 200.0)}
    (said,) = [text for text in at[200.0].warnings if text.startswith("at 200 W")]
    assert "L40S-48GB" in said and "A100-SXM4-80GB" in said
    with pytest.raises(BadInput, match="400 W is more than the 350 W"):
        frontier(mlp(), pair, bundle, Options(power_limit_w=400.0))


def test_python_the_command_and_a_request_ask_the_same(tmp_path: Path) -> None:
    in_python = shardwise.plan(mlp(), "h100", 2, power_limit_w=500.0)
    write_graph(mlp(), str(tmp_path / "mlp.json"))
    words = [str(tmp_path / "mlp.json"), "--hardware", "h100", "--gpus", "2", "--quiet", "--json"]
    done = CliRunner().invoke(plan_command, [*words, "--power-limit", "500W"])
    by_command = json.loads(done.stdout)
    assert by_command["predicted"] == in_python.to_dict()["predicted"]
    assert options_from_request({"power_limit_w": 500}) == Options(power_limit_w=500.0)
    assert "power_limit_w" in options_schema()["properties"]
    with pytest.raises(BadInput, match="power-limit: got '500'"):
        CliRunner().invoke(plan_command, [*words, "--power-limit", "500"], catch_exceptions=False)


def test_a_service_refuses_a_limit_with_the_question() -> None:
    limits = Limits(64, 64)

    def asked(watts: float) -> dict[str, Any]:
        ask = FrontierRequest("shipped:gpt2", "h100", 2, {"power_limit_w": watts})
        return frontier_question(ask, "sha256:1", H100, limits).document

    assert asked(500.0)["options"]["power_limit_w"] == 500.0
    with pytest.raises(BadInput, match="below 40%") as refused:
        asked(100.0)
    assert refused.value.field == "options.power_limit_w"


def test_a_quote_leaves_out_offers_whose_gpus_do_not_have_the_limit() -> None:
    answer = quote(mlp(), read_offers(), options=Options(power_limit_w=500.0), max_instances=1)
    assert answer.offers and {row.gpu_kind for row in answer.offers} <= {"H100", "H200", "B200"}
    left = {row.instance_type: row.reason for row in answer.not_offered}
    assert "500 W is more than the 400 W" in left["p4de.24xlarge"]


def test_a_profile_can_have_the_limit_itself() -> None:
    profile = new_profile("H100", power_limit="500W")
    device = profile.devices[0]
    assert (device.power_limit_w, profile.name) == (500.0, "8xh100[500W]")
    assert "limited to 500 W" in profile.provenance
    assert "700 W" in profile.sources["devices.power_limit_w"]
    again = hardware_from_document(json.loads(json.dumps(hardware_document(profile))))
    assert again.id == profile.id
    assert limited(again.devices[0], 300.0).sustained_clock == pytest.approx(
        limited(H100.devices[0], 300.0).sustained_clock
    )
    with pytest.raises(BadInput, match="more than the 500 W"):
        limited(again.devices[0], 600.0)
    shown = CliRunner().invoke(hardware_command, ["show", "h100", "--power-limit", "500W"])
    assert "limited to 500 W" in shown.output
    assert with_power_limit(H100, 700.0).devices == H100.devices


def test_a_profile_without_a_limit_says_none() -> None:
    assert "power_limit_w" not in hardware_document(H100)["devices"][0]
    document = hardware_document(H100)
    document["devices"][0]["power_limit_w"] = -1
    with pytest.raises(BadInput, match=r"devices\[0\].power_limit_w"):
        hardware_from_document(document)


def test_a_kind_that_a_driver_names_has_the_power_of_its_gpu() -> None:
    measured = replace(H100.devices[0], kind="NVIDIA H100 80GB HBM3")
    assert power_range(measured) == power_range(H100.devices[0])
