"""A service forked from a warm process does what one does that was started as users start it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import warm
from harness.service.service_harness import (
    App,
    Service,
    alive,
    children,
    command_of,
    descendants,
    wait_until,
)
from harness.service.steps import mlp, upload


class RealService(Service):
    warm = False


@pytest.fixture(params=[Service, RealService])
def service(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    started = request.param(tmp_path)
    yield started
    started.stop()


def embedded_workers(service: Service) -> list[int]:
    return [pid for pid in children(service.pid) if command_of(pid).rstrip().endswith("worker")]


def test_it_answers_keeps_its_worker_and_leaves_nothing(service: Service) -> None:
    assert bool(warm.forked(service.pid)) == service.warm
    graph = upload(service, mlp())
    (worker,) = wait_until(lambda: embedded_workers(service), "a worker has started")
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: worker not in (now := embedded_workers(service)) and now, "another has")
    body = {"graph": graph, "hardware": "dgx-v100-16gb", "gpus": 2}
    answer = service.client.post("/v1/frontiers", json=body)
    assert service.ended(answer.headers["Location"])["state"] == "done"
    below = descendants(service.pid)
    assert service.stop() == 0
    assert not any(map(alive, below))


@pytest.mark.parametrize("is_warm", [True, False])
def test_an_error_is_one_line_and_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_warm: bool
) -> None:
    monkeypatch.setattr(App, "warm", is_warm)
    app = App(tmp_path, "serve", "--port", "99999")
    assert app.process.wait(120) == 2
    assert app.log.read_text().startswith("shardwise: error: ")
    assert app.log.read_text().count("\n") == 1
