"""docs/reference/metrics.md: every metric of service and worker, and who reads it.

Dashboards and rules are read from deploy/, so it is built in a clone of the repository.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase

from service.edge.metrics import Metrics, WorkerMetrics
from service.edge.pool_metrics import pool_families
from service.edge.store_metrics import store_families
from service.edge.watch_metrics import watch_families
from service.store.database import Database

DEPLOY = Path(__file__).parents[2] / "deploy"
PREFIX = "shardwise_"
UNITS = ("seconds", "bytes", "bytes_per_second")
_PARTS = ("", "_total", "_bucket", "_sum", "_count")


@dataclass(frozen=True)
class Described:
    """A metric: its name as it is queried, without a histogram's `_bucket`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def unit(self) -> str:
        """The longest base unit that its name ends with."""
        bare = self.name.removesuffix("_total")
        return max((unit for unit in UNITS if bare.endswith(f"_{unit}")), key=len, default="")


def of_registry(registry: CollectorRegistry) -> list[Described]:
    """Returns our registered metrics, without those created on request."""
    collectors = {id(c): c for c in registry._names_to_collectors.values()}.values()
    return [
        _described(family, collector._labelnames)
        for collector in collectors
        if isinstance(collector, MetricWrapperBase)
        for family in collector.describe()
    ]


def of_families(families: Iterable[Metric]) -> list[Described]:
    """Returns the metrics of one of our collectors."""
    return [_described(family, getattr(family, "_labelnames", ())) for family in families]


def _described(family: Metric, labels: Iterable[str]) -> Described:
    name = family.name + ("_total" if family.type == "counter" else "")
    return Described(name, family.type, tuple(labels), family.documentation)


def service_metrics() -> list[Described]:
    """Returns the metrics at `/metrics` of a service."""
    with tempfile.TemporaryDirectory() as folder:
        registry = Metrics(Database(f"sqlite:///{folder}/none.sqlite"), 1.0).registry
    collected = [*store_families().values(), *pool_families().values()]
    return [*of_registry(registry), *of_families(collected)]


def worker_metrics() -> list[Described]:
    """Returns the metrics on a worker's own port."""
    return of_registry(WorkerMetrics().registry)


def watch_metrics() -> list[Described]:
    """Returns the metrics at `/v1/watches/metrics`."""
    return of_families(watch_families().values())


@dataclass(frozen=True)
class Reader:
    """What reads metrics: where it is shown, and its queries."""

    shown: str
    queries: tuple[str, ...]


def readers(deploy: Path = DEPLOY) -> list[Reader]:
    """Returns every panel and every rule."""
    listed = []
    for path in sorted((deploy / "grafana" / "dashboards").glob("*.json")):
        board = json.loads(path.read_text("utf-8"))
        for panel in _panels(board["panels"]):
            queries = tuple(t["expr"] for t in panel.get("targets", ()) if "expr" in t)
            if queries:
                listed.append(Reader(f"*{board['title']}*: {panel['title']}", queries))
    for path in sorted((deploy / "prometheus" / "rules").glob("*.yml")):
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            for rule in group["rules"]:
                name = rule.get("alert")
                shown = f"[{name}](../runbook.md#{name.lower()})" if name else f"`{rule['record']}`"
                listed.append(Reader(shown, (rule["expr"],)))
    return listed


def _panels(panels: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels", ()))


def reads(reader: Reader, name: str) -> bool:
    """Returns whether one of its queries names this metric or recording rule."""
    stem = name.removesuffix("_total")
    words = {stem + part for part in _PARTS}
    return any(words & set(re.findall(r"[a-zA-Z_:][\w:]*", query)) for query in reader.queries)


def readers_of(name: str, every: Iterable[Reader]) -> list[str]:
    """Returns what reads a metric, directly or through a recording rule, each once."""
    every = list(every)
    shown: dict[str, None] = {}
    for reader in every:
        if reads(reader, name):
            shown[reader.shown] = None
            if reader.shown.startswith("`"):
                shown.update(dict.fromkeys(readers_of(reader.shown.strip("`"), every)))
    return list(shown)


def page(every: list[Reader]) -> str:
    """Returns the whole page."""
    parts = [
        "# Metrics",
        "",
        "Made by `make reference`. Prometheus' text form, base units, "
        "names with `shardwise_`. A histogram has `_bucket`, `_sum` and `_count`. They are read by "
        "recording rules, panels of the *dashboards* and [alerts](../runbook.md). Service and "
        "worker also give the client library's `process_…` and the service its `python_info`. An "
        "agent has no port and so no metrics: what it reports is counted by the service.",
        "",
    ]
    for title, text, metrics in (
        ("Service", "`GET /metrics` of every `shardwise serve`, without a key.", service_metrics()),
        (
            "Worker",
            "Of a `shardwise worker` with `SHARDWISE_WORKER_METRICS_PORT` "
            "([settings](settings.md)).",
            worker_metrics(),
        ),
        (
            "Watched curves",
            "`GET /v1/watches/metrics` under a key with scope `read`: its tenant's alone. Each "
            "name has `shardwise_watch_`.",
            watch_metrics(),
        ),
    ):
        parts += [f"## {title}", "", text, ""]
        parts += ["| metric | type | labels | what it is |", "|---|---|---|---|"]
        for one in metrics:
            unit = one.unit.replace("_per_", " per ")
            cells = (
                f"`{one.name}`",
                f"{one.kind}, {unit}" if unit else one.kind,
                ", ".join(f"`{label}`" for label in one.labels),
                one.text,
            )
            parts.append("".join(f"| {cell} " if cell else "| " for cell in cells) + "|")
        parts += ["", "| metric | read by |", "|---|---|"]
        for one in metrics:
            by = ", ".join(readers_of(one.name, every))
            parts.append(f"| `{one.name}` | {by} |" if by else f"| `{one.name}` | |")
        parts.append("")
    parts += ["## Recording rules", "", "| rule | read by |", "|---|---|"]
    for reader in every:
        if reader.shown.startswith("`"):
            by = ", ".join(readers_of(reader.shown.strip("`"), every))
            parts.append(f"| {reader.shown} | {by} |" if by else f"| {reader.shown} | |")
    parts.append("")
    return "\n".join(parts)
