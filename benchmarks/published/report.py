"""Predictions on the terminal and as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from . import summary as statistics
from .compute import predict_runs
from .reading import Published
from .stored import Result


def predict_all(
    published: Published, wanted: str = "", tell: Callable[[str], None] = lambda line: None
) -> list[Result]:
    """The runs whose names contain `wanted`, predicted anew, in the files' order."""
    found = {}
    for done in predict_runs(published.runs, lambda run: wanted in run.name):
        stored = dict(done)
        for run in published.runs:
            if run.name in stored:
                found[run.name] = Result(run, published.project(run), stored[run.name])
                tell(line(found[run.name]))
    return [found[run.name] for run in published.runs if run.name in found]


def as_data(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Rows for JSON: seconds and bytes."""
    return [
        {
            "run": r.run.name,
            "source": r.project,
            "gpus": r.run.gpus,
            "size": r.size,
            "framework": r.run.framework,
            "published_s": r.run.iteration_s,
            "time_s": r.stored.time_s,
            "time_error": r.time_error,
            "device_s": r.stored.device_s,
            "host_s": r.stored.host_s,
            "sum_s": r.stored.compute_s + r.stored.communication_s,
            "sum_error": r.sum_error,
            "published_bytes": r.run.memory_bytes,
            "kept_bytes": r.stored.kept_bytes,
            "memory_error": r.memory_error,
            "peak_bytes": r.stored.peak_bytes,
            "peak_error": r.peak_error,
            "outlier": r.run.outlier,
        }
        for r in results
    ]


def summary(errors: Sequence[float]) -> dict[str, Any]:
    """Statistics of errors, as data."""
    return asdict(statistics.summary(errors))


def head_line() -> str:
    """The head of the terminal's table: seconds, then GiB of a device."""
    return (
        f"{'run':40} {'GPUs':>4} {'published s':>11} {'predicted':>10} {'error':>7} {'device':>8} "
        f"{'host':>8} {'published GiB':>13} {'kept':>6} {'error':>7} {'peak':>6} {'error':>7}"
    )


def line(r: Result) -> str:
    """A run in the terminal's table."""
    memory = ""
    if r.run.memory_bytes is not None and r.memory_error is not None and r.peak_error is not None:
        memory = f"{r.run.memory_bytes / 2**30:13.1f} {r.stored.kept_bytes / 2**30:6.1f} "
        memory += f"{r.memory_error:+7.1%} {r.stored.peak_bytes / 2**30:6.1f} {r.peak_error:+7.1%}"
    return (
        f"{r.run.name:40} {r.run.gpus:4} {r.run.iteration_s:11.3f} {r.stored.time_s:10.3f} "
        f"{r.time_error:+7.1%} {r.stored.device_s:8.3f} {r.stored.host_s:8.3f} {memory}"
    ).rstrip()


def total_lines(results: Sequence[Result]) -> str:
    """The medians, for the terminal."""
    lines = []
    for what, errors in (
        ("time of a step", [r.time_error for r in results]),
        ("sum of times", [r.sum_error for r in results]),
    ):
        s = statistics.summary(errors)
        lines.append(
            f"{what}: {s.runs} runs, median error {s.median:+.1%}, of its size "
            f"{s.median_size:.1%}, 90th percentile {s.size_90:.1%}; within 10% {s.within_10:.0%}, "
            f"within 25% {s.within_25:.0%}"
        )
    return "\n".join(lines)
