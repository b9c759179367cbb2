"""Why a plan is what it is: how each group is split, what it costs, what was near.

Reads a `shardwise.plan/1` document and needs neither graph nor solver. Groups that are split
alike and cost alike (repeated layers) are one row.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod
from typing import Any

from shardwise.advise.shares import shares_text

EXPLANATION_SCHEMA = "shardwise.explanation/1"


def explain(plan: dict[str, Any]) -> dict[str, Any]:
    """The explanation of a plan, as the document `shardwise.explanation/1`."""
    axes = plan["mesh"]["axes"]
    groups = _folded_groups(plan, axes)
    edges = _folded_edges(plan)
    return {
        "schema": EXPLANATION_SCHEMA,
        "plan": plan["id"],
        "graph_name": plan["graph_name"],
        "hardware": plan["hardware"],
        "gpus": plan["gpus"],
        "mesh": plan["mesh"],
        "predicted": plan["predicted"],
        "groups": groups,
        "edges": edges,
        "totals": _totals(plan),
        "text": _text(plan, groups, edges),
    }


def _folded_groups(plan: dict[str, Any], axes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows: dict[tuple[object, ...], dict[str, Any]] = {}
    for group in plan["groups"]:
        kinds = [op["kind"] for op in group["operators"]]
        split = choice_text(group, axes)
        key = (
            tuple(kinds),
            split,
            group["parameter_bytes"],
            group["activation_bytes"],
            group["compute_s"],
            group["communication_s"],
        )
        row = rows.setdefault(
            key,
            {
                "name": group["name"],
                "kind": _short(kinds),
                "repeats": 0,
                "split": split,
                "memory_bytes": group["parameter_bytes"] + group["activation_bytes"],
                "parameter_bytes": group["parameter_bytes"],
                "activation_bytes": group["activation_bytes"],
                "compute_s": group["compute_s"],
                "compute_shares": group.get("compute_shares"),
                "communication_s": group["communication_s"],
                "operators": [
                    {"name": op["name"], "kind": op["kind"], "compute_from": op["compute_from"]}
                    for op in group["operators"]
                    if op.get("compute_from")
                ],
                "next_best": _next_best(group.get("next_best"), axes),
            },
        )
        row["repeats"] += 1
    return list(rows.values())


def _next_best(other: dict[str, Any] | None, axes: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The best other split of a group, everything else as it is."""
    if other is None:
        return None
    return {**other, "split": choice_text(other, axes)}


def choice_text(choice: dict[str, Any], axes: list[dict[str, Any]]) -> str:
    """The split, and what else a group chooses: ZeRO and running forward again."""
    words = [split_text(choice["split"], axes)]
    if choice.get("zero"):
        sharing = [axis for axis in axes if axis["name"] in choice["zero_axes"]]
        words.append(f"ZeRO-{choice['zero']}/{prod(axis['size'] for axis in sharing)}")
    if choice.get("recompute"):
        words.append("run again in backward")
    return "; ".join(words)


def split_text(split: dict[str, str | None], axes: list[dict[str, Any]]) -> str:
    """Such as `b/2 between nodes, o/8 inside a node`; `replicated` when nothing is split."""
    parts: dict[tuple[str, str], int] = defaultdict(lambda: 1)
    for axis in axes:
        variable = split.get(axis["name"])
        if variable is not None:
            parts[variable, axis["level"]] *= axis["size"]
    return (
        ", ".join(f"{variable}/{n} {level}" for (variable, level), n in parts.items())
        or "replicated"
    )


def _short(kinds: list[str]) -> str:
    names = [kind.split(".")[1] if "." in kind else kind for kind in kinds]
    shown = list(dict.fromkeys(names))
    return "+".join(shown[:3]) + ("+…" if len(shown) > 3 else "")


def _folded_edges(plan: dict[str, Any]) -> list[dict[str, Any]]:
    rows: dict[tuple[object, ...], dict[str, Any]] = {}
    for edge in plan["edges"]:
        if edge["time_s"] == 0 and edge["kept"] == "one":
            continue
        forward = [_step_text(s) for s in edge["forward"]]
        backward = [_step_text(s) for s in edge["backward"]]
        key = (tuple(forward), tuple(backward), edge["kept"], edge["time_s"], edge["memory_bytes"])
        row = rows.setdefault(
            key,
            {
                "source": edge["source"],
                "target": edge["target"],
                "repeats": 0,
                "forward": forward,
                "backward": backward,
                "kept": edge["kept"],
                "memory_bytes": edge["memory_bytes"],
                "time_s": edge["time_s"],
            },
        )
        row["repeats"] += 1
    return sorted(rows.values(), key=lambda r: -r["time_s"] * r["repeats"])


def _step_text(step: dict[str, Any]) -> str:
    return f"{step['operation']}({'+'.join(step['axes'])})"


def _totals(plan: dict[str, Any]) -> dict[str, float]:
    """The sum of all rows; it equals the plan's prediction."""
    groups, edges = plan["groups"], plan["edges"]
    fixed_memory = plan["predicted"].get("fixed_memory_bytes", 0.0)
    fixed_time = plan["predicted"].get("fixed_time_s", 0.0)
    return {
        "parameter_bytes": sum(g["parameter_bytes"] for g in groups),
        "activation_bytes": sum(g["activation_bytes"] for g in groups),
        "edge_bytes": sum(e["memory_bytes"] for e in edges),
        "fixed_bytes": fixed_memory,
        "memory_bytes": sum(g["parameter_bytes"] + g["activation_bytes"] for g in groups)
        + sum(e["memory_bytes"] for e in edges)
        + fixed_memory,
        "compute_s": sum(g["compute_s"] for g in groups) + fixed_time,
        "synchronisation_s": sum(g["communication_s"] for g in groups),
        "rescheduling_s": sum(e["time_s"] for e in edges),
        "time_s": sum(g["compute_s"] + g["communication_s"] for g in groups)
        + sum(e["time_s"] for e in edges)
        + fixed_time,
    }


def _text(
    plan: dict[str, Any], groups: list[dict[str, Any]], edges: list[dict[str, Any]]
) -> list[str]:
    totals = _totals(plan)
    lines = [
        f"{plan['graph_name']} on {plan['gpus']} GPUs of {plan['hardware']}: "
        f"{totals['time_s']:.4g} s a step, of which {totals['compute_s']:.4g} s compute, "
        f"{totals['synchronisation_s']:.4g} s synchronisation, "
        f"{totals['rescheduling_s']:.4g} s re-scheduling."
    ]
    predicted = plan["predicted"]
    if "compute_shares" in predicted:
        lines.append(f"Compute time stands on: {shares_text(predicted['compute_shares'])}.")
    if "peak_bytes" in predicted:
        lines.append(
            f"Replayed, the step peaks at {predicted['peak_bytes'] / 2**30:.4g} GiB and takes "
            f"{predicted['replayed_time_s']:.4g} s, "
            f"{predicted['exposed_communication_s']:.4g} s of it waiting for communication."
        )
    if groups:
        slowest = max(groups, key=lambda g: (g["compute_s"] + g["communication_s"]) * g["repeats"])
        likes = f" and its {slowest['repeats'] - 1} likes" if slowest["repeats"] > 1 else ""
        share = (slowest["compute_s"] + slowest["communication_s"]) * slowest["repeats"]
        lines.append(
            f"Most time goes to {slowest['name']}{likes} "
            f"({share / max(totals['time_s'], 1e-30):.0%}), split {slowest['split']}."
        )
    if edges:
        worst = edges[0]
        lines.append(
            f"The dearest re-scheduling is {worst['source']} → {worst['target']} "
            f"(×{worst['repeats']}): {worst['repeats'] * worst['time_s']:.4g} s."
        )
    return lines
