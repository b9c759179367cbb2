"""The ratio of jobs' times to their estimates, as a metric of workers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram

from service.questions.question import KINDS

RATIOS = (0.05, 0.1, 0.2, 1 / 3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
COUNTED = ("done", "gave way")
"""Outcomes whose time says how good the estimate was; of `gave way` it is the time until then."""


class EstimateMetrics:
    """Ratios of the time taken to the estimate."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ratio = Histogram(
            "shardwise_solve_estimate_ratio",
            "Time of a solve over its estimate; one that left a slot for short jobs counts when it "
            "did.",
            ("kind",),
            buckets=RATIOS,
            registry=registry,
        )
        for kind in KINDS:
            self.ratio.labels(kind)

    def ended(
        self, kind: str, outcome: str, took_s: float, cost_s: float, *, gave_way: bool
    ) -> None:
        """Counts a job once: one that gave way counted then."""
        if outcome in COUNTED and cost_s > 0.0 and not gave_way:
            self.ratio.labels(kind).observe(took_s / cost_s)
