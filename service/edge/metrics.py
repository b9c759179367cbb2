"""Metrics for Prometheus: prefix `shardwise_`, base units, no unbounded label."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import monotonic

from msgspec.structs import asdict
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from service.base.store_failures import StoreUnavailable
from service.cluster.measurements import Errors
from service.edge.estimate_metrics import EstimateMetrics
from service.questions.question import KINDS
from service.store.agents import count_agents
from service.store.database import Database, now
from service.store.device_kinds import DeviceKinds
from service.store.launches import count_launches
from service.store.records import living_workers
from service.store.runs import recent_errors
from service.store.tables import ACTIVE, STATES, Job
from service.store.webhook_backlog import backlog

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SOLVE_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
LAG_S = (0.1, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 3600.0, 86400.0)
ERRORS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
MOST_KINDS = 32
LIMITS = ("key", "address", "enrolment")
REFUSALS = ("unknown", "replayed", "expired")
SOURCES = ("memory", "store", "joined", "computed")
CONNECTION_REFUSALS = ("connections", "evicted", "head", "time", "malformed", "tls")
OUTCOMES = ("done", "failed", "cancelled")
"""Outcomes of a solve; rarer ones (crashed, returned, lost, gave way) have one once they occur."""

QUEUE_FRESH_S = 1.0

ANSWERED = "shardwise.answered"
"""Key of a request's scope: the path it counts under if it was answered before routing."""


class Metrics:
    """A service process's metrics; each app has its own registry."""

    def __init__(self, database: Database, silent_s: float) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.requests = Counter(
            "shardwise_requests",
            "HTTP requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.latency = Histogram(
            "shardwise_request_duration_seconds",
            "Time to answer an HTTP request; event streams and waits for work are not in it.",
            ("route",),
            buckets=LATENCY_S,
            registry=self.registry,
        )
        self.answers = Counter(
            "shardwise_answers",
            "Questions by where their answer came from: memory, store, a running job (joined), or "
            "a new computation.",
            ("kind", "source"),
            registry=self.registry,
        )
        self.rings = Counter(
            "shardwise_rings", "Messages to the broker.", ("outcome",), registry=self.registry
        )
        self.refused = Counter(
            "shardwise_connections_refused",
            "Connections ended by a bound before the application saw a request: too many "
            "(connections), ended for a newer one (evicted), too long a head (head), too slow "
            "(time), no HTTP (malformed), no handshake (tls).",
            ("reason",),
            registry=self.registry,
        )
        for reason in CONNECTION_REFUSALS:
            self.refused.labels(reason)
        self.connections = Gauge(
            "shardwise_connections", "Connections that are open.", registry=self.registry
        )
        # A series that begins at its first event hides it: increase() and rate() see no step.
        for kind in KINDS:
            for source in SOURCES:
                self.answers.labels(kind, source)
        for outcome in ("sent", "failed"):
            self.rings.labels(outcome)
        self.agents = AgentMetrics(self.registry)
        self.limits = LimitMetrics(self.registry)
        self.registry.register(StoreCollector(database, silent_s))


class AgentMetrics:
    """Metrics of the reports that this process received from agents."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reports = Counter(
            "shardwise_reports", "Reports of agents.", ("outcome",), registry=registry
        )
        self.report_lag = Histogram(
            "shardwise_report_lag_seconds",
            "From a report's making, by the agent's clock, to its arrival here.",
            buckets=LAG_S,
            registry=registry,
        )
        self.errors = Histogram(
            "shardwise_prediction_relative_error",
            "Absolute relative error of a plan's prediction against the run's measurement.",
            ("quantity", "device_kind"),
            buckets=ERRORS,
            registry=registry,
        )
        self.enrolments_refused = Counter(
            "shardwise_enrolments_refused",
            "Enrolments refused for their token.",
            ("reason",),
            registry=registry,
        )
        self._kinds: set[str] = set()
        for outcome in ("accepted", "refused"):
            self.reports.labels(outcome)
        for reason in REFUSALS:
            self.enrolments_refused.labels(reason)

    def observe(self, device_kind: str, errors: Errors) -> None:
        """Counts a run's errors. Agents name the kinds; beyond `MOST_KINDS` they are `other`."""
        kind = device_kind or "unknown"
        if kind not in self._kinds and len(self._kinds) >= MOST_KINDS:
            kind = "other"
        self._kinds.add(kind)
        for quantity, error in asdict(errors).items():
            if error is not None:
                self.errors.labels(quantity, kind).observe(abs(error))


class LimitMetrics:
    """Requests beyond a rate, and how the rates were counted."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.limited = Counter(
            "shardwise_rate_limited",
            "Requests answered 429 because a key, an address without one, or an address that "
            "enrols asked too often.",
            ("limit",),
            registry=registry,
        )
        self.alone = Counter(
            "shardwise_rate_checks_alone",
            "Requests whose rate this process counted alone, because the broker was away.",
            registry=registry,
        )
        for limit in LIMITS:
            self.limited.labels(limit)


class WorkerMetrics:
    """A worker process's metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.solves = Counter(
            "shardwise_solves", "Solves ended.", ("kind", "outcome"), registry=self.registry
        )
        self.duration = Histogram(
            "shardwise_solve_duration_seconds",
            "Time from claim to end of a solve.",
            ("kind",),
            buckets=SOLVE_S,
            registry=self.registry,
        )
        self.rung_again = Counter(
            "shardwise_rings_repeated", "Jobs that were rung for again.", registry=self.registry
        )
        self.webhooks = WebhookMetrics(self.registry)
        self.estimates = EstimateMetrics(self.registry)
        for kind in KINDS:
            self.duration.labels(kind)
            for outcome in OUTCOMES:
                self.solves.labels(kind, outcome)


class WebhookMetrics:
    """Metrics of a worker process's webhook deliveries."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.attempts = Counter(
            "shardwise_webhook_attempts",
            "Attempts to deliver by how they count: delivered, postponed, given up, or lost to "
            "another worker.",
            ("outcome",),
            registry=registry,
        )
        self.duration = Histogram(
            "shardwise_webhook_attempt_duration_seconds",
            "Time of an attempt to deliver, name lookup included.",
            buckets=LATENCY_S,
            registry=registry,
        )
        for outcome in ("delivered", "postponed", "given up", "lost"):
            self.attempts.labels(outcome)


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
        ("webhooks", "Webhooks of all tenants: active, failing, disabled.", ("state",)),
        ("webhook_deliveries_pending", "Deliveries that wait, retries among them.", ()),
        ("webhook_oldest_age_seconds", "Age of the oldest delivery that waits.", ()),
        (
            "webhook_untried_seconds",
            "Longest time that a webhook has had a delivery due and no attempt: a dead receiver "
            "does not raise it, workers that do not deliver do.",
            (),
        ),
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
                outbox = backlog(session)
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
        return list(families.values())
