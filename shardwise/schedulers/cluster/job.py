"""Jobs of a shared cluster: when they come, what they have to do, how fast on how many GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from shardwise import validation
from shardwise.answers.allocation import AllocationJob, CurvePoint
from shardwise.errors import BadInput
from shardwise.schedulers.counts import Counts

JOBS_SCHEMA = "shardwise.jobs/1"
MOST_JOBS = 2000


@dataclass(frozen=True)
class ClusterJob:
    """A training job. `samples` is its work, `request` the GPUs that its user would ask for.

    `rates` are samples per second by GPU count, of the counts that fit and no others, ascending.
    """

    name: str
    arrival_s: float
    samples: float
    request: int
    rates: tuple[tuple[int, float], ...]

    @cached_property
    def _by_count(self) -> dict[int, float]:
        return dict(self.rates)

    def rate(self, gpus: int) -> float:
        """Returns samples per second on `gpus` GPUs; 0 GPUs do nothing.

        Raises KeyError for a count that does not fit: no policy may give one.
        """
        return 0.0 if gpus == 0 else self._by_count[gpus]

    @property
    def least(self) -> int:
        """The fewest GPUs on which it fits."""
        return self.rates[0][0]

    def best_up_to(self, gpus: int) -> int:
        """Returns the fastest count up to `gpus` (of equals the smallest); 0 where none fits."""
        fitting = [(-rate, count) for count, rate in self.rates if count <= gpus]
        return min(fitting)[1] if fitting else 0

    def to_allocate(self, weight: float = 1.0, least: float = 0.0) -> AllocationJob:
        """Returns the job for `shardwise.answers.allocate`, with counts of at least that rate."""
        points = tuple(CurvePoint(n, 1.0 / rate, rate) for n, rate in self.rates if rate >= least)
        return AllocationJob(self.name, points, weight=weight)


def rates_of(counts: Counts) -> tuple[tuple[int, float], ...]:
    """Returns the rates of a curve."""
    return tuple((count.gpus, counts.rate(count)) for count in counts.counts)


def request_at_least(rates: Sequence[tuple[int, float]], gpus: int) -> int:
    """Returns the smallest count that fits and is at least `gpus`; the largest one if none is."""
    return next((count for count, _ in rates if count >= gpus), rates[-1][0])


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    graph: str
    arrival_s: float
    samples: float
    gpus: int
    name: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    jobs: list[_Row]


def read_jobs(data: bytes, curves: Mapping[str, Counts]) -> list[ClusterJob]:
    """Returns the jobs of a `shardwise.jobs/1` text, by arrival; `graph` names one of `curves`.

    Raises `BadInput` naming the field.
    """
    document = validation.decode(data, _File, expected=JOBS_SCHEMA)
    if document.schema != JOBS_SCHEMA:
        raise BadInput(f"got {document.schema[:60]!r}", field="schema", expected=JOBS_SCHEMA)
    if not 1 <= len(document.jobs) <= MOST_JOBS:
        raise BadInput(f"{len(document.jobs)} jobs", field="jobs", expected=f"1 to {MOST_JOBS}")
    jobs = [_job(row, f"jobs[{i}]", i, curves) for i, row in enumerate(document.jobs)]
    return sorted(jobs, key=lambda job: job.arrival_s)


def _job(row: _Row, at: str, number: int, curves: Mapping[str, Counts]) -> ClusterJob:
    if row.graph not in curves:
        raise BadInput(
            f"no curve of {row.graph[:80]!r}", field=f"{at}.graph", expected=", ".join(curves)
        )
    rates = rates_of(curves[row.graph])
    for name, least in (("arrival_s", 0.0), ("samples", 1e-9)):
        if not least <= getattr(row, name) <= 1e18:
            raise BadInput(
                f"got {getattr(row, name)}", field=f"{at}.{name}", expected=f"≥ {least:g}"
            )
    if row.gpus not in dict(rates):
        raise BadInput(
            f"{row.graph} does not fit on {row.gpus} GPUs", field=f"{at}.gpus",
            expected="a count of its curve that fits",
        )  # fmt: skip
    return ClusterJob(row.name or f"job {number}", row.arrival_s, row.samples, row.gpus, rates)


def jobs_document(jobs: Sequence[ClusterJob], graphs: Sequence[str]) -> dict[str, Any]:
    """Returns jobs as `shardwise.jobs/1` for `read_jobs`; `graphs` names each one's curve."""
    return {
        "schema": JOBS_SCHEMA,
        "jobs": [
            {
                "name": job.name,
                "graph": graph,
                "arrival_s": job.arrival_s,
                "samples": job.samples,
                "gpus": job.request,
            }
            for job, graph in zip(jobs, graphs, strict=True)
        ],
    }
