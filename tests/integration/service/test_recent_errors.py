"""The prediction errors of the last day as metrics: exact, from the first run on, few labels."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from harness.service.gang_store import Store
from service.edge.metrics import Metrics
from service.store.database import Database, now
from service.store.launch_tables import Run
from service.store.runs import RECENT_S, measurements_for, recent_errors
from service.store.utilisation import Utilisations


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)


def ran(store: Store, kind: str, iteration: float, age_s: float = 1.0, **errors: Any) -> None:
    launch = store.launch()
    with store.database.write() as session:
        session.add(
            Run(
                id=f"run_{launch}", tenant_id="t", launch_id=launch, assignment_id="a", name="r",
                created_at=now() - age_s, graph_id="g", graph_name="g", hardware_id="h",
                hardware_name="h", device_kind=kind, iteration_error=iteration,
                **{"document": {}, **errors},
            )
        )  # fmt: skip


def test_of_the_last_day_without_sign(store: Store) -> None:
    ran(store, "V100", -0.5, peak_error=0.1)
    ran(store, "V100", 0.2)
    ran(store, "V100", 0.9, age_s=RECENT_S + 60)
    ran(store, "", 0.3)
    with store.database.read() as session:
        by_labels = recent_errors(session, 32)
    assert {labels: sorted(errors) for labels, errors in by_labels.items()} == {
        ("iteration", "V100"): [0.2, 0.5],
        ("peak", "V100"): [0.1],
        ("iteration", "unknown"): [0.3],
    }


def test_held_runs_count_once_they_are_accepted(store: Store) -> None:
    """In what alerts read, and in what a profile is refitted from."""
    ran(store, "L4", 0.1)
    for n, judged in enumerate((None, "rejected", "accepted")):
        ran(store, "L4", 10.0 + n, held="too fast", judged=judged)
    with store.database.read() as session:
        assert sorted(recent_errors(session, 32)["iteration", "L4"]) == [0.1, 12.0]
        fitted = measurements_for(session, "t", "h", None, 100)
    assert sorted(run.iteration_error or 0.0 for run in fitted) == [0.1, 12.0]


def test_utilisations_of_runs_are_measured_beside_predicted(store: Store) -> None:
    of_plan = {"predicted": {"model_flops_utilisation": 0.5}}
    ran(store, "V100", 0.25, document=of_plan)
    ran(store, "V100", 0.0, document={"predicted": {}})
    ran(store, "V100", -0.9, document=of_plan, held="too fast")
    ran(store, "V100", 0.0, age_s=RECENT_S + 60, document=of_plan)
    utilisations = Utilisations(32)
    for _ in range(2):  # the second time from memory
        with store.database.read() as session:
            found = utilisations.read(session)
        assert found == {("predicted", "V100"): [0.5], ("measured", "V100"): [0.4]}
    ran(store, "", 0.0, document=of_plan)
    with store.database.read() as session:
        assert utilisations.read(session)["measured", "unknown"] == [0.5]


def test_the_number_of_named_kinds_is_bounded(store: Store) -> None:
    for n, kind in enumerate(("A", "A", "B", "C", "D")):
        ran(store, kind, n / 10)
    with store.database.read() as session:
        by_labels = recent_errors(session, 2)
    assert len(by_labels) == 3 and by_labels["iteration", "A"] == [0.1, 0.0]
    assert len(by_labels["iteration", "other"]) == 2


def test_the_first_run_is_seen(store: Store) -> None:
    """And every bounded series of a counter is there before its first event."""
    metrics = Metrics(store.database, 30.0)
    ran(store, "L4", -0.4)
    ran(store, "L4", 0.1)
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
        for sample in family.samples
    }
    assert samples["shardwise_recent_runs", "L4", "iteration"] == 2
    assert samples["shardwise_recent_prediction_error_ratio", "L4", "iteration"] == 0.25
    for outcome in ("accepted", "refused"):
        assert samples["shardwise_reports_total", outcome] == 0
    assert samples["shardwise_answers_total", "curve", "memory"] == 0
    assert samples["shardwise_jobs", "curve", "queued"] == 0
    assert samples[("shardwise_database_bytes",)] > 10_000
