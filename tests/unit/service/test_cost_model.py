"""Estimates of a question's cost on hardware of any number of levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from service.questions.cost_model import START_S, seconds_of
from service.questions.upload import upload_of
from shardwise.capture.shipped import load_graph
from shardwise.hardware import hardware_document, load_hardware

GRAPH = {"operators": 100, "batch_size": 64}
SUMS = {"overlap": False}
ONE = {"micro_batches": [1]}

MEASURED_S = [
    ("vgg16", 4, {}, 1.7, 4.4),
    ("vgg16", 4, ONE, 1.2, 1.8),
    ("vgg16", 4, SUMS, 0.9, 0.9),
    ("gpt2", 8, {}, 2.0, 13.5),
    ("gpt2", 8, ONE, 1.6, 4.3),
    ("gpt2", 8, SUMS, 0.9, 1.0),
    ("gpt2", 8, {**SUMS, "epsilon": 0.001}, 0.9, 1.4),
    ("gpt2", 8, {**SUMS, "epsilon": 0.0}, 0.9, 5.8),
    ("gpt2", 8, {**SUMS, "method": "elimination"}, 30.0, 30.0),
    ("gpt2", 16, {}, 4.9, 38.0),
    ("transformer", 8, {}, 4.5, 18.5),
    ("llama-8b", 64, {}, 12.3, 77.6),
    ("llama-8b", 64, ONE, 8.7, 25.7),
    ("llama-8b", 64, SUMS, 2.2, 2.2),
]
"""Processor seconds of `plan` and `frontier` by GPUs of dgx-h100, on one core of 2026."""


def question(
    hardware: Any, gpus: int, kind: str = "plan", options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    document = hardware_document(hardware)
    return {"kind": kind, "hardware": document, "gpus": gpus, "options": {**(options or {})}}


@pytest.mark.parametrize(("graph", "gpus", "options", "plan_s", "frontier_s"), MEASURED_S)
def test_estimates_are_near_what_was_measured(
    graph: str, gpus: int, options: dict[str, Any], plan_s: float, frontier_s: float
) -> None:
    summary = upload_of(load_graph(f"shipped:{graph}")).summary
    for kind, took_s in (("plan", plan_s), ("frontier", frontier_s)):
        asked = question(load_hardware("dgx-h100"), gpus, kind, options)
        assert took_s / 2.5 < seconds_of(asked, summary) < 2.5 * took_s, kind


COMPARED_S = [
    ("vgg16", 4, {}, 5.0),
    ("vgg16", 4, ONE, 1.9),
    ("vgg16", 4, SUMS, 2.0),
    ("gpt2", 8, {}, 8.9),
    ("gpt2", 8, SUMS, 3.8),
    ("transformer", 8, {}, 16.2),
    ("llama-8b", 64, {}, 62.1),
    ("llama-8b", 64, SUMS, 17.2),
]
"""Processor seconds of `compare`, as above."""


@pytest.mark.parametrize(("graph", "gpus", "options", "took_s"), COMPARED_S)
def test_estimates_of_comparisons_are_near_what_was_measured(
    graph: str, gpus: int, options: dict[str, Any], took_s: float
) -> None:
    summary = upload_of(load_graph(f"shipped:{graph}")).summary
    asked = question(load_hardware("dgx-h100"), gpus, "compare", options)
    assert took_s / 2.5 < seconds_of(asked, summary) < 2.5 * took_s
    many = {**asked, "proposals": 10**7}
    assert seconds_of(many, summary) - seconds_of(asked, summary) == pytest.approx(50)


@pytest.mark.parametrize(
    ("graph", "gpus", "stages", "options", "took_s"),
    [
        ("gpt2", 8, [2], {}, 4.5),
        ("gpt2", 8, [2, 4], {}, 7.0),
        ("gpt2", 8, "auto", {}, 9.1),
        ("llama-8b", 64, [4], {"micro_batches": [16]}, 9.0),
    ],
)
def test_estimates_of_pipelines_are_near_too(
    graph: str, gpus: int, stages: list[int] | str, options: dict[str, Any], took_s: float
) -> None:
    summary = upload_of(load_graph(f"shipped:{graph}")).summary
    plain = question(load_hardware("dgx-h100"), gpus, "plan", options)
    asked = {**plain, "stages": stages, "schedules": ["1f1b", "1f1b-eager"]}
    assert took_s / 2.5 < seconds_of(asked, summary) < 2.5 * took_s
    if stages == "auto":
        assert seconds_of(asked, summary) > seconds_of(plain, summary)


@pytest.mark.parametrize(
    ("kind", "graph", "gpus", "stages", "options", "took_s"),
    [
        ("frontier", "gpt2", 8, [2], {}, 13.1),
        ("frontier", "gpt2", 8, "auto", {}, 16.4),
        ("frontier", "gpt2", 8, [2], {"micro_batches": [8]}, 5.7),
        ("frontier", "llama-8b", 64, [4], {"micro_batches": [16]}, 47.7),
        ("curve", "gpt2", 8, "auto", {"micro_batches": [8]}, 7.5),
        ("curve", "gpt2", 8, [2], {}, 7.6),
        ("quote", "gpt2", 4, "auto", {"micro_batches": [8]}, 7.6),
    ],
)
def test_estimates_of_answers_with_pipelines_are_near(
    kind: str, graph: str, gpus: int, stages: list[int] | str, options: Any, took_s: float
) -> None:
    """Of a quote `gpus` are the instances, at most, of one offer."""
    summary = upload_of(load_graph(f"shipped:{graph}")).summary
    asked: dict[str, Any] = question(load_hardware("dgx-h100"), gpus, kind, options)
    if kind == "curve":
        asked["max_gpus"] = asked.pop("gpus")
    elif kind == "quote":
        del asked["hardware"], asked["gpus"]
        offer = {"hardware": "dgx-h100", "gpus_per_instance": 8}
        asked |= {"offers": [offer], "max_instances": gpus}
    staged = {**asked, "stages": stages, "schedules": ["1f1b", "1f1b-eager"]}
    assert seconds_of(staged, summary) > seconds_of(asked, summary)
    assert took_s / 2.5 < seconds_of(staged, summary) < 2.5 * took_s


def test_what_makes_a_search_longer() -> None:
    """By options, on 8 GPUs."""

    def cost_s(kind: str = "plan", batch: int | None = 64, **options: Any) -> float:
        asked = question(load_hardware("dgx-h100"), 8, kind, options)
        return seconds_of(asked, {**GRAPH, "batch_size": batch})

    assert cost_s(overlap=False) < cost_s() < cost_s("frontier")
    assert cost_s(recompute="never") < cost_s() == cost_s(recompute="auto", micro_batches=[])
    assert cost_s(micro_batches=[1]) < cost_s() == cost_s(micro_batches=[1, 2, 4, 8, 16, 32, 64])
    assert cost_s(batch=1) == cost_s(batch=None) == cost_s(micro_batches=[1])
    sums = [cost_s(overlap=False, micro_batches=[*range(1, n)]) for n in (2, 3, 4)]
    assert sums == sorted(set(sums)), "sums search each number of micro-batches to the end"
    assert cost_s(method="tofu") == cost_s(overlap=False), "Tofu's recursion knows only sums"


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
