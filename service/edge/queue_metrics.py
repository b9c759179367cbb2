"""Metrics of a worker's jobs: how long they waited, why they failed, for whom they were computed.

No label names a tenant: /metrics needs no key, and there may be any number of them.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from service.base.problems import FAILURES, PREFIX

WAIT_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 7200.0)
PRIORITIES = ("low", "normal", "high")
CLASSES = ("light", "normal", "heavy")


def named(value: float, usual: float, names: tuple[str, str, str]) -> str:
    """Returns the first name for what is below the usual value, the last for what is above."""
    return names[1 + (value > usual) - (value < usual)]


class QueueMetrics:
    """Jobs of this worker process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.wait = Histogram(
            "shardwise_queue_wait_seconds",
            "From a question to the first start of its job, by its priority: below 0 (low), 0 "
            "(normal), above (high).",
            ("priority",),
            buckets=WAIT_S,
            registry=registry,
        )
        self.failures = Counter(
            "shardwise_failures",
            "Jobs that failed, by the reason in their `error`.",
            ("reason",),
            registry=registry,
        )
        self.seconds = Counter(
            "shardwise_solving_seconds",
            "Seconds of solving, by the weight of the tenant: below 1 (light), 1 (normal), above "
            "(heavy).",
            ("tenant_class",),
            registry=registry,
        )
        # A series that begins at its first event hides it.
        for priority in PRIORITIES:
            self.wait.labels(priority)
        for reason in FAILURES:
            self.failures.labels(reason)
        for tenant_class in CLASSES:
            self.seconds.labels(tenant_class)

    def started(self, priority: int, waited_s: float) -> None:
        """Counts a job that starts for the first time."""
        self.wait.labels(named(priority, 0, PRIORITIES)).observe(max(waited_s, 0.0))

    def failed(self, problem: str, count: int = 1) -> None:
        """Counts jobs that failed; `problem` is the type in their `error`."""
        self.failures.labels(problem.removeprefix(PREFIX)).inc(count)

    def solved(self, weight: float, seconds: float) -> None:
        """Counts the time of a solve for a tenant of this weight."""
        self.seconds.labels(named(weight, 1.0, CLASSES)).inc(seconds)
