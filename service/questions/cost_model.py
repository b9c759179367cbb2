"""What a question will cost, in seconds of solving, before anything of it is computed.

    solve    = START + Σ over searches
    search   = FIXED + PER_OPERATOR · operators + PER_ASSIGNMENT · assignments

`assignments` is how many splits a group of operators has on the mesh: it follows from the factors
of the number of GPUs, and is what makes 16 GPUs dearer than 13. The terms were fitted to
the shipped graphs on one core of 2024; what is left, how hard a graph is and how fast a host, is
corrected by what jobs took (service/store/estimates.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from shardwise.cost.space import assignments_of_group
from shardwise.hardware import Mesh

START_S = 0.8
"""A child's start: Python, NumPy, the graph."""

NEAR = (0.3, 4e-4, 3e-3)
"""FIXED, PER_OPERATOR, PER_ASSIGNMENT of a search near the memory limit: most of it is replay."""

WHOLE = (0.1, 1e-4, 6e-3)
"""Of a search of the whole frontier."""

VARIABLES = {True: 7, False: 4}
"""Variables of a group that can be split: of a graph with convolutions, and of others."""

MOST_DIMS = "most_dims"
"""In a graph's summary: the most dimensions of a parameter."""

CONVOLUTION_DIMS = 4
"""A parameter of so many dimensions is a convolution's."""

RECOMPUTATION = 1.6
"""What a search takes longer when every group may run forward again."""

SAMPLES = 24
"""Counts of a curve that are looked at; the others are like their neighbours."""


def seconds_of(question: Mapping[str, Any], graph: Mapping[str, Any]) -> float:
    """Returns the seconds that a question takes, from its document and its graph's summary."""
    if question["kind"] == "quote":
        searches = _of_offers(question, graph)
    elif question["kind"] == "curve":
        searches = _of_counts(question, graph)
    else:
        searches = _of_count(question, graph, question["gpus"], _terms_of(question))
    return START_S + searches * _factor(question["options"])


def _terms_of(question: Mapping[str, Any]) -> tuple[float, float, float]:
    near = question["kind"] != "frontier" and question.get("objective") in (
        None,
        "mini-time",
        "mini-cost",
    )
    return NEAR if near else WHOLE


def _of_count(
    question: Mapping[str, Any],
    graph: Mapping[str, Any],
    gpus: int,
    terms: tuple[float, float, float],
) -> float:
    """Returns one search on so many GPUs; none on more than the hardware has."""
    per_node, nodes = _node(question)
    if gpus > per_node * nodes:
        return 0.0
    variables = VARIABLES[graph.get(MOST_DIMS, 0) >= CONVOLUTION_DIMS]
    most = int(question["options"].get("max_configurations", 200))
    fixed, per_operator, per_assignment = terms
    count = _assignments(gpus, per_node, most, variables)
    return fixed + per_operator * int(graph.get("operators", 0)) + per_assignment * count


def _of_counts(question: Mapping[str, Any], graph: Mapping[str, Any]) -> float:
    """Returns a curve: one search for each count that the hardware has."""
    per_node, nodes = _node(question)
    counts = range(1, min(question["max_gpus"], per_node * nodes) + 1)
    if len(counts) == 0:
        return 0.0
    # An odd step, or only even counts would be looked at.
    some = counts[:: (len(counts) // SAMPLES) | 1]
    mean = sum(_of_count(question, graph, gpus, NEAR) for gpus in some) / len(some)
    return mean * len(counts)


def _of_offers(question: Mapping[str, Any], graph: Mapping[str, Any]) -> float:
    """Returns a quote: for each profile the instance counts 1, 2, 4, of which each is searched
    once."""
    offers = {}
    for offer in question["offers"]:
        per_node = int(offer["gpus_per_instance"])
        if offer["hardware"] is None or (offer["hardware"], per_node) in offers:
            continue
        alone = {**question, "hardware": {"devices": [{"count": per_node}]}}
        counts = [n for n in (1, 2, 4) if n <= question["max_instances"]]
        offers[offer["hardware"], per_node] = sum(
            _of_count(alone, graph, n * per_node, NEAR) for n in counts
        )
    return sum(offers.values())


def _factor(options: Mapping[str, Any]) -> float:
    again = RECOMPUTATION if options.get("recompute", "never") == "auto" else 1.0
    return again * len(options.get("micro_batches", (1,)))


def _node(question: Mapping[str, Any]) -> tuple[int, int]:
    """GPUs of a node, and the most nodes."""
    hardware = question["hardware"]
    levels = hardware.get("levels") or [{"size": 10**6}]
    nodes = hardware.get("nodes") or levels[-1]["size"]
    return int(hardware["devices"][0]["count"]), int(nodes)


@lru_cache(maxsize=4096)
def _assignments(gpus: int, per_node: int, most: int, variables: int) -> int:
    return assignments_of_group(Mesh.place(gpus, per_node), most, variables)
