"""The size of a job as features, and how much a past job's time says of a new one's.

    likeness(a, b) = exp(-Σ (c · difference)²)

over the features of either: the difference of numbers is that of their logarithms, of names 0 or 1,
and c how much it matters. `LIKENESS_OF_START` is the likeness below which the start value of an
estimate (cost_model.py) says more than the past job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Any

from service.questions.cost_model import BATCH_SIZE, MOST_DIMS
from shardwise.cost.named_options import PINS

Size = dict[str, float | str]
"""Features by name. A release may add some: both jobs need not have the same ones."""

NUMBER, NAME, PLACE = 0.7, 1.5, 0.5
"""Weights of a factor of e, another name, and another graph or profile."""

LIKENESS_OF_START = 0.05

NEAREST = 5
"""Number of past jobs that count: many less similar ones must not outvote one of the same size."""

EXACT = 1e-4
"""An epsilon below this counts as this."""

PLACES = (
    "graph", "hardware", "memory_limit_bytes", "memory_room_bytes", "memory_headroom",
    "search_memory_bytes",
)  # fmt: skip
"""Names that matter as much as `PLACE`."""

_NUMBERS = ("max_configurations", "time_limit_s")
"""Options whose values are numbers here; those of others are names."""

_LISTS = ("bundles", "counts", "offers", "file")
_COUNTS = ("gpus", "max_gpus", "max_instances", "proposals", "combine")
_CHOICES = ("objective", "space", "stages", "schedules", "gpus")


def size_of(question: Mapping[str, Any], graph: Mapping[str, Any]) -> Size:
    """Returns the features of a question, from its document and its graph's summary."""
    options = question["options"]
    size: Size = {name: _text(value) for name, value in options.items()}
    size |= {name: float(options.get(name) or 0) for name in _NUMBERS}
    size["epsilon"] = max(float(options.get("epsilon") or 0), EXACT)
    size[PINS] = float(len(options.get(PINS) or ()))
    if counts := options.get("micro_batches"):
        size["micro_batches"] = float(len(counts))
    size |= {
        "graph": question["graph"],
        "operators": float(graph.get("operators") or 0),
        "batch": float(graph.get(BATCH_SIZE) or 0),
        "dims": _text(graph.get(MOST_DIMS)),
        "hardware": _text(question.get("hardware_id")),
    }
    size |= {name: float(len(question[name])) for name in _LISTS if question.get(name)}
    if named := question.get("counts"):
        size["max_gpus"] = float(max(named))
    size |= {n: _text(question[n]) for n in _CHOICES if isinstance(question.get(n), str | list)}
    size |= {n: float(question[n]) for n in _COUNTS if isinstance(question.get(n), int)}
    return size


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def likeness(one: Size, other: Size) -> float:
    """Returns the similarity of two jobs from 0 to 1; 1 for the same features."""
    return exp(-sum(_distance(n, one.get(n, 0.0), other.get(n, 0.0)) for n in {*one, *other}))


def _distance(name: str, one: float | str, other: float | str) -> float:
    if one == other:
        return 0.0
    if isinstance(one, str) or isinstance(other, str):
        return float((PLACE if name in PLACES else NAME) ** 2)
    least = EXACT if name == "epsilon" else 1.0
    return float((NUMBER * log(max(one, least) / max(other, least))) ** 2)


def corrected_s(start_s: float, size: Size, past: Sequence[tuple[Size, float, float]]) -> float:
    """Returns the seconds of a job whose start value is `start_s`, by past jobs.

    `past` has the size, the start value and the time taken of each, in seconds above 0. The nearest
    count, each by its likeness: the factor by which it missed its start value is the new job's too.
    """
    missed_by = [(likeness(size, other), log(took_s / model_s)) for other, model_s, took_s in past]
    nearest = sorted(missed_by, key=lambda each: -each[0])[:NEAREST]
    weight = LIKENESS_OF_START + sum(like for like, _ in nearest)
    missed = sum(like * factor for like, factor in nearest)
    return start_s * exp(missed / weight)
