"""Fits a hardware profile to what runs on it measured: a pure function, without torch.

For each run r the plan predicted compute time c_r and communication time n_r, and the run measured
C_r and N_r, in seconds. The profile's times are scaled by

    compute        exp(median over r of ln(C_r / c_r))
    links          exp(median over r of ln(N_r / n_r)), over the runs within one node for the links
                   inside a node, over the runs on several nodes for those between nodes

With the median of logarithms, a run that went wrong counts no more than any other, and twice as
slow weighs as much as twice as fast. Scaling is exact in the cost model (shardwise/hardware):
a compute time is work over an efficiency plus a latency, a link time is bytes over a bandwidth plus
a latency, and measured tables are times. An efficiency that would exceed 1 raises the stated peak
instead: the runs were faster than that.

After TensorOpt §5.2 (predicted against measured), HeteroG §3.3 (cost models refined by runs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log
from statistics import median
from typing import Any

from shardwise.errors import BadInput
from shardwise.hardware import hardware_document, hardware_from_document

Document = Mapping[str, Any]
LARGEST = 1e4
"""A ratio beyond this (or below its inverse) is an error of the measurement, not the profile."""

_TIMES = ("time_s", "times_s", "p10_s", "p90_s")
"""Members of a measured table that are times, one or a list."""

_INSIDE, _BETWEEN = 0, -1


@dataclass(frozen=True)
class Fit:
    """A factor for times, and the number of runs it is the median of."""

    factor: float
    runs: int


def refit(hardware: Document, measurements: Sequence[Document]) -> dict[str, Any]:
    """Returns the `shardwise.hardware/1` document whose predictions fit these runs.

    `measurements` are `shardwise.measurement/1` documents whose plans were made with this very
    profile. Name, devices and levels stay; `provenance` gives the number of runs and the id of the
    previous profile. Raises BadInput for a document that is not a profile, and if no run has a
    measured and a predicted time to compare.
    """
    before = hardware_from_document(dict(hardware))
    document = hardware_document(before)
    per_node = before.per_node
    single = [run for run in measurements if _nodes(run, per_node) == 1]
    several = [run for run in measurements if _nodes(run, per_node) > 1]
    compute = _fit(measurements, "compute_s")
    inside = _fit(single, "communication_s")
    between = _fit(several, "communication_s")
    if compute is None and inside is None and between is None:
        raise BadInput(
            f"none of {len(measurements)} runs has a measured and a predicted time to compare"
            if measurements
            else "there are no runs to fit to",
            field="measurements",
            expected="runs with `compute_s` or `communication_s` and the same under `predicted`",
        )
    changes = []
    if compute is not None:
        _scale_compute(document, compute.factor)
        changes.append(_text("compute", compute))
    for fit, level, where in ((inside, _INSIDE, "inside"), (between, _BETWEEN, "between")):
        if fit is not None:
            _scale_links(document, level, fit.factor)
            changes.append(_text(f"links {where} nodes", fit))
    document["sources"] = {**document["sources"], "refit": "; ".join(changes)}
    document["provenance"] = (
        f"refitted from {len(measurements)} run{'s' if len(measurements) != 1 else ''} "
        f"({'; '.join(changes)}); before it {before.id}"
    )
    return hardware_document(hardware_from_document(document))


def _nodes(run: Document, per_node: int) -> int:
    """Returns how many nodes a run used: what it says, else as few as hold its GPUs."""
    nodes = run.get("nodes")
    if isinstance(nodes, int) and not isinstance(nodes, bool) and nodes >= 1:
        return nodes
    gpus = run.get("gpus")
    return -(-gpus // per_node) if isinstance(gpus, int) and gpus >= 1 else 1


def _fit(runs: Iterable[Document], quantity: str) -> Fit | None:
    ratios = []
    for run in runs:
        predicted = run.get("predicted")
        measured_s = _seconds(run.get(quantity))
        predicted_s = _seconds(predicted.get(quantity)) if isinstance(predicted, Mapping) else None
        if measured_s is not None and predicted_s is not None:
            ratio = measured_s / predicted_s
            if 1 / LARGEST <= ratio <= LARGEST:
                ratios.append(log(ratio))
    return Fit(exp(median(ratios)), len(ratios)) if ratios else None


def _seconds(value: Any) -> float | None:
    """Returns a time above 0; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) and value > 0 else None


def _scale_compute(document: dict[str, Any], factor: float) -> None:
    """Makes every kernel take `factor` times as long."""
    for device in document["devices"]:
        by_dtype = device["compute_efficiency_by_dtype"]
        usual = device["compute_efficiency"]
        for dtype in device["peak_flops_per_s"]:
            efficiency, raised = _within_one(by_dtype.get(dtype, usual) / factor)
            by_dtype[dtype] = efficiency
            device["peak_flops_per_s"][dtype] *= raised
        device["compute_efficiency"] = _within_one(usual / factor)[0]
        device["memory_efficiency"], raised = _within_one(device["memory_efficiency"] / factor)
        device["memory_bandwidth_bytes_per_s"] *= raised
        device["kernel_latency_s"] *= factor
    document["operators"] = [_slower(row, factor) for row in document["operators"]]


def _scale_links(document: dict[str, Any], level: int, factor: float) -> None:
    """Makes every collective inside nodes, or between them, take `factor` times as long."""
    links = document["levels"]
    for link in links[1:] if level == _BETWEEN else links[:1]:
        link["efficiency"], raised = _within_one(link["efficiency"] / factor)
        link["bandwidth_bytes_per_s"] *= raised
        link["latency_s"] *= factor
    document["collectives"] = [
        _slower(table, factor) if (table["nodes"] > 1) == (level == _BETWEEN) else table
        for table in document["collectives"]
    ]


def _slower(row: Document, factor: float) -> dict[str, Any]:
    """Returns a row of a measured table with its times scaled."""
    scaled = dict(row)
    for name in _TIMES:
        if name in scaled:
            value = scaled[name]
            several = isinstance(value, Sequence) and not isinstance(value, str)
            scaled[name] = [_times(v, factor) for v in value] if several else _times(value, factor)
    return scaled


def _times(value: Any, factor: float) -> Any:
    return value * factor if isinstance(value, int | float) else value


def _within_one(efficiency: float) -> tuple[float, float]:
    """Returns an efficiency of at most 1, and the factor by which to raise the stated peak."""
    return (efficiency, 1.0) if efficiency <= 1 else (1.0, efficiency)


def _text(what: str, fit: Fit) -> str:
    return f"{what} times x {fit.factor:.4g} (median of {fit.runs})"
