"""Tests in containers run when `--engine` says so: they take minutes and a Docker engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.containers.composed import Composed, bases
from harness.containers.engine import Missing

PROJECT = "shardwise-compose-test"


@pytest.fixture(scope="package")
def built() -> Composed:
    """The images of the service, the worker and the agent, built from this checkout."""
    try:
        composed = Composed(PROJECT, bases())
    except Missing as missing:
        pytest.skip(str(missing))
    composed.build()
    return composed


@pytest.fixture(scope="package")
def composed(built: Composed) -> Iterator[Composed]:
    """Everything brought up; `up_s` is how long it took."""
    built.down()
    try:
        built.up_s = built.up()
        yield built
    finally:
        built.down()
