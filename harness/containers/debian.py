"""Images of containers that are hosts: Debian with some of its packages, where Python can run."""

from __future__ import annotations

import pytest

from harness.containers.bases import debian
from harness.containers.engine import Missing, engine
from harness.containers.stand_ins import RECIPES, layered

SUITE = "bookworm"
"""Must not be older than what the mounted interpreter was built for."""
PYTHON_NEEDS = ("libffi8", "libgomp1", "libsqlite3-0", "libssl3", "libstdc++6")
"""Libraries of a mounted Python and of torch."""


def image(name: str, *packages: str) -> str:
    """Returns the image `shardwise-NAME` with these packages; the first call makes it (a minute).

    Another list of packages is another image. Skips the test where there is no container engine, or
    the image is not there and this machine lacks what it is made with.
    """
    try:
        engine()
        wanted = " ".join(sorted({*packages, *PYTHON_NEEDS}))
        return layered(name, RECIPES / "hosts", debian(SUITE), PACKAGES=wanted)
    except Missing as missing:
        pytest.skip(str(missing))
