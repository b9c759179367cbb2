"""The problem reader's fuzz target, for a bounded number of inputs; `make fuzz` runs longer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fuzz.mutations import SEEDS
from harness.fuzz.problem_reader import check, without_coverage
from shardwise.errors import BadInput
from shardwise.search.problem import problem_from_json

INPUTS = 4000


def test_mutated_problems_are_read_or_refused() -> None:
    seen, read = without_coverage(seconds=60, inputs=INPUTS)
    assert seen == INPUTS
    # Both sides of the reader are met, or nothing was tested.
    assert INPUTS // 20 < read < INPUTS * 9 // 10


@given(st.binary(max_size=200))
def test_bytes_are_refused(data: bytes) -> None:
    check(data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_JSON, _JSON)
def test_documents_of_any_form_are_read_or_refused(operators: Any, edges: Any) -> None:
    schema = "shardwise.problem/1"
    check(json.dumps({"schema": schema, "operators": operators, "edges": edges}).encode())


def test_the_seeds_are_problems() -> None:
    assert all(check(seed) for seed in SEEDS)


def _refused(text: str) -> BadInput:
    with pytest.raises(BadInput) as caught:
        problem_from_json(text.encode())
    return caught.value


# What the fuzzer found.


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"name": "b"', '"name": "\\ud800"', "operators[1].name"),
        ('"name": "b"', '"\\ud800": 1, "name": "b"', "operators[1]"),
        ('"target"', '"\\udfff": [], "target"', "edges[0]"),
    ],
)
def test_half_surrogate_pairs_are_refused_by_field(old: str, new: str, field: str) -> None:
    error = _refused(SEEDS[0].decode().replace(old, new))
    assert error.field == field
    str(error).encode()


def test_whole_surrogate_pairs_are_text() -> None:
    problem = problem_from_json(
        SEEDS[0].decode().replace('"b"', '"\\ud83d\\ude00"').encode(),
    )
    assert problem.operators[1].name == "\U0001f600"


@pytest.mark.parametrize("name", ["memory_bytes", "time_s"])
def test_costs_whose_sum_overflows_are_refused(name: str) -> None:
    document = json.loads(SEEDS[0])
    document["operators"][0]["choices"][1][name] = 1.5e308
    problem_from_json(json.dumps(document).encode())
    document["edges"][0]["choices"][1][0][1][name] = 1.5e308
    assert name in str(_refused(json.dumps(document)))
