"""How far published steps were from their predictions, as ranges of answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import UNSET

from shardwise.answers.expected import (
    LEAST_PROJECTS,
    LEAST_STEPS,
    PEAK,
    TABLE,
    TAILS,
    TIME,
    comparable,
    expected,
    expected_sentence,
    expected_text,
    factors,
    peak_range,
    step_range,
)
from shardwise.cost.options import Options
from shardwise.cost.step_settings import StepSettings
from shardwise.hardware import load_hardware
from tools.expected_errors import Step, factors_of, held_out, shares, table

H100 = load_hardware("dgx-h100")


def test_the_table_is_made_of_the_published_runs() -> None:
    assert table() == TABLE.read_text(encoding="utf-8")


@pytest.mark.parametrize("figure", TAILS)
def test_about_four_of_five_steps_of_other_projects_lie_inside(figure: str) -> None:
    of_steps, of_projects = shares(held_out(figure))
    assert 0.75 <= of_steps <= 0.85 and 0.75 <= of_projects <= 0.85


def test_every_project_weighs_the_same() -> None:
    key = ("X", False, TIME)
    many = [Step(key, "many", 2.0)] * 100
    few = [Step(key, name, factor) for name, factor in (("a", 0.9), ("b", 1.0), ("c", 1.1))]
    found = factors_of([*many, *few])[key]
    assert (found.steps, found.projects, found.low, found.high) == (103, 4, 0.9, 2.0)
    assert not factors_of([*many, *few])[key].few
    assert factors_of([*many, *few[:1]])[key].few, LEAST_PROJECTS
    assert factors_of(few * 2)[key] == (6, 3, 0.9, 1.1) and factors_of(few * 2)[key].few, (
        LEAST_STEPS
    )


def test_a_range_is_around_the_prediction() -> None:
    found = expected(H100, 2.0, 100.0)
    assert found is not UNSET and found.gpu == "H100"
    time, peak = factors()["H100", False, TIME], factors()["H100", False, PEAK]
    assert found.step_s == [2.0 * time.low, 2.0 * time.high]
    assert found.peak_bytes == [round(100 * peak.low), round(100 * peak.high)]
    assert step_range(found) == f" ({2 * time.low:.3g} s to {2 * time.high:.3g} s)"
    assert f"({time.steps} of {time.projects} projects)" in expected_text(found)
    sentence = expected_sentence(found)
    assert sentence.startswith(f"Expected are {2 * time.low:.3g} s to {2 * time.high:.3g} s a step")
    assert sentence.endswith(f"{expected_text(found)}.")


@pytest.mark.parametrize(
    "options",
    [
        Options(overlap=False),
        Options(precision="fp8"),
        Options(tune="lora:8"),
        Options(step=StepSettings(offload="states"), zero=(1,)),
    ],
)
def test_only_steps_like_those_that_were_compared_have_a_range(options: Options) -> None:
    assert comparable(Options(precision="bf16")) and not comparable(options)


def test_nothing_is_said_where_too_little_is_known() -> None:
    device = replace(H100.devices[0], kind="MI300X-192GB")
    for hardware in (replace(H100, devices=(device,)), load_hardware("b300-8")):
        assert expected(hardware, 1.0, 1.0) is UNSET
    gb200 = load_hardware("gb200-nvl72")
    assert expected(gb200, 1.0, 1.0) is UNSET, "two projects only"
    assert expected(gb200, 1.0, 1.0, pipeline=True) is UNSET, "two steps only"
    assert step_range(UNSET) == peak_range(UNSET) == expected_text(UNSET) == ""
