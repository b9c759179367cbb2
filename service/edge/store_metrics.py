"""Gauges read from the database, so every service process gives the same answer."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import monotonic

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from service.base.store_failures import StoreUnavailable
from service.questions.question import KINDS
from service.store.agents import count_agents
from service.store.database import Database, now, size_bytes
from service.store.device_kinds import DeviceKinds
from service.store.launches import count_launches
from service.store.records import living_workers
from service.store.runs import recent_errors
from service.store.tables import ACTIVE, STATES, Job
from service.store.utilisation import Utilisations
from service.store.webhook_backlog import backlog

MOST_KINDS = 32
QUEUE_FRESH_S = 1.0


def store_families() -> dict[str, GaugeMetricFamily]:
    """Returns the gauges read from the database, still empty, by name without the prefix."""
    gauges: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("database_up", "Whether the database answers.", ()),
        ("jobs", "Stored jobs.", ("kind", "state")),
        ("queue_oldest_age_seconds", "How long the oldest queued job has waited.", ()),
        ("workers", "Live worker processes.", ()),
        ("worker_slots", "Solves that they may run at once.", ()),
        ("agents", "Enrolled agents.", ("state",)),
        ("launches", "Stored launches.", ("state",)),
        ("devices", "Devices of enrolled agents, by the agents' states.", ("device_kind", "state")),
        ("hosts", "Agents with devices of a kind, or none.", ("device_kind", "state")),
        (
            "placed_launches",
            "Launches that are placed on agents with devices of a kind, or none, and have not "
            "ended; one on several kinds counts under each.",
            ("device_kind", "state"),
        ),
        (
            "recent_runs",
            "Runs of the last day compared in this quantity.",
            ("quantity", "device_kind"),
        ),
        (
            "recent_prediction_error_ratio",
            "Median of their relative errors, without sign.",
            ("quantity", "device_kind"),
        ),
        (
            "flops_utilisation_ratio",
            "Median model flops utilisation of the last day's runs of launches: as their plans "
            "predicted it (predicted), and as their steps took (measured).",
            ("source", "device_kind"),
        ),
        ("webhooks", "Webhooks of all tenants: active, failing, disabled.", ("state",)),
        ("webhook_deliveries_pending", "Deliveries that wait, retries among them.", ()),
        ("webhook_oldest_age_seconds", "Age of the oldest delivery that waits.", ()),
        (
            "webhook_untried_seconds",
            "Longest time that a webhook has had a delivery due and no attempt: a dead receiver "
            "does not raise it, workers that do not deliver do.",
            (),
        ),
        ("database_bytes", "Size of the database; on SQLite that of its file.", ()),
        ("database_query_seconds", "Time taken to read these figures.", ()),
    )
    return {
        name: GaugeMetricFamily(f"shardwise_{name}", text, labels=labels)
        for name, text, labels in gauges
    }


class StoreCollector(Collector):
    """Reads gauges from the database, at most once a second; every process gives the same."""

    def __init__(self, database: Database, silent_s: float) -> None:
        self._database = database
        self._silent_s = silent_s
        self._until = 0.0
        self._last: list[Metric] = []
        self._kinds = DeviceKinds(MOST_KINDS)
        self._utilisations = Utilisations(MOST_KINDS)

    def describe(self) -> list[Metric]:
        """Returns nothing: asking the database while registering would start it too early."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yields the families."""
        if self._until < monotonic():
            self._last = self._ask()
            self._until = monotonic() + QUEUE_FRESH_S
        yield from self._last

    def _ask(self) -> list[Metric]:
        families = store_families()
        started = monotonic()
        try:
            with self._database.read() as session:
                counts = session.execute(
                    select(Job.kind, Job.state, func.count()).group_by(Job.kind, Job.state)
                ).all()
                oldest = session.scalar(
                    select(now() - func.min(Job.created_at)).where(Job.state == ACTIVE[0])
                )
                alive = living_workers(session, self._silent_s)
                of_agents, of_launches = count_agents(session), count_launches(session)
                by_kind = self._kinds.read(session)
                recent = recent_errors(session, MOST_KINDS)
                utilisations = self._utilisations.read(session)
                outbox = backlog(session)
                size = size_bytes(session)
        except StoreUnavailable:
            families["database_up"].add_metric((), 0)
            return [families["database_up"]]
        families["database_up"].add_metric((), 1)
        # Zeros too: an autoscaler that sees no series cannot know that the queue is empty.
        stored = {(kind, state): 0 for kind in KINDS for state in STATES}
        stored |= {(kind, state): count for kind, state, count in counts}
        for labels, count in stored.items():
            families["jobs"].add_metric(labels, count)
        families["queue_oldest_age_seconds"].add_metric((), max(oldest or 0.0, 0.0))
        families["workers"].add_metric((), len(alive))
        families["worker_slots"].add_metric((), sum(worker.slots for worker in alive))
        families["database_bytes"].add_metric((), size)
        families["database_query_seconds"].add_metric((), monotonic() - started)
        families["webhook_deliveries_pending"].add_metric((), outbox.pending)
        families["webhook_oldest_age_seconds"].add_metric((), outbox.oldest_s)
        families["webhook_untried_seconds"].add_metric((), outbox.untried_s)
        by_state = {"agents": of_agents, "launches": of_launches, "webhooks": outbox.webhooks}
        for name, count_by_state in by_state.items():
            for state, count in count_by_state.items():
                families[name].add_metric((state,), count)
        for name, of_kinds in (
            ("devices", by_kind.devices),
            ("hosts", by_kind.hosts),
            ("placed_launches", by_kind.launches),
        ):
            for kind_and_state, count in of_kinds.items():
                families[name].add_metric(kind_and_state, count)
        for of_runs, errors in recent.items():
            families["recent_runs"].add_metric(of_runs, len(errors))
            families["recent_prediction_error_ratio"].add_metric(of_runs, median(errors))
        for labels_of, ratios in utilisations.items():
            families["flops_utilisation_ratio"].add_metric(labels_of, median(ratios))
        return list(families.values())
