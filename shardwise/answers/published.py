"""Published steps of such a model on such GPUs, to show beside a prediction.

tools/published_steps.py makes the table shardwise/data/published.csv from the runs that predictions
are compared with (docs/accuracy.md).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from math import log

from shardwise.answers.roles import tokens
from shardwise.files import DATA
from shardwise.graph import Graph
from shardwise.hardware import Hardware
from shardwise.sharding.precision import CAPTURED
from shardwise.sharding.recipes import bits_of

TABLE = DATA / "published.csv"
COLUMNS = ("project", "parameters", "gpu", "gpus", "seq", "bits", "tokens_per_s_per_gpu")

SAME_PARAMETERS = 0.03
"""Relative: models with closer parameter counts are of one architecture and size."""
MOST_SEQ, MOST_GPUS = 2.0, 8.0
"""Maximum factors between comparable steps: of the sequence length, and of the number of GPUs."""


@dataclass(frozen=True)
class PublishedStep:
    """A published step; `rate` is in tokens per second per GPU, and linear layers multiply numbers
    of `bits` bits (`recipes.bits_of`)."""

    project: str
    parameters: int
    gpu: str
    gpus: int
    seq: int
    bits: int
    rate: float


@cache
def published_steps() -> tuple[PublishedStep, ...]:
    """Returns the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return tuple(
        PublishedStep(
            row["project"],
            int(row["parameters"]),
            row["gpu"],
            int(row["gpus"]),
            int(row["seq"]),
            int(row["bits"]),
            float(row["tokens_per_s_per_gpu"]),
        )
        for row in rows
    )


def nearest_step(
    graph: Graph, hardware: Hardware, gpus: int, precision: str = CAPTURED
) -> PublishedStep | None:
    """Returns the published step nearest in GPUs and sequence length, the fastest of these; None if
    no model of this size was published on such GPUs with products of as many bits."""
    of_batch, batch = tokens(graph), graph.batch_size
    if not of_batch or not batch:
        return None
    seq = of_batch / batch

    def distance(one: PublishedStep) -> float:
        return abs(log(one.gpus / gpus)) + abs(log(one.seq / seq))

    near = (
        one
        for one in published_steps()
        if one.gpu == hardware.devices[0].kind
        and one.bits == bits_of(precision)
        and abs(one.parameters / graph.parameter_count - 1.0) < SAME_PARAMETERS
        and abs(log(one.gpus / gpus)) <= log(MOST_GPUS)
        and abs(log(one.seq / seq)) <= log(MOST_SEQ)
    )
    return min(near, key=lambda one: (round(distance(one), 6), -one.rate), default=None)


def published_text(
    graph: Graph, hardware: Hardware, gpus: int, step_s: float, precision: str = CAPTURED
) -> str:
    """Returns such a step in words, beside a step of `step_s` seconds in the same unit; empty if
    none is near."""
    one, of_batch = nearest_step(graph, hardware, gpus, precision), tokens(graph)
    if one is None or not of_batch or not step_s:
        return ""
    products = "" if one.bits == bits_of(CAPTURED) else f" and products in {one.bits} bits"
    return (
        f"{one.rate:,.0f} tokens/s a GPU on {one.gpus:,} of these GPUs with sequences of "
        f"{one.seq:,}{products} ({one.project}); here {of_batch / (step_s * gpus):,.0f}"
    )
