"""GPT-2 with four of its twelve layers: as the whole one, for a third of the time."""

from __future__ import annotations

import pytest

from harness.models.shortened import shortened
from shardwise.graph import Graph, write_graph


@pytest.fixture(scope="session")
def gpt2() -> Graph:
    """The shortened graph, which a test leaves as it is."""
    return shortened("gpt2", 4)


@pytest.fixture(scope="session")
def gpt2_file(gpt2: Graph, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same as a file, for commands."""
    path = tmp_path_factory.mktemp("gpt2") / "gpt2.json"
    write_graph(gpt2, path)
    return str(path)
