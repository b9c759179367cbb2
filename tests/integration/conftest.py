"""One PostgreSQL and one Valkey per test process; tests take their own databases and queues."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from harness import warm


@pytest.fixture(scope="session", autouse=True)
def warm_starts() -> Iterator[None]:
    """Our services and workers are forked from a process that has imported them."""
    warm.allow()
    yield
    warm.stop()


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Returns the URL of a database whose user may create others."""
    from harness.service.service_harness import DATABASE_VARIABLE, Postgres

    if given := os.environ.get(DATABASE_VARIABLE):
        yield given
        return
    server = Postgres(tmp_path_factory.mktemp("postgres"))
    server.start()
    yield server.url()
    server.stop()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Returns the URL of a broker; each user takes a queue of its own."""
    from harness.service.service_harness import REDIS_VARIABLE, Valkey

    if given := os.environ.get(REDIS_VARIABLE):
        yield given
        return
    server = Valkey()
    server.start()
    yield server.url
    server.stop()
