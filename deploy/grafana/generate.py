"""The Grafana dashboards, as code: `python deploy/grafana/generate.py` writes `dashboards/`.

Panels take the data source of the variable `datasource`. Metrics named as in `WHERE_PRESENT` come
from other exporters (NVIDIA's DCGM); without these their panels are empty.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries, trend
from grafana_foundation_sdk.builders.common import VizLegendOptions
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, VisibilityMode
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = DataSourceRef(type_val="prometheus", uid="$datasource")
WHERE_PRESENT = "DCGM_"


@dataclass(frozen=True)
class Panel:
    """A panel: what it shows, of which queries (PromQL with the series' legend), in which unit."""

    title: str
    text: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    span: int = 12
    by: tuple[str, str] = ("", "")
    """For curves: the label along the x axis and the label that tells the lines apart."""


def _query(expr: str, legend: str, ref: str, *, instant: bool) -> Any:
    query = prometheus.Dataquery().expr(expr).legend_format(legend).datasource(SOURCE).ref_id(ref)
    if instant:
        return query.instant().format(PromQueryFormat.TABLE)
    return query.range()


def _legend() -> Any:
    return (
        VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
    )


def _curve(panel: Panel) -> Any:
    """Returns lines over a label that holds numbers: a matrix of it against the line's label."""
    x, line = panel.by
    corner = f"{x}\\{line}"
    built = trend.Panel().x_field(corner).show_points(VisibilityMode.ALWAYS).unit(panel.unit)
    built.legend(_legend())
    steps: tuple[tuple[str, Any], ...] = (
        (
            "groupingToMatrix",
            {"columnField": line, "rowField": x, "valueField": "Value", "emptyValue": "null"},
        ),
        (
            "convertFieldType",
            {"conversions": [{"targetField": corner, "destinationType": "number"}]},
        ),
        ("sortBy", {"sort": [{"field": corner, "desc": False}]}),
    )
    for name, options in steps:
        built.with_transformation(DataTransformerConfig(id_val=name, options=options))
    return built


def _built(panel: Panel) -> Any:
    match panel.kind:
        case "curve":
            built = _curve(panel)
        case "stat":
            built = stat.Panel().unit(panel.unit)
        case "table":
            built = table.Panel().unit(panel.unit)
        case _:
            built = timeseries.Panel().unit(panel.unit).min(0).legend(_legend())
    built.title(panel.title).description(panel.text).datasource(SOURCE)
    built.span(panel.span).height(8)
    instant = panel.kind in ("curve", "table", "stat")
    for ref, (expr, legend) in zip(ascii_uppercase, panel.queries, strict=False):
        built.with_target(_query(expr, legend, ref, instant=instant))
    return built


def _variable(name: str, query: str) -> Any:
    """Returns a variable with one of the values."""
    return (
        dashboards.QueryVariable(name)
        .label(name)
        .query(query)
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def _variable_of_several(name: str, query: str) -> Any:
    """Returns a variable with any of the values, at first all."""
    return _variable(name, query).multi(True).include_all(True).all_value(".*")


def _dashboard(
    title: str,
    uid: str,
    text: str,
    rows: tuple[tuple[str, tuple[Panel, ...]], ...],
    *variables: Any,
) -> Any:
    dashboard = (
        dashboards.Dashboard(title)
        .uid(uid)
        .description(text)
        .tags(["shardwise"])
        .readonly()
        .refresh("1m")
        .time("now-6h", "now")
        .with_variable(
            dashboards.DatasourceVariable("datasource").label("source").type("prometheus")
        )
    )
    for variable in variables:
        dashboard.with_variable(variable)
    for name, panels in rows:
        dashboard.with_row(dashboards.Row(name))
        for panel in panels:
            dashboard.with_panel(_built(panel))
    return dashboard


def _of_watched(metric: str) -> tuple[tuple[str, str], ...]:
    """Returns the query of a watched curve's metric over its counts."""
    return ((f'max by (gpus, watch) (shardwise_watch_{metric}{{watch=~"$watch"}})', ""),)


_WATCH = 'watch=~"$watch"'

ADVICE: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "How fast with n GPUs",
        (
            Panel(
                "Shortest iteration time",
                "Of the fastest strategy that fits, on every number of GPUs. A count without a "
                "point does not fit.",
                "s",
                _of_watched("iteration_time_seconds"),
                "curve",
                by=("gpus", "watch"),
            ),
            Panel(
                "Throughput",
                "Samples per second of the same strategies.",
                "none",
                _of_watched("samples_per_second"),
                "curve",
                by=("gpus", "watch"),
            ),
        ),
    ),
    (
        "How few GPUs, at what price",
        (
            Panel(
                "Peak memory of one GPU",
                "Of the replayed step of the fastest strategy.",
                "bytes",
                _of_watched("peak_memory_bytes"),
                "curve",
                by=("gpus", "watch"),
            ),
            Panel(
                "Price of a million samples",
                "Of whole instances at the cheapest on-demand offer of this profile's (`shardwise "
                "offers list` has the prices and their dates); no value without an offer.",
                "currencyUSD",
                _of_watched("usd_per_million_samples"),
                "curve",
                by=("gpus", "watch"),
            ),
            Panel(
                "Turning point",
                "GPUs from which more of them begin to pay badly: the knee of the curve.",
                "none",
                ((f"max by (watch) (shardwise_watch_knee_gpus{{{_WATCH}}})", "{{watch}}"),),
                "stat",
            ),
            Panel(
                "Fewest GPUs that fit",
                "The smallest count with a point.",
                "none",
                ((f"max by (watch) (shardwise_watch_fewest_gpus{{{_WATCH}}})", "{{watch}}"),),
                "stat",
            ),
            Panel(
                "What is watched",
                "`POST /v1/watches` adds a graph on a hardware, up to the tenant's limit.",
                "none",
                ((f"max by (watch, graph, hardware) (shardwise_watch_info{{{_WATCH}}})", ""),),
                "table",
                span=24,
            ),
        ),
    ),
)

SERVICE: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Requests",
        (
            Panel(
                "Requests by status",
                "Answered per second.",
                "reqps",
                (("sum by (status) (shardwise:requests:rate5m)", "{{status}}"),),
            ),
            Panel(
                "Server errors",
                "Their share; the error budget is 0.1 %.",
                "percentunit",
                (
                    ("shardwise:request_errors:ratio_rate5m", "5 minutes"),
                    ("shardwise:request_errors:ratio_rate1h", "1 hour"),
                ),
            ),
            Panel(
                "99th percentile by route",
                "Event streams are not in it.",
                "s",
                (("shardwise:request_duration_seconds:p99_5m", "{{route}}"),),
            ),
            Panel(
                "Answers by source",
                "From this process's memory, the store, a running job, or a new computation.",
                "ops",
                (("sum by (source) (rate(shardwise_answers_total[5m]))", "{{source}}"),),
            ),
        ),
    ),
    (
        "Questions",
        (
            Panel(
                "Jobs by state",
                "All that are stored.",
                "none",
                (("sum by (state) (shardwise:jobs:count)", "{{state}}"),),
            ),
            Panel(
                "Longest wait",
                "Age of the oldest queued question.",
                "s",
                (("max(shardwise_queue_oldest_age_seconds)", "oldest"),),
            ),
            Panel(
                "Wait by priority",
                "90th percentile from the question to its job's first start.",
                "s",
                (("shardwise:queue_wait_seconds:p90_15m", "{{priority}}"),),
            ),
            Panel(
                "Solves by outcome",
                "Ended per second, over all workers.",
                "ops",
                (("sum by (outcome) (shardwise:solves:rate5m)", "{{outcome}}"),),
            ),
            Panel(
                "Failures by reason",
                "In an hour. A defect is a fault of Shardwise; worker-lost: the job killed its "
                "workers.",
                "none",
                (("sum by (reason) (increase(shardwise_failures_total[1h]))", "{{reason}}"),),
            ),
            Panel(
                "Solving by tenants' weight",
                "Seconds of solving in an hour, for tenants whose weight is below 1 (light), 1, "
                "and above (heavy).",
                "s",
                (
                    (
                        "sum by (tenant_class) (increase(shardwise_solving_seconds_total[1h]))",
                        "{{tenant_class}}",
                    ),
                ),
            ),
            Panel(
                "90th percentile of a solve",
                "From claim to end.",
                "s",
                (("shardwise:solve_duration_seconds:p90_15m", "{{kind}}"),),
            ),
        ),
    ),
    (
        "Limits of a process",
        (
            Panel(
                "Open, of what tenants may have",
                "Event streams, waiting agents (polls) and archives.",
                "percentunit",
                (("shardwise:open_ratio", "{{what}} {{instance}}"),),
            ),
            Panel(
                "Most of one tenant",
                "How many of them one tenant has, or all operators.",
                "none",
                (("max by (what) (shardwise_open_of_one)", "{{what}}"),),
            ),
            Panel(
                "Calls that wait for a thread",
                "By pool.",
                "none",
                (("sum by (pool) (shardwise_calls_waiting)", "{{pool}}"),),
                span=8,
            ),
            Panel(
                "Calls that have a thread",
                "By pool.",
                "none",
                (("sum by (pool) (shardwise_calls_running)", "{{pool}}"),),
                span=8,
            ),
            Panel(
                "Bodies in memory",
                "Of what tenants may have there together.",
                "percentunit",
                (("shardwise_bodies_ratio", "{{instance}}"),),
                span=8,
            ),
        ),
    ),
    (
        "Processes",
        (
            Panel(
                "Event loop",
                "99th percentile of how late it is.",
                "s",
                (("shardwise:event_loop_lag_seconds:p99_5m", "{{instance}}"),),
            ),
            Panel(
                "Workers and slots",
                "Live processes, and solves that they may run at once.",
                "none",
                (("max(shardwise_workers)", "workers"), ("max(shardwise_worker_slots)", "slots")),
            ),
            Panel(
                "Resident memory",
                "Of services and workers; solves run in children of the workers.",
                "bytes",
                (
                    (
                        'process_resident_memory_bytes{job=~"shardwise|shardwise-worker"}',
                        "{{job}} {{instance}}",
                    ),
                ),
            ),
            Panel(
                "Database",
                "Time that the store's figures took to read.",
                "s",
                (("max by (instance) (shardwise_database_query_seconds)", "{{instance}}"),),
            ),
            Panel(
                "Size of the database",
                "All tables with their indexes; on SQLite the file.",
                "bytes",
                (("max(shardwise_database_bytes)", "database"),),
            ),
            Panel(
                "Messages to the broker",
                "And jobs that were rung for again.",
                "ops",
                (
                    ("sum by (outcome) (rate(shardwise_rings_total[5m]))", "{{outcome}}"),
                    ("sum(rate(shardwise_rings_repeated_total[5m]))", "again"),
                ),
            ),
        ),
    ),
)

# One of each: the largest over several operations or hosts would not be a real bandwidth.
_OPERATION = 'operation="$operation",hardware="$hardware"'

HARDWARE: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Links",
        (
            Panel(
                "Bus bandwidth by size and group",
                "Measured; nodes x ranks of a node. As nccl-tests defines it: compare with the "
                "link's peak.",
                "Bps",
                (
                    (
                        "max by (size, group) (shardwise_watch_bus_bandwidth_bytes_per_second"
                        f"{{{_OPERATION}}})",
                        "",
                    ),
                ),
                "curve",
                by=("size", "group"),
                span=24,
            ),
        ),
    ),
    (
        "Agents and launches",
        (
            Panel(
                "Agents by state",
                "Lost: the lease was not renewed.",
                "none",
                (("max by (state) (shardwise_agents)", "{{state}}"),),
            ),
            Panel(
                "Launches by state",
                "All that are stored.",
                "none",
                (("max by (state) (shardwise_launches)", "{{state}}"),),
            ),
            Panel(
                "Live devices by kind",
                "Of agents that are neither lost nor drained. Beyond 32 kinds: other.",
                "none",
                (
                    (
                        'max by (device_kind) (shardwise_devices{state="live"})',
                        "{{device_kind}}",
                    ),
                ),
                span=8,
            ),
            Panel(
                "Hosts by kind",
                "Agents with devices of a kind, by state; none: without devices.",
                "none",
                (
                    (
                        "max by (device_kind, state) (shardwise_hosts) > 0",
                        "{{device_kind}} {{state}}",
                    ),
                ),
                span=8,
            ),
            Panel(
                "Launches by kind",
                "Placed and not ended, by the kinds of their hosts' devices; one on several kinds "
                "is under each.",
                "none",
                (
                    (
                        "max by (device_kind, state) (shardwise_placed_launches) > 0",
                        "{{device_kind}} {{state}}",
                    ),
                ),
                span=8,
            ),
            Panel(
                "Reports",
                "From agents, per second.",
                "ops",
                (("sum by (outcome) (rate(shardwise_reports_total[5m]))", "{{outcome}}"),),
            ),
            Panel(
                "Lag of reports",
                "90th percentile from making to arrival, by the agents' clocks.",
                "s",
                (
                    (
                        "histogram_quantile(0.9, sum by (le) "
                        "(rate(shardwise_report_lag_seconds_bucket[15m])))",
                        "p90",
                    ),
                ),
            ),
        ),
    ),
    (
        "Predicted against measured",
        (
            Panel(
                "Median prediction error",
                "Of the runs of the last day, by quantity and device.",
                "percentunit",
                (
                    (
                        "max by (quantity, device_kind) (shardwise_recent_prediction_error_ratio)",
                        "{{quantity}} on {{device_kind}}",
                    ),
                ),
            ),
            Panel(
                "Model flops utilisation",
                "Median of the runs of the last day, measured beside predicted.",
                "percentunit",
                (
                    (
                        "max by (source, device_kind) (shardwise_flops_utilisation_ratio)",
                        "{{source}} on {{device_kind}}",
                    ),
                ),
            ),
            Panel(
                "Runs compared",
                "In the last day.",
                "none",
                (
                    (
                        'max by (device_kind) (shardwise_recent_runs{quantity="iteration"})',
                        "{{device_kind}}",
                    ),
                ),
            ),
        ),
    ),
    (
        "GPUs (where NVIDIA's DCGM exporter is scraped)",
        (
            Panel(
                "Utilisation",
                "Share of time in which a kernel ran.",
                "percent",
                (("avg by (Hostname) (DCGM_FI_DEV_GPU_UTIL)", "{{Hostname}}"),),
                span=8,
            ),
            Panel(
                "Memory used",
                "Frame buffer.",
                "decmbytes",
                (("max by (Hostname, gpu) (DCGM_FI_DEV_FB_USED)", "{{Hostname}} {{gpu}}"),),
                span=8,
            ),
            Panel(
                "NVLink traffic",
                "Bytes a second, all links.",
                "Bps",
                (
                    (
                        "sum by (Hostname) (DCGM_FI_PROF_NVLINK_TX_BYTES + "
                        "DCGM_FI_PROF_NVLINK_RX_BYTES)",
                        "{{Hostname}}",
                    ),
                ),
                span=8,
            ),
        ),
    ),
)


def all_dashboards() -> dict[str, str]:
    """Returns the JSON of every dashboard by file name."""
    builders = {
        "cluster-advice": _dashboard(
            "Cluster advice",
            "shardwise-advice",
            "Curves of what is watched: time, throughput, memory and price against GPUs.",
            ADVICE,
            _variable_of_several("watch", "label_values(shardwise_watch_info, watch)"),
        ),
        "service": _dashboard(
            "Service", "shardwise-service", "Requests, questions, workers, store.", SERVICE
        ),
        "hardware": _dashboard(
            "Hardware",
            "shardwise-hardware",
            "Links, agents, and how far predictions were off.",
            HARDWARE,
            _variable(
                "hardware", "label_values(shardwise_watch_bus_bandwidth_bytes_per_second, hardware)"
            ),
            _variable(
                "operation",
                "label_values(shardwise_watch_bus_bandwidth_bytes_per_second, operation)",
            ),
        ),
    }
    return {
        f"{name}.json": JSONEncoder(sort_keys=True, indent=1).encode(builder.build()) + "\n"
        for name, builder in builders.items()
    }


def main() -> None:
    """Writes the dashboards."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in all_dashboards().items():
        json.loads(text)
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
