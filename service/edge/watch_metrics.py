"""Watched curves as metrics, apart from /metrics: they belong to a tenant and need its key.

    shardwise_watch_iteration_time_seconds{watch, gpus}     the shortest step on this many GPUs
    shardwise_watch_samples_per_second{watch, gpus}
    shardwise_watch_peak_memory_bytes{watch, gpus}          on one GPU, replayed
    shardwise_watch_usd_per_million_samples{watch, gpus}    on demand, where the profile is offered
    shardwise_watch_bundle_iteration_time_seconds{watch, bundle}     the same three of a curve over
    shardwise_watch_bundle_samples_per_second{watch, bundle}         several kinds, where `bundle`
    shardwise_watch_bundle_peak_memory_bytes{watch, bundle}          is as `v100=2,1080ti=4`
    shardwise_watch_fewest_gpus{watch}                      the smallest count that fits
    shardwise_watch_knee_gpus{watch}                        where more GPUs begin to pay badly
    shardwise_watch_info{watch, graph, hardware}            1
    shardwise_watch_bus_bandwidth_bytes_per_second{hardware, operation, group, size}
                                                            of a measured profile, as nccl-tests

A count on which nothing fits has no series: no number could represent it. A curve over several
kinds has at most as many bundles as `MOST_BUNDLES`, and neither price nor knee.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session

from service.store.results import result_of
from shardwise.documents.frontier import axes_of
from shardwise.hardware import CollectiveTable, Hardware, Offer, on_demand_usd_per_hour, read_offers
from shardwise.hardware.bandwidth import bus_bandwidth
from shardwise.search.turning_point import turning_point

STEP = "step_s"
"""The time that ranks a curve's points, among their members."""

CURVES = (
    ("iteration_time_seconds", STEP, "The shortest step on this number of GPUs."),
    ("samples_per_second", "samples_per_s", "Throughput on this number of GPUs."),
    ("peak_memory_bytes", "peak_bytes", "Replayed peak memory of one GPU."),
)
_OF_BUNDLE = ("this number of GPUs", "this bundle of devices")
SIZES_BYTES = tuple(2**power for power in (10, 14, 18, 20, 22, 24, 26, 28, 30))
"""Sizes at which bandwidths are given: the nearest ones of a table, each once."""


@dataclass(frozen=True)
class Watched:
    """A watch and the values of its labels."""

    name: str
    graph_name: str
    hardware: Hardware
    content_id: str


def watched_metrics(session: Session, tenant: str, watches: Iterable[Watched]) -> bytes:
    """Returns the text that Prometheus scrapes; a curve that is not computed yet has no series."""
    metrics = []
    for watch in watches:
        stored = result_of(session, tenant, watch.content_id)
        curve = msgspec.json.decode(stored.content) if stored is not None else {}
        metrics.append((watch, points_of(curve)))
    registry = CollectorRegistry()
    registry.register(_Curves(metrics))
    text: bytes = generate_latest(registry)
    return text


def points_of(curve: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the counts that fit, each with the time that ranks them; where a pipeline is faster
    with its step, throughput and peak."""
    _, time = axes_of(bool(curve.get("overlap")))
    points = []
    for point in curve.get("points", ()):
        if pipeline := point.get("pipeline"):
            points.append({**point, **{key: pipeline[key] for _, key, _ in CURVES}})
        elif point["feasible"]:
            points.append({**point, STEP: point[time]})
    return points


class _Curves(Collector):
    def __init__(self, watched: list[tuple[Watched, list[dict[str, Any]]]]) -> None:
        self._watched = watched

    def collect(self) -> Iterator[Metric]:
        """Yields the families."""
        families = watch_families()
        info, fewest, knee = (families[name] for name in ("info", "fewest_gpus", "knee_gpus"))
        curves = [families[name] for name, _, _ in CURVES]
        prices = families["usd_per_million_samples"]
        for watch, points in self._watched:
            info.add_metric((watch.name, watch.graph_name, watch.hardware.name), 1)
            if watch.hardware.groups:
                _add_bundles(families, watch.name, points)
                continue
            for family, (_, key, _) in zip(curves, CURVES, strict=True):
                for point in points:
                    if point.get(key) is not None:
                        family.add_metric((watch.name, str(point["gpus"])), point[key])
            for point in points:
                usd = usd_per_million_samples(watch.hardware, point)
                if usd is not None:
                    prices.add_metric((watch.name, str(point["gpus"])), usd)
            if points:
                fewest.add_metric((watch.name,), min(point["gpus"] for point in points))
            at = knee_of(points)
            if at is not None:
                knee.add_metric((watch.name,), at)
        self._bandwidths(families["bus_bandwidth_bytes_per_second"])
        yield from families.values()

    def _bandwidths(self, family: GaugeMetricFamily) -> None:
        for hardware in {w.hardware.id: w.hardware for w, _ in self._watched}.values():
            for table in hardware.collectives:
                ranks = table.nodes * table.ranks_per_node
                group = group_label(table)
                sizes = np.array(table.sizes_bytes)
                nearest = {int(np.abs(np.log2(sizes / s)).argmin()) for s in SIZES_BYTES}
                for i in sorted(nearest):
                    size, seconds = table.sizes_bytes[i], table.times_s[i]
                    family.add_metric(
                        (hardware.name, table.operation, group, str(int(size))),
                        bus_bandwidth(table.operation, ranks, size, seconds),
                    )


def group_label(table: CollectiveTable) -> str:
    """Returns the label of a table's group of ranks: no other table of an operation has it.

    `2x8` are two nodes of eight ranks, `4x2x8` four units of these; `fast*2 slow` says on which
    groups of devices three nodes are.
    """
    parts = ["x".join(map(str, reversed(table.counts)))]
    parts += [] if table.consecutive else ["strided"]
    for name, nodes in Counter(table.groups).items():
        parts.append(name if nodes == 1 else f"{name}*{nodes}")
    return " ".join(parts)


def _add_bundles(
    families: Mapping[str, GaugeMetricFamily], name: str, points: list[dict[str, Any]]
) -> None:
    """Adds the series of a curve over bundles."""
    for family, key, _ in CURVES:
        for point in points:
            if point.get(key) is not None:
                families[f"bundle_{family}"].add_metric((name, point["bundle"]), point[key])
    if points:
        families["fewest_gpus"].add_metric((name,), min(point["gpus"] for point in points))


def watch_families() -> dict[str, GaugeMetricFamily]:
    """Returns the families, still empty, by name without the prefix."""
    gauges: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("info", "A watched graph on a hardware profile.", ("watch", "graph", "hardware")),
        ("fewest_gpus", "The smallest count that fits.", ("watch",)),
        ("knee_gpus", "The turning point of the curve.", ("watch",)),
        *((name, text, ("watch", "gpus")) for name, _, text in CURVES),
        *(
            (f"bundle_{name}", text.replace(*_OF_BUNDLE), ("watch", "bundle"))
            for name, _, text in CURVES
        ),
        ("usd_per_million_samples", "Price on demand.", ("watch", "gpus")),
        (
            "bus_bandwidth_bytes_per_second",
            "Measured bus bandwidth of a collective.",
            ("hardware", "operation", "group", "size"),
        ),
    )
    return {
        name: GaugeMetricFamily(f"shardwise_watch_{name}", text, labels=labels)
        for name, text, labels in gauges
    }


def usd_per_million_samples(hardware: Hardware, point: dict[str, Any]) -> float | None:
    """Returns the price at a curve's point by the shipped offers.

    None without offers or a batch size.
    """
    usd_per_hour = on_demand_usd_per_hour(hardware, point["gpus"], _offers())
    if usd_per_hour is None or not point["samples_per_s"]:
        return None
    return usd_per_hour / 3600 / float(point["samples_per_s"]) * 1e6


@cache
def _offers() -> tuple[Offer, ...]:
    return tuple(read_offers())


def knee_of(points: list[dict[str, Any]]) -> int | None:
    """Returns the GPU count at the turning point of iteration time over count, or None.

    Counts that a smaller one beats are left out: the curve is then strictly descending.
    """
    kept: list[tuple[int, float]] = []
    for point in points:
        if not kept or point[STEP] < kept[-1][1]:
            kept.append((point["gpus"], point[STEP]))
    counts = np.array([float(gpus) for gpus, _ in kept])
    at = turning_point(counts, np.array([time for _, time in kept]))
    return None if at is None else kept[at][0]
