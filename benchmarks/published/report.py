"""The table of predictions: on the terminal, as data, as docs/accuracy.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.hardware import Hardware

from .captures import graph_of
from .predict import Prediction, predict
from .runs import Published, Run

ABOUT = Path(__file__).with_name("about.md")

BEST_PRODUCTS = {"A100": 0.869, "H100": 0.803}
"""Share of the dense BF16 peak that the best shape of a product reaches, by kind of device."""

BEST_PRODUCTS_SOURCE = (
    "[Maximum Achievable Matmul FLOPS](https://github.com/stas00/ml-engineering/blob/"
    "744d01e18b79512572f64a6bbd8b5f4a725203a7/compute/accelerator/README.md): A100 SXM 271.2 of "
    "312, H100 SXM 794.5 of 989"
)

KINDS: tuple[tuple[str, Callable[[Run], bool]], ...] = (
    ("all", lambda run: True),
    ("V100", lambda run: "v100" in run.hardware),
    ("A100", lambda run: "a100" in run.hardware),
    ("H100", lambda run: "h100" in run.hardware),
    ("convolutions", lambda run: run.capture.startswith("timm:")),
    ("data parallel", lambda run: run.tensor_parallel == 1 and run.zero == 0 and run.gpus > 1),
    ("one GPU", lambda run: run.gpus == 1),
    ("sharded (ZeRO 2, 3)", lambda run: run.zero >= 2),
    ("tensor parallel", lambda run: run.tensor_parallel > 1),
)


def predict_all(
    published: Published, wanted: str = "", tell: Callable[[str], None] = lambda line: None
) -> list[Prediction]:
    """Predictions of the runs whose names contain `wanted`, in the file's order."""
    predictions = []
    for run in published.runs:
        if wanted in run.name:
            predictions.append(predict(run, graph_of(run)))
            tell(_line(predictions[-1]))
    return predictions


def best_products(hardware: Hardware) -> Hardware:
    """The profile with the highest measured efficiency of products, where one is known."""
    device = hardware.devices[0]
    share = BEST_PRODUCTS.get(device.kind[:4], device.compute_efficiency)
    return replace(hardware, devices=(replace(device, compute_efficiency=share),))


def summary(errors: Sequence[float]) -> dict[str, float]:
    """Median of the errors, of their sizes, and the share within 10 and 25 percent."""
    sizes = [abs(error) for error in errors]
    return {
        "runs": len(errors),
        "median": statistics.median(errors),
        "median_size": statistics.median(sizes),
        "within_10": sum(size <= 0.10 for size in sizes) / len(sizes),
        "within_25": sum(size <= 0.25 for size in sizes) / len(sizes),
    }


def as_data(predictions: Iterable[Prediction]) -> list[dict[str, Any]]:
    """Rows for JSON: seconds and bytes."""
    return [
        {
            "run": p.run.name,
            "gpus": p.run.gpus,
            "published_s": p.run.iteration_s,
            "sum_s": p.point.time_s,
            "sum_error": p.sum_error,
            "overlapped_s": p.overlapped_s,
            "time_error": p.time_error,
            "published_bytes": p.run.memory_bytes,
            "kept_bytes": p.point.memory_bytes,
            "memory_error": p.memory_error,
            "peak_bytes": p.peak_bytes,
            "peak_error": p.peak_error,
        }
        for p in predictions
    ]


def head_line() -> str:
    """The head of the terminal's table: seconds, then GiB of a device."""
    return (
        f"{'run':30} {'GPUs':>4} {'published s':>11} {'overlapped':>10} {'error':>7} {'sum':>8} "
        f"{'error':>7} {'published GiB':>13} {'kept':>6} {'error':>7} {'peak':>6} {'error':>7}"
    )


def _line(p: Prediction) -> str:
    memory = ""
    if p.run.memory_bytes is not None and p.memory_error is not None and p.peak_error is not None:
        memory = f"{p.run.memory_bytes / 2**30:13.1f} {p.point.memory_bytes / 2**30:6.1f} "
        memory += f"{p.memory_error:+7.1%} {p.peak_bytes / 2**30:6.1f} {p.peak_error:+7.1%}"
    return (
        f"{p.run.name:30} {p.run.gpus:4} {p.run.iteration_s:11.3f} {p.overlapped_s:10.3f} "
        f"{p.time_error:+7.1%} {p.point.time_s:8.3f} {p.sum_error:+7.1%} {memory}"
    ).rstrip()


def total_lines(predictions: Sequence[Prediction]) -> str:
    """The medians, for the terminal."""
    lines = []
    for what, errors in (
        ("overlapped time", [p.time_error for p in predictions]),
        ("sum of times", [p.sum_error for p in predictions]),
    ):
        medians = summary(errors)
        lines.append(
            f"{what}: {medians['runs']} runs, median error {medians['median']:+.1%}, of its size "
            f"{medians['median_size']:.1%}; within 10% {medians['within_10']:.0%}, within 25% "
            f"{medians['within_25']:.0%}"
        )
    return "\n".join(lines)


def as_markdown(published: Published, predictions: Sequence[Prediction]) -> str:
    """The page docs/accuracy.md."""
    parts = [
        ABOUT.read_text().rstrip(),
        "## Time of an iteration",
        _time_table(predictions),
        "## Medians",
        _median_table(predictions),
        _sensitivity(predictions),
        "## Memory of a device",
        _memory_table(predictions),
        "## Sources",
        _sources(published, predictions),
    ]
    return "\n\n".join(parts) + "\n"


def _time_table(predictions: Sequence[Prediction]) -> str:
    rows = [
        "| run | GPUs | how | published s | overlapped s | error | compute + communication s "
        "| error of the sum |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for p in predictions:
        rows.append(
            f"| {p.run.name} | {p.run.gpus} | {_how(p.run)} | {_digits(p.run.iteration_s)} "
            f"| {_digits(p.overlapped_s)} | {p.time_error:+.0%} "
            f"| {_digits(p.point.compute_s)} + {_digits(p.point.communication_s)} "
            f"| {p.sum_error:+.0%} |"
        )
    return "\n".join(rows)


def _how(run: Run) -> str:
    """The parallelism in a few words."""
    words = [f"batch {run.batch:,}"]
    if run.data_parallel > 1:
        words.append(f"dp {run.data_parallel}")
    if run.tensor_parallel > 1:
        words.append(f"tp {run.tensor_parallel}{' sp' if run.sequence_parallel else ''}")
    if run.zero:
        words.append(f"ZeRO {run.zero}{' in a node' if run.zero_within == 'node' else ''}")
    if run.recompute != "none":
        words.append(f"recompute {run.recompute}")
    if run.micro_batches > 1:
        words.append(f"{run.micro_batches} micro-batches")
    return ", ".join(words)


def _digits(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 10 else f"{seconds:.1f}"


def _median_table(predictions: Sequence[Prediction]) -> str:
    rows = [
        "| runs | | median error | median size of the error | within 10 % | within 25 % "
        "| of the sum: median error | size |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, belongs in KINDS:
        chosen = [p for p in predictions if belongs(p.run)]
        if chosen:
            errors = [p.time_error for p in chosen]
            medians, added = summary(errors), summary([p.sum_error for p in chosen])
            rows.append(
                f"| {name} | {len(errors)} | {medians['median']:+.1%} "
                f"| {medians['median_size']:.1%} | {medians['within_10']:.0%} "
                f"| {medians['within_25']:.0%} "
                f"| {added['median']:+.1%} | {added['median_size']:.1%} |"
            )
    return "\n".join(rows)


def _sensitivity(predictions: Sequence[Prediction]) -> str:
    """What the one figure that no data sheet has does to the medians."""
    changed = [
        predict(p.run, graph_of(p.run), best_products).time_error
        for p in predictions
        if "v100" not in p.run.hardware
    ]
    if not changed:
        return ""
    before = summary([p.time_error for p in predictions if "v100" not in p.run.hardware])
    after = summary(changed)
    return (
        "The share of the peak that products reach is assumed in the profiles (60 % on A100, "
        "55 % on H100). With the highest shares that were measured instead, "
        f"{BEST_PRODUCTS_SOURCE}, the {len(changed)} runs on A100 and H100 would have a median "
        f"error of {after['median']:+.1%} instead of {before['median']:+.1%}, of its size "
        f"{after['median_size']:.1%} instead of {before['median_size']:.1%}. The truth of a "
        "shape lies between; a measured table of operators takes the place of both."
    )


def _memory_table(predictions: Sequence[Prediction]) -> str:
    rows = [
        "| run | what was published | published GiB | peak GiB | error | kept GiB | error |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    peaks, kept = [], []
    for p in predictions:
        if p.run.memory_bytes is None or p.memory_error is None or p.peak_error is None:
            continue
        peaks.append(p.peak_error)
        kept.append(p.memory_error)
        rows.append(
            f"| {p.run.name} | {p.run.memory_kind} | {p.run.memory_bytes / 2**30:.1f} "
            f"| {p.peak_bytes / 2**30:.1f} | {p.peak_error:+.0%} "
            f"| {p.point.memory_bytes / 2**30:.1f} | {p.memory_error:+.0%} |"
        )
    if not peaks:
        return "No run with published memory was predicted."
    peak, sum_ = summary(peaks), summary(kept)
    rows.append(
        f"\nMedian size of the error: of the peak {peak['median_size']:.1%}, of what is kept "
        f"{sum_['median_size']:.1%}."
    )
    return "\n".join(rows)


def _sources(published: Published, predictions: Sequence[Prediction]) -> str:
    lines = []
    for source in published.sources.values():
        runs = [p.run.name for p in predictions if source.key in (p.run.source, *p.run.also)]
        if runs:
            lines.append(
                f"- [{source.title}]({source.address}) ({source.version}): {', '.join(runs)}"
            )
    return "\n".join(lines)
