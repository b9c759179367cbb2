"""What tests of executed plans share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.execute.ranks import Ranks


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    """Four ranks, for the tests of a module."""
    from harness.execute.ranks import Ranks  # torch is not everywhere

    ranks = Ranks(4)
    yield ranks
    ranks.stop()
