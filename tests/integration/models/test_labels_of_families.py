"""Labels of captured families: encoder and decoder, mixture of experts, residual networks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardwise.answers import Options
from shardwise.answers.label import Labels
from shardwise.answers.roles import Role, group_roles
from shardwise.capture import capture
from shardwise.cost.options import quiet
from shardwise.hardware import load_hardware
from shardwise.peers.data_parallel import data_parallel_rows
from shardwise.peers.megatron import megatron
from shardwise.peers.spaces import problem_with, splits_only
from shardwise.search.search import Search, Subject, search
from shardwise.sharding.routing import ROUTED

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SOURCES = {
    "T5": ("hf:T5Config:num_layers=3", 8, 128),
    "Mixtral": (
        "hf:MixtralConfig:num_hidden_layers=2,hidden_size=256,intermediate_size=4096,"
        "num_attention_heads=8,num_key_value_heads=4,vocab_size=1024",
        8,
        128,
    ),
    "ResNet": ("timm:resnet18:img_size=64", 8, None),
}


@pytest.fixture(scope="module", params=SOURCES)
def family(request: pytest.FixtureRequest) -> tuple[str, Search]:
    source, batch, length = SOURCES[request.param]
    graph = capture(source, batch=batch, seq=length)
    options = Options(overlap=False, epsilon=0.5, zero=(0,))
    machine = replace(load_hardware("dgx-a100-80gb"), collectives=())
    return request.param, search(Subject.of(graph), machine, 4, options)


def test_known_strategies(family: tuple[str, Search]) -> None:
    name, of = family
    layers = {"T5": "all 6", "Mixtral": "all 2", "ResNet": "all 8"}[name]
    splits = splits_only(of)
    assert Labels(splits).of(data_parallel_rows(splits).choices) == "DP 4"
    sharded = problem_with(of, (3,), "always")
    rows = data_parallel_rows(sharded).choices
    assert Labels(sharded).of(rows) == f"FSDP 4, recompute in {layers} layers"
    labels = Labels(splits)
    megatrons: dict[str, Any] = {
        point.label: labels.of(point.choices)
        for point in megatron(splits, of.options, quiet).points
    }
    if name == "ResNet":
        # Its first convolutions are faster in full.
        assert megatrons["dp2·tp2"].startswith("mixed: TP 2 × DP 2 and ")
    else:
        assert megatrons["dp2·tp2"] == "TP 2 × DP 2"
        assert megatrons["dp1·tp4"] == "TP 4"
    if name == "T5":
        assert megatrons["dp1·tp4·sp"] == "TP 4 (SP)"


def test_split_experts_are_expert_parallel(family: tuple[str, Search]) -> None:
    name, of = family
    problem = splits_only(of)
    roles = group_roles(problem.coarsened)
    experts = [g for g, group in enumerate(roles) if group.has(Role.EXPERT)]
    assert bool(experts) == (name == "Mixtral")
    if not experts:
        return
    rows = data_parallel_rows(problem).choices.copy()
    for g in experts:
        routed = problem.coarsened.groups[g].variables.index(ROUTED)
        [rows[g]] = np.flatnonzero((problem.costs[g].assignment == routed).all(axis=1))
    labels = Labels(problem)
    assert labels.of(rows) == "EP 4 × DP 4"
    [all_of_it] = labels.mixtures(rows)
    assert (all_of_it.label, all_of_it.compute) == ("EP 4 × DP 4", pytest.approx(1.0))
