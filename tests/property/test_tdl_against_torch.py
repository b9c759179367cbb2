"""Descriptions against the real operators: every split is as described, and none is missing.

See `shardwise.tdl.verify` for what is compared: regions with their halos, reductions, statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
from tdl_cases import CASES, NOT_RUN, Case
from tdl_torch import draw, graph_of, run

from shardwise.tdl import analyse, described_kinds
from shardwise.tdl.semantics import Access, OperatorSemantics
from shardwise.tdl.verify import Check, Mismatch, verify

pytestmark = pytest.mark.torch
PARTS = (2, 3, 4)


def _checks(case: Case, semantics: OperatorSemantics | None = None) -> tuple[Check, ...]:
    operator, tensors = graph_of(case)

    def quiet(arrays: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        return run(case, arrays)

    return verify(
        operator, tensors, quiet, parts=PARTS, draw=partial(draw, case), semantics=semantics
    )


def _semantics(case: Case) -> OperatorSemantics:
    return analyse(*graph_of(case))


@pytest.mark.parametrize("case", CASES, ids=[f"{c.kind}-{i}" for i, c in enumerate(CASES)])
def test_every_split_is_as_described(case: Case) -> None:
    semantics = _semantics(case)
    assert semantics.described
    checks = _checks(case)
    split = {check.variable for check in checks}
    assert split or not semantics.variables


def test_every_described_operator_is_run() -> None:
    cases = {case.kind for case in CASES}
    assert set(described_kinds()) == cases | set(NOT_RUN)
    assert not cases & set(NOT_RUN)


def _find(kind: str, **attributes: Any) -> Case:
    return next(c for c in CASES if c.kind == kind and attributes.items() <= c.attributes.items())


def _changed(sem: OperatorSemantics, position: int, v: int, access: Access) -> OperatorSemantics:
    inputs = list(sem.inputs)
    inputs[position] = {**inputs[position], v: access}
    return replace(sem, inputs=tuple(inputs))


@pytest.mark.parametrize("side", ["halo_before", "halo_after"])
@pytest.mark.parametrize("padding", [[1, 1], [2, 2]])
def test_a_smaller_halo_is_found_out(side: str, padding: list[int]) -> None:
    case = _find("aten.conv2d.default", padding=padding)
    sem = _semantics(case)
    v = next(v for v, x in enumerate(sem.variables) if x.name == "y")
    access = sem.inputs[0][v]
    assert _checks(case)
    if not getattr(access, side):
        return
    less = replace(access, **{side: getattr(access, side) - 1})
    with pytest.raises(Mismatch, match="variable y"):
        _checks(case, _changed(sem, 0, v, less))


def test_a_dimension_that_does_not_follow_is_found_out() -> None:
    case = _find("aten.roll.default", dims=[0])
    sem = _semantics(_find("aten.tril.default"))
    with pytest.raises(Mismatch, match="output variable"):
        _checks(case, sem)


def test_a_wrong_reducer_is_found_out() -> None:
    case = _find("aten.amax.default")
    sem = _semantics(case)
    wrong = tuple(replace(v, reducer="sum") if v.reducer else v for v in sem.variables)
    with pytest.raises(Mismatch, match="reduction variable"):
        _checks(case, replace(sem, variables=wrong))


def test_a_statistic_that_depends_on_order_is_found_out() -> None:
    case = _find("aten.cumsum.default")
    sem = _semantics(_find("aten._softmax.default"))
    softmax = _semantics(
        Case("aten._softmax.default", {"self": (4, 6)}, {"dim": 1, "half_to_float": False})
    )
    assert sem.statistics
    with pytest.raises(Mismatch, match="statistic variable"):
        _checks(case, softmax)
