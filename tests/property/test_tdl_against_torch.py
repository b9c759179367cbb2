"""Descriptions against the real operators: every split is as described, and none is missing.

See `shardwise.tdl.claims` for what is compared: regions with their halos, reductions, statistics.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from harness.cases import every
from harness.tdl_unverified import UNVERIFIED
from shardwise.graph.semantics import Access, OperatorSemantics
from shardwise.tdl import Mismatch, analyse, verify
from shardwise.tdl.claims import Check, check_claims
from shardwise.tdl.coverage import shipped
from shardwise.tdl.example import Example
from shardwise.tdl.verification import PARTS, examples_of, graph_of, run_with_torch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("one_thread"),
]
SHIPPED = shipped()
Case = tuple[str, int, Example]
"""An example of a kind of operator, with its number."""

CASES: list[Case] = [(d.kind, i, e) for d in SHIPPED for i, e in enumerate(examples_of(d))]


def check_splits(case: Case) -> None:
    kind, _, example = case
    (verified,) = verify(kind, example)
    assert verified.semantics.described
    assert verified.checks or not verified.semantics.variables


def name_of(case: Case) -> str:
    return f"{case[0]}-{case[1]}"


def test_every_split_is_as_described() -> None:
    every((case for case in CASES if case[2].needs != "cuda"), check_splits, name_of)


def test_every_split_of_what_only_a_gpu_implements_is_as_described() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    every((case for case in CASES if case[2].needs == "cuda"), check_splits, name_of)


def test_every_description_has_an_example() -> None:
    without = {d.kind for d in SHIPPED if not examples_of(d)}
    assert without == set(UNVERIFIED)


def test_what_is_replicated_says_why_and_the_rest_is_split() -> None:
    assert all(len(d.replicated.split()) > 2 for d in SHIPPED if d.replicated)


def _find(kind: str, **attributes: Any) -> Example:
    return next(
        e for k, _, e in CASES if k == kind and attributes.items() <= dict(e.attributes).items()
    )


def _semantics(kind: str, example: Example) -> OperatorSemantics:
    return analyse(*graph_of(kind, example, run_with_torch(kind)))


def _checks(kind: str, example: Example, semantics: OperatorSemantics) -> tuple[Check, ...]:
    run = run_with_torch(kind)
    operator, tensors = graph_of(kind, example, run)
    return check_claims(
        operator,
        tensors,
        lambda arrays: run(example, arrays),
        parts=PARTS,
        draw=example.draw,
        semantics=semantics,
    )


def _changed(sem: OperatorSemantics, position: int, v: int, access: Access) -> OperatorSemantics:
    inputs = list(sem.inputs)
    inputs[position] = {**inputs[position], v: access}
    return replace(sem, inputs=tuple(inputs))


@pytest.mark.parametrize("side", ["halo_before", "halo_after"])
@pytest.mark.parametrize("padding", [[1, 1], [2, 2]])
def test_a_smaller_halo_is_found_out(side: str, padding: list[int]) -> None:
    kind = "aten.conv2d.default"
    example = _find(kind, padding=padding)
    sem = _semantics(kind, example)
    v = next(v for v, x in enumerate(sem.variables) if x.name == "y")
    access = sem.inputs[0][v]
    assert _checks(kind, example, sem)
    if not getattr(access, side):
        return
    less = replace(access, **{side: getattr(access, side) - 1})
    with pytest.raises(Mismatch, match="variable y"):
        _checks(kind, example, _changed(sem, 0, v, less))


def test_a_dimension_that_does_not_follow_is_found_out() -> None:
    sem = _semantics("aten.tril.default", _find("aten.tril.default"))
    with pytest.raises(Mismatch, match="output variable"):
        _checks("aten.roll.default", _find("aten.roll.default", dims=[0]), sem)


def test_a_wrong_reducer_is_found_out() -> None:
    kind = "aten.amax.default"
    sem = _semantics(kind, _find(kind))
    wrong = tuple(replace(v, reducer="sum") if v.reducer else v for v in sem.variables)
    with pytest.raises(Mismatch, match="reduction variable"):
        _checks(kind, _find(kind), replace(sem, variables=wrong))


def test_a_statistic_that_depends_on_order_is_found_out() -> None:
    softmax = Example({"self": (4, 6)}, {"dim": 1, "half_to_float": False})
    sem = _semantics("aten._softmax.default", softmax)
    assert sem.statistics
    with pytest.raises(Mismatch, match="statistic variable"):
        _checks("aten.cumsum.default", _find("aten.cumsum.default"), sem)
