"""One answer of every kind, stored in files that `python -m harness.stored` writes.

Tests of what sends, shows and prints answers use these instead of searching. One test computes
each of them again (tests/golden/test_stored_answers.py): if you change an answer, run the command
and review the difference.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from harness.graph_builder import layers, mlp
from service.questions.question import (
    Limits,
    Question,
    answer,
    compare_question,
    curve_question,
    frontier_question,
    plan_question,
    pricing_question,
    quote_question,
)
from shardwise import documents, validation
from shardwise.cost.options import quiet
from shardwise.documents import QUESTIONS
from shardwise.graph import Graph, graph_id, read_graph
from shardwise.hardware import load_hardware

FOLDER = Path(__file__).parents[1] / "tests" / "golden" / "answers"
V100, L4, MIXED, TWO = "dgx-v100-16gb", "l4", "heterog-8", "l40s-4+a100-4"
DAY = "2026-11-01"
"""When offers were quoted."""
TIMES = ("search", "seconds")
"""Members of answers that no two computations have alike."""

ONE: dict[str, Any] = {"options": {"micro_batches": [1]}}
EIGHT: dict[str, Any] = {"options": {"micro_batches": [8]}}
PIPED: dict[str, Any] = {
    "options": {
        "micro_batches": [8], "zero": [0], "memory_limit_bytes": 2.0**28,
        "pins": ["inside!=out", "inside!=in"],
    },
}  # fmt: skip
"""Weights are on every device of a stage: the chain fits as a pipeline only."""
OFFERS = (
    "Provider,InstanceType,AcceleratorName,AcceleratorCount,Price,Region,Hardware\n"
    "me,small,V100,1,2.5,here,dgx-v100-16gb\nme,large,V100,8,20,here,dgx-v100-16gb\n"
)
FIVE = (
    "Provider,InstanceType,AcceleratorName,AcceleratorCount,Price,Region,Hardware\n"
    "cloud,five,L4,5,5.0,here,l4\n"
)
CONFIGURATION = '{"train_batch_size": 64, "zero_optimization": {"stage": 1}}'


@dataclass(frozen=True)
class Asked:
    """A question as HTTP takes it, but for its graph, which is one of `graph`'s."""

    kind: str
    graph: str
    members: Mapping[str, Any]

    @property
    def body(self) -> dict[str, Any]:
        """The whole body of the request."""
        return {"graph": graph_id(graph(self.graph)), **self.members}

    @property
    def question(self) -> Question:
        """The question as a service stores it."""
        ask: Any = validation.convert(self.body, QUESTIONS[self.kind])
        limits, name = Limits(4096, 1024), self.members.get("hardware")
        hardware = None if name is None else load_hardware(name)
        if self.kind == "quote":
            return quote_question(ask, ask.graph, limits, hardware)
        assert hardware is not None
        return _QUESTION[self.kind](ask, ask.graph, hardware, limits)


_QUESTION: Mapping[str, Any] = {
    "frontier": frontier_question,
    "curve": curve_question,
    "plan": plan_question,
    "pricing": pricing_question,
    "compare": compare_question,
}


@cache
def graph(name: str) -> Graph:
    """Returns `gpt`, of two layers, as `shardwise capture` makes it, `chain`, of ten, or `mlp`."""
    if name == "mlp":
        return mlp(64, 256, 1024, "small MLP")
    return layers(10, 64, 2048) if name == "chain" else read_graph(FOLDER / f"{name}.json.gz")


STORED: Mapping[str, Asked] = {
    "frontier": Asked("frontier", "gpt", {"hardware": V100, "gpus": 4, **ONE}),
    "frontier-mlp": Asked("frontier", "mlp", {"hardware": V100, "gpus": 2}),
    "curve": Asked("curve", "gpt", {"hardware": V100, "max_gpus": 4, **ONE}),
    "plan": Asked("plan", "gpt", {"hardware": V100, "gpus": 4, **ONE}),
    "plan-2": Asked("plan", "gpt", {"hardware": V100, "gpus": 2, **ONE}),
    "trainer": Asked("plan", "gpt", {"hardware": V100, "gpus": 4, "space": "deepspeed", **ONE}),
    "infeasible": Asked(
        "plan", "mlp",
        {"hardware": V100, "gpus": 4, "options": {"memory_limit_bytes": 1e4}},
    ),
    "pipeline": Asked("plan", "gpt", {"hardware": L4, "gpus": 2, "stages": [2], **EIGHT}),
    "pricing": Asked(
        "pricing", "gpt", {"hardware": V100, "gpus": 4, "configuration": CONFIGURATION, **ONE}
    ),
    "quote": Asked(
        "quote", "gpt",
        {"offers_csv": OFFERS, "steps": 1000, "deadline_s": 3600.0, "max_instances": 2, **ONE},
    ),
    "comparison": Asked("compare", "gpt", {"hardware": V100, "gpus": 4, **ONE}),
    "comparison-sums": Asked(
        "compare", "mlp",
        {"hardware": V100, "gpus": 2, "proposals": 500, "options": {"overlap": False}},
    ),
    "comparison-pipelines": Asked(
        "compare", "gpt",
        {"hardware": L4, "gpus": 2, "stages": [2], "schedules": ["1f1b", "zb-h1"],
         **EIGHT},
    ),
    "curve-bundles": Asked(
        "curve", "mlp",
        {"hardware": MIXED, "bundles": ["v100=2,p100=2", "v100=2"], **ONE},
    ),
    "plan-bundle": Asked("plan", "mlp", {"hardware": MIXED, "gpus": "v100=2,p100=2", **ONE}),
    "parts": Asked(
        "quote", "mlp",
        {"hardware": TWO, "steps": 10000, "deadline_s": 360000.0,
         "prices": {"l40s": 2.5, "a100": 4.0},
         "options": {"micro_batches": [1], "zero": [0], "recompute": "never"}},
    ),
    "frontier-pipelines": Asked(
        "frontier", "chain",
        {"hardware": L4, "gpus": 4, "stages": [2, 4],
         "options": {**PIPED["options"], "memory_limit_bytes": 2.0**30, "zero": [0, 1]}},
    ),
    "curve-pipelines": Asked(
        "curve", "chain", {"hardware": L4, "max_gpus": 5, "stages": "auto", **PIPED}
    ),
    "bundles-pipelines": Asked(
        "curve", "chain",
        {"hardware": MIXED, "bundles": ["v100=2,p100=2", "p100=1"], "stages": [4], **PIPED},
    ),
    "quote-pipelines": Asked(
        "quote", "chain", {"offers_csv": FIVE, "max_instances": 1, "stages": [5], **PIPED}
    ),
}  # fmt: skip
"""The questions whose answers are kept, by the name of their file."""


def path(name: str) -> Path:
    """Returns the file of an answer."""
    return FOLDER / f"{name}.json"


@cache
def content(name: str) -> bytes:
    """Returns an answer as a service sends it."""
    return msgspec.json.encode(stored(name))


@cache
def stored(name: str) -> Any:
    """Returns an answer as its document."""
    members = json.loads(path(name).read_text())
    if members["schema"] == documents.schema_of(documents.Infeasible):
        return documents.read(members, documents.Infeasible)
    if STORED[name].kind == "plan":
        return documents.read(members, documents.Plan)
    return documents.read(members, documents.DOCUMENTS[STORED[name].kind])


def computed(name: str) -> dict[str, Any]:
    """Returns the members of an answer that is computed now."""
    asked = STORED[name]
    question = asked.question.document
    found = answer(
        question | ({"today": DAY} if "today" in question else {}),
        graph(asked.graph),
        quiet,
        threads=1,
    )
    members: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
    return members


def timeless(document: Any) -> Any:
    """Returns a document without the times that differ in every computation."""
    if isinstance(document, dict):
        return {name: timeless(one) for name, one in document.items() if name not in TIMES}
    return [timeless(one) for one in document] if isinstance(document, list) else document


if __name__ == "__main__":
    for chosen in sys.argv[1:] or STORED:
        path(chosen).write_text(json.dumps(computed(chosen), indent=1, ensure_ascii=False) + "\n")
        print(path(chosen).name)
