"""What tests of executed plans share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.execute.keeper import SharedRanks


def _shared(world: int) -> SharedRanks:
    from harness.execute.keeper import SharedRanks, keeper  # torch is not everywhere

    return SharedRanks(keeper(), world)


@pytest.fixture(scope="session")
def four() -> SharedRanks:
    """Four ranks, for all tests of this process."""
    return _shared(4)


@pytest.fixture(scope="session")
def two() -> SharedRanks:
    """Two ranks."""
    return _shared(2)
