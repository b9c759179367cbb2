"""A plan as layers × mesh axes: what each axis splits of each layer, or that it repeats the work.

Layers with the same split and costs share one row, which gives their number; the picture above the
table has every layer in the order of execution, one column each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from msgspec import UNSET

from service.page.views.cluster_table import cluster_context
from service.page.views.exported import trainer_export
from shardwise import documents
from shardwise.answers.explain import explain
from shardwise.documents.common import MeshAxis
from shardwise.documents.plan import PlannedGroup
from shardwise.pictures.gantt import gantt_svg

COLOURS = 8
"""The number of variables with their own colour (page.css, `.v0` to `.v7`)."""


def plan_context(result: dict[str, Any]) -> dict[str, Any]:
    """Returns the rows, the picture, and the parts of memory and time."""
    plan = documents.read(result, documents.WholePlan)
    axes, groups = plan.mesh.axes, plan.groups
    colours = _colours(groups)
    explained = explain(plan)
    totals = explained.totals
    rows = _rows(groups, axes, colours)
    return {
        "axes": axes,
        "rows": rows,
        "columns": [_cells(group, axes, colours) for group in groups],
        "legend": list(colours.items()),
        "zero_stages": Counter(group.zero for group in groups),
        "recomputed": sum(group.recompute for group in groups),
        "has_zero": any(group.zero for group in groups),
        "has_recompute": any(group.recompute for group in groups),
        "text": explained.text,
        "edges": explained.edges,
        "neighbours": explained.neighbours or [],
        "memory": _parts(
            totals.memory_bytes,
            ("Parameters, gradients, optimizer state", totals.parameter_bytes),
            ("Activations", totals.activation_bytes),
            ("Tensors kept between operators", totals.edge_bytes),
            ("Constants", totals.fixed_bytes),
        ),
        "time": _parts(
            totals.time_s,
            ("Compute", totals.compute_s),
            ("Synchronisation", totals.synchronisation_s),
            ("Re-scheduling", totals.rescheduling_s),
        ),
        "limit_bytes": plan.memory_limit_bytes,
        "gantt": _gantt(plan),
        "export": None if plan.trainer is UNSET else trainer_export(plan, plan.trainer.name),
        "cluster": None if plan.cluster is UNSET else cluster_context(plan, plan.cluster),
    }


def _gantt(plan: documents.WholePlan) -> Markup | None:
    """Returns the chart of the step; None for plans of earlier versions, which have no timeline."""
    if plan.timeline is UNSET or not plan.timeline.lanes:
        return None
    return Markup(gantt_svg(plan.timeline, plan.memory_limit_bytes))


def _colours(groups: Sequence[PlannedGroup]) -> dict[str, str]:
    """Returns a CSS class for every split variable, the most common first."""
    counts = Counter(v for group in groups for v in group.split.values() if v is not None)
    return {
        name: f"v{position}" if position < COLOURS else "v-other"
        for position, (name, _) in enumerate(counts.most_common())
    }


def _cells(
    group: PlannedGroup, axes: Sequence[MeshAxis], colours: dict[str, str]
) -> list[dict[str, Any]]:
    """Returns for each mesh axis the variable that it splits, or the ZeRO stage over it."""
    cells = []
    for axis in axes:
        variable = group.split.get(axis.name)
        shares = group.zero > 0 and axis.name in group.zero_axes
        cells.append(
            {
                "axis": axis.name,
                "variable": variable,
                "zero": group.zero if shares else 0,
                "colour": "none" if variable is None else colours[variable],
            }
        )
    return cells


def _rows(
    groups: Sequence[PlannedGroup], axes: Sequence[MeshAxis], colours: dict[str, str]
) -> list[dict[str, Any]]:
    rows: dict[tuple[object, ...], dict[str, Any]] = {}
    for group in groups:
        kinds = [operator.kind for operator in group.operators]
        key = (
            tuple(kinds),
            tuple(group.split.items()),
            group.zero,
            tuple(group.zero_axes),
            group.recompute,
            *(round(getattr(group, name), 9) for name in _COSTS),
        )
        row = rows.setdefault(
            key,
            {
                "name": group.slowest,
                "kinds": _short(kinds),
                "names": [],
                "cells": _cells(group, axes, colours),
                "zero": group.zero,
                "recompute": group.recompute,
                "memory_bytes": group.parameter_bytes + group.activation_bytes,
                "time_s": group.compute_s + group.communication_s,
                "compute_s": group.compute_s,
                "communication_s": group.communication_s,
            },
        )
        row["names"].append(group.name)
    return list(rows.values())


_COSTS = ("parameter_bytes", "activation_bytes", "compute_s", "communication_s")


def _short(kinds: list[str]) -> str:
    names = [kind.split(".")[1] if "." in kind else kind for kind in kinds]
    shown = list(dict.fromkeys(names))
    return ", ".join(shown[:3]) + (", …" if len(shown) > 3 else "")


def _parts(whole: float, *parts: tuple[str, float]) -> list[dict[str, Any]]:
    """Returns the segments of a bar of length 100: name, value, share, start."""
    segments = []
    start = 0.0
    for position, (name, value) in enumerate(parts):
        share = value / whole if whole > 0 else 0.0
        segments.append(
            {
                "name": name,
                "value": value,
                "share": share,
                "start": 100 * start,
                "width": 100 * share,
                "colour": f"p{position}",
            }
        )
        start += share
    return segments
