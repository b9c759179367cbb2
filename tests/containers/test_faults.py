"""Faults between containers, under load: every accepted job ends once, nothing is left over, alerts
fire and clear; services and workers are replaced one by one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from harness.containers.engine import Missing, has_image, run
from harness.containers.fault_load import Load
from harness.containers.fault_plan import LONG_S, Fault
from harness.containers.fault_system import FaultSystem, fault_system
from harness.containers.faults import shake, table
from harness.service.service_harness import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

PROJECT = "shardwise-fault-test"
WELL_S, FIRES_S, CLEARS_S = 180.0, 180.0, 180.0
"""Patience, not targets: the table has what it took."""
FAULTS = (
    Fault("kill", "worker", replica=1),
    Fault("pause", "worker", hold_s=LONG_S),
    Fault("cut", "postgres", hold_s=LONG_S),
    Fault("kill", "service"),
    Fault("full", "postgres", hold_s=3.0),
    Fault("memory", "worker"),
    Fault("silent", "redis", hold_s=LONG_S),
    Fault("pause", "agent", hold_s=LONG_S),
    Fault("slow", "service", hold_s=3.0),
    Fault("late", "postgres", hold_s=3.0),
    Fault("kill", "postgres"),
    Fault("full", "redis", hold_s=3.0),
    Fault("memory", "service"),
)
MUST_BE_NOTICED = ("kill service", "pause agent", "cut postgres", "full redis", "pause worker")


@pytest.fixture(scope="module")
def system() -> Iterator[FaultSystem]:
    """The system brought up; at the end nothing of it may be left."""
    if os.geteuid():
        pytest.skip("needs root: faults are made in other processes' networks")
    try:
        system = fault_system(PROJECT)
    except Missing as missing:
        pytest.skip(str(missing))
    if not has_image("shardwise-service:local"):
        pytest.skip("needs images: python -m harness.containers.composed")
    try:
        system.up()
        yield system
    finally:
        left = system.down()
    assert left == {}


def well(system: FaultSystem) -> bool:
    return not system.unwell(time.time() - 5)


def test_jobs_end_once_whatever_happens(system: FaultSystem) -> None:
    figures = shake(system, list(FAULTS), minutes=30)
    print("\n" + table(figures))
    assert figures["faults"] == len(FAULTS)
    assert figures["jobs"]["done"] > 0
    assert not any(figures["wrong"].values()), figures["wrong"]
    noticed = {
        f"{o['fault']['kind']} {o['fault']['target']}" for o in figures["outcomes"] if o["said"]
    }
    assert set(MUST_BE_NOTICED) <= noticed


def test_services_and_workers_are_replaced_one_by_one(system: FaultSystem) -> None:
    wait_until(lambda: well(system), "all is well before", WELL_S)
    load = Load(system)
    load.start()
    wait_until(lambda: len(load.ends) >= 2, "jobs are computed", WELL_S)
    up = ("up", "--detach", "--no-deps", "--no-build", "--pull", "never")
    old = {container for target in ("worker", "service") for container in system.ids[target]}
    for worker in system.ids["worker"]:
        run("docker", "stop", worker)
        run("docker", "rm", worker)
        system.composed.compose(*up, "--no-recreate", "worker")
        system.look()
        wait_until(lambda: well(system), "the new worker is alive", WELL_S)
    system.composed.compose(*up, "--force-recreate", "service")
    system.look()
    wait_until(lambda: well(system), "the new service answers", WELL_S)
    ended = len(load.ends)
    wait_until(lambda: len(load.ends) > ended, "the new ones compute", WELL_S)
    load.finish()
    assert not old & {c for target in ("worker", "service") for c in system.ids[target]}
    jobs = load.account()
    print(jobs)
    assert not any(jobs["wrong"].values()), jobs
    assert jobs["failed"] == {}
    assert system.left_running() == {}


@pytest.mark.parametrize(
    ("alert", "target"),
    [
        ("ShardwiseDown", "service"),
        ("ShardwiseWorkersDown", "worker"),
        ("ShardwiseDatabaseDown", "postgres"),
    ],
)
def test_an_alert_fires_and_clears(system: FaultSystem, alert: str, target: str) -> None:
    """Rules are those of deploy/prometheus with shorter waits (`shorten`)."""
    wait_until(lambda: well(system), "all is well before", WELL_S)
    wait_until(lambda: alert not in firing(system), "the alert does not fire before", CLEARS_S)
    down = time.monotonic()
    for container in system.ids[target]:
        # The engine takes this for a stop: the container stays down.
        run("docker", "kill", container)
    wait_until(lambda: alert in firing(system), f"{alert} fires", FIRES_S)
    fired = time.monotonic()
    for container in system.ids[target]:
        run("docker", "start", container)
    wait_until(lambda: alert not in firing(system), f"{alert} is over", CLEARS_S)
    print(f"{alert}: fired after {fired - down:.0f} s, cleared {time.monotonic() - fired:.0f} s on")
    wait_until(lambda: well(system), "all is well again", WELL_S)


def firing(system: FaultSystem) -> set[str]:
    """Returns the names of the alerts that fire."""
    url = f"http://127.0.0.1:{system.composed.prometheus_port}/api/v1/alerts"
    try:
        with urlopen(url, timeout=5) as answer:
            alerts: list[dict[str, Any]] = json.load(answer)["data"]["alerts"]
    except URLError:
        return {"Prometheus does not answer"}
    return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}
