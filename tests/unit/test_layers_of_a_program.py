"""A program that is stamped from a few layers is the one that is written whole, in every number."""

from __future__ import annotations

from dataclasses import fields
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.strategies import problem_of
from shardwise.capture.shipped import load_graph
from shardwise.cost.assemble import SearchProblem
from shardwise.cost.options import Options
from shardwise.cost.step_settings import StepSettings
from shardwise.graph import Graph
from shardwise.hardware import load_hardware
from shardwise.replay import kit as kits
from shardwise.replay.kit import Kit, kit_of, written_kit
from shardwise.replay.program import step_program
from shardwise.replay.record import Record, Values
from shardwise.replay.stamp import stamped

FOLDED = (
    "gpt2", "bert-base", "vit-b", "llama3.2-1b", "qwen3-0.6b", "llama3-8b", "mixtral-8x7b",
    "qwen3-30b-a3b", "whisper-large", "mamba-2.8b",
)  # fmt: skip
WHOLE = ("gpt-oss-20b", "smollm3-3b")
"""Models of which too few layers repeat."""


@cache
def _graph(name: str) -> Graph:
    return load_graph(name)


def _problem(name: str, gpus: int, batches: int, options: Options) -> SearchProblem:
    return problem_of(_graph(name), load_hardware("dgx-h100"), gpus, options, batches)


def _both(problem: SearchProblem, options: Options, *, split: bool = False) -> tuple[Kit, Kit]:
    """Returns the program as it is made, and as it is written whole."""
    made, _ = written_kit(problem, options.step, split=split)
    return made, kit_of(step_program(problem, options.step, split=split))


def _are_equal(made: Kit, whole: Kit) -> None:
    for field in fields(Record):
        one, other = (getattr(kit.tape, field.name) for kit in (made, whole))
        if isinstance(one, Values):
            assert np.array_equal(one.cells, other.cells), field.name
            assert np.array_equal(one.constants, other.constants), field.name
        elif isinstance(one, np.ndarray):
            assert np.array_equal(one, other), field.name
        elif isinstance(one, dict):
            assert list(one.items()) == list(other.items()), field.name
        else:
            assert list(one) == list(other), field.name
    for name in ("repeat", "last_backward", "passes", "update", "edge_tables"):
        assert getattr(made, name) == getattr(whole, name), name
    for table, other in zip(made.tables, whole.tables, strict=True):
        assert list(table.columns.items()) == list(other.columns.items())
        assert table.facts == other.facts


@pytest.fixture
def is_stamped(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each program made in the test was stamped."""
    outcomes: list[bool] = []

    def watched(*arguments: object) -> object:
        outcomes.append((result := stamped(*arguments)) is not None)  # type: ignore[arg-type]
        return result

    monkeypatch.setattr(kits, "stamped", watched)
    return outcomes


@pytest.mark.parametrize("model", FOLDED)
def test_a_stamped_program_is_the_one_written_whole(model: str, is_stamped: list[bool]) -> None:
    options = Options(max_configurations=8)
    _are_equal(*_both(_problem(model, 8, 4, options), options))
    assert is_stamped == [True]


@pytest.mark.parametrize("model", WHOLE)
def test_models_of_which_few_layers_repeat_are_written_whole(
    model: str, is_stamped: list[bool]
) -> None:
    options = Options(max_configurations=8)
    _are_equal(*_both(_problem(model, 8, 2, options), options))
    assert is_stamped == []


SETTINGS = st.builds(
    StepSettings,
    update=st.sampled_from(["fused", "foreach", "for-loop"]),
    state=st.sampled_from(["float32", "captured", "8bit"]),
    gradients=st.sampled_from(["captured", "float32"]),
    accumulation=st.sampled_from(["shards", "whole"]),
    offload=st.sampled_from(["none", "none", "states"]),
)


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    model=st.sampled_from(["gpt2", "llama3.2-1b", "vit-b", "qwen3-0.6b"]),
    batches=st.sampled_from([1, 2, 4, 8]),
    gpus=st.sampled_from([1, 2, 8]),
    zero=st.sampled_from([(1,), (2,), (3,), (0, 3), (0, 1, 2, 3)]),
    recompute=st.sampled_from(["auto", "never", "always"]),
    optimizer=st.sampled_from(["adam", "sgd"]),
    step=SETTINGS,
    split=st.booleans(),
)
def test_a_stamped_program_is_the_one_written_whole_under_any_settings(
    model: str,
    batches: int,
    gpus: int,
    zero: tuple[int, ...],
    recompute: str,
    optimizer: str,
    step: StepSettings,
    split: bool,
) -> None:
    options = Options(
        max_configurations=8, zero=zero, recompute=recompute, optimizer=optimizer, step=step
    )
    _are_equal(*_both(_problem(model, gpus, batches, options), options, split=split))
