"""Estimates of a question's cost on hardware of any number of levels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.questions.cost_model import START_S, seconds_of
from shardwise.hardware import hardware_document, load_hardware

GRAPH = {"operators": 100}


def question(hardware: Any, gpus: int) -> dict[str, Any]:
    return {
        "kind": "plan", "hardware": hardware_document(hardware), "gpus": gpus, "options": {},
    }  # fmt: skip


@pytest.mark.parametrize("name", ["gb200-nvl72", "h100-superpod", "tpu-v5p", "dgx-h100"])
def test_more_gpus_cost_more_until_there_are_none(name: str) -> None:
    hardware = load_hardware(name)
    most = hardware.max_nodes * hardware.per_node
    one, many = (seconds_of(question(hardware, gpus), GRAPH) for gpus in (1, 64))
    assert START_S < one < many
    assert seconds_of(question(hardware, most + 1), GRAPH) == START_S


def test_levels_that_are_alike_cost_nothing() -> None:
    whole = load_hardware("dgx-h100")
    inner, outer = whole.levels
    halves = replace(
        whole,
        levels=(
            inner,
            replace(outer, name="across a half", size=8),
            replace(outer, size=16, bandwidth_bytes_per_s=8 * 400e9, uplinks=True),
        ),
    )
    for gpus in (8, 24, 512):
        assert seconds_of(question(halves, gpus), GRAPH) == seconds_of(question(whole, gpus), GRAPH)


def test_a_curve_covers_all_levels() -> None:
    asked = {**question(load_hardware("gb200-nvl72"), 1), "kind": "curve", "max_gpus": 100}
    few = {**asked, "max_gpus": 10}
    assert seconds_of(asked, GRAPH) > 5 * seconds_of(few, GRAPH)
