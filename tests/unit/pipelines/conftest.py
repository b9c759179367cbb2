"""The whole GPT-2 as pipelines see it: its units, the stages of two L4."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.cost.options import quiet
from shardwise.graph import Graph, read_graph
from shardwise.hardware import load_hardware
from shardwise.search.pipelines.stages import StageProblems
from shardwise.search.pipelines.subject import StagedSubject
from shardwise.search.pipelines.units import Units
from shardwise.search.search import Draft, Search, mesh_of

L4 = load_hardware("l4")
OPTIONS = Options(micro_batches=(8,))


@pytest.fixture(scope="session")
def whole() -> Graph:
    return read_graph(shipped_graph("gpt2"))


@pytest.fixture(scope="module")
def staged(whole: Graph) -> StagedSubject:
    return StagedSubject.of(whole)


@pytest.fixture(scope="module")
def units(staged: StagedSubject) -> Units:
    return Units.of(staged.subject.patterns)


@pytest.fixture(scope="module")
def search(staged: StagedSubject) -> Search:
    """GPT-2 on the two devices of a stage."""
    draft = Draft.of(staged.subject, L4, mesh_of(L4, 2), OPTIONS, quiet, 8)
    return draft.joined(quiet)


@pytest.fixture(scope="module")
def stages(search: Search, units: Units) -> StageProblems:
    guide = np.array([int(cost.time_s.argmin()) for cost in search.problem.costs])
    return StageProblems(search.problem, units, guide)
