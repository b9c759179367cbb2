"""Devices, hosts and launches by kind as metrics: exact, current, and of few labels."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event

from harness.service.fake_agent import devices, inventory
from harness.service.gang_store import Store
from service.edge.metrics import Metrics
from service.store.database import Database
from service.store.device_kinds import ByKind, DeviceKinds
from service.store.launch_tables import Agent

V100, TI = "V100-PCIe-16GB", "GTX1080Ti-11GB"


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)


def agent(store: Store, name: str, *kinds: str) -> str:
    return store.agent(name, max(len(kinds), 1), devices=devices(*kinds), cpu_only=not kinds)


def read(store: Store, kinds: DeviceKinds) -> ByKind:
    with store.database.read() as session:
        return kinds.read(session)


def there(counts: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    return {labels: count for labels, count in counts.items() if count}


def test_hosts_and_devices_by_kind_and_state(store: Store) -> None:
    agent(store, "a", V100, V100)
    agent(store, "b", TI, V100)
    lost = agent(store, "c", TI)
    drained = agent(store, "d", TI)
    agent(store, "e")
    store.set(Agent, lost, state="lost")
    store.set(Agent, drained, drained=True)
    found = read(store, DeviceKinds(32))
    assert there(found.devices) == {
        (V100, "live"): 3, (TI, "live"): 1, (TI, "lost"): 1, (TI, "drained"): 1,
    }  # fmt: skip
    assert there(found.hosts) == {
        (V100, "live"): 2, (TI, "live"): 1, (TI, "lost"): 1, (TI, "drained"): 1,
        ("none", "live"): 1,
    }  # fmt: skip
    # A series that is not there cannot be seen to fall to 0.
    assert found.devices[V100, "lost"] == 0
    assert found.launches == {}


def test_a_launch_counts_under_each_of_its_kinds(store: Store) -> None:
    agents = [agent(store, "a", V100), agent(store, "b", TI), agent(store, "c", TI)]
    launch = store.launch(agents)
    store.launch([agent(store, "d")])
    waiting = store.launch(["e"])
    assert len(store.place()) == 4
    kinds = DeviceKinds(32)
    state = store.see(launch).state
    assert there(read(store, kinds).launches) == {
        (V100, state): 1, (TI, state): 1, ("none", state): 1,
    }  # fmt: skip
    assert store.see(waiting).state == "queued"
    for part in store.parts(launch):
        claimed = store.must_claim(part.agent_id)
        store.report_state(claimed, "running")
    assert there(read(store, kinds).launches)[TI, "running"] == 1
    for part in store.parts(launch):
        store.report_state(part, "done")
    assert store.see(launch).state == "done"
    assert there(read(store, kinds).launches) == {("none", state): 1}


def test_the_number_of_named_kinds_is_bounded(store: Store) -> None:
    agent(store, "a", V100, V100, TI, TI, "L4")
    agent(store, "b", "A10", "", V100)
    found = read(store, DeviceKinds(2))
    assert there(found.devices) == {(V100, "live"): 3, (TI, "live"): 2, ("other", "live"): 3}
    assert there(found.hosts) == {(V100, "live"): 2, (TI, "live"): 1, ("other", "live"): 2}


def test_a_host_may_say_its_kind_itself(store: Store) -> None:
    store.agent("a", kind="slow")
    store.agent("b", kind="fast", devices=devices(V100), cpu_only=False)
    found = read(store, DeviceKinds(32))
    assert there(found.devices) == {("fast", "live"): 1}
    assert there(found.hosts) == {("fast", "live"): 1, ("slow", "live"): 1}


def test_an_inventory_is_read_again_only_when_it_has_changed(store: Store) -> None:
    changed = agent(store, "a", V100)
    agent(store, "b", TI)
    kinds, statements = DeviceKinds(32), []

    def note(_1: Any, _2: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)

    read(store, kinds)
    event.listen(store.database.engine, "before_cursor_execute", note)
    read(store, kinds)
    assert statements and not any("agents.inventory " in one for one in statements)
    store.set(
        Agent, changed, inventory=inventory(1, devices=devices("L4")), inventory_hash="sha256:1"
    )
    assert there(read(store, kinds).devices) == {("L4", "live"): 1, (TI, "live"): 1}


def test_the_metrics_have_them(store: Store) -> None:
    agent(store, "a", V100, TI)
    metrics = Metrics(store.database, 30.0)
    samples = {
        (sample.name, sample.labels.get("device_kind"), sample.labels.get("state")): sample.value
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
        for sample in family.samples
    }
    assert samples["shardwise_devices", V100, "live"] == 1
    assert samples["shardwise_hosts", TI, "live"] == 1
    assert samples["shardwise_hosts", TI, "lost"] == 0
