"""Metrics for Prometheus: prefix `shardwise_`, base units, no unbounded label."""

from __future__ import annotations

from msgspec.structs import asdict
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from service.cluster.measurements import Errors
from service.edge.estimate_metrics import EstimateMetrics
from service.edge.loop_lag import LoopLag
from service.edge.queue_metrics import QueueMetrics
from service.edge.store_metrics import MOST_KINDS, StoreCollector
from service.questions.question import KINDS
from service.store.database import Database

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SOLVE_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
LAG_S = (0.1, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 3600.0, 86400.0)
ERRORS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
LIMITS = ("key", "address", "enrolment")
REFUSALS = ("unknown", "replayed", "expired")
SOURCES = ("memory", "store", "joined", "computed")
CONNECTION_REFUSALS = ("connections", "evicted", "head", "time", "malformed", "tls")
OUTCOMES = ("done", "failed", "cancelled")
"""Outcomes of a solve; rarer ones (crashed, returned, lost, gave way) have one once they occur."""

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
        self.defects = Counter(
            "shardwise_defects",
            "Requests and calls of tools that ended in a defect of Shardwise.",
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
        self.lag = LoopLag(self.registry)
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
        self.queue = QueueMetrics(self.registry)
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
