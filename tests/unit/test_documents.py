"""Each document of the library is its type: member for member, in order, byte for byte."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

from harness import answers
from harness.graph_builder import mlp
from harness.stored import stored
from shardwise import documents
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.documents.service import SERVICE_DOCUMENTS
from shardwise.errors import BadInput
from shardwise.graph import Graph, read_graph
from shardwise.hardware import load_hardware, read_offers

V100 = load_hardware("dgx-v100-16gb")
ONE_NODE = load_hardware("l4")


@cache
def vgg() -> Graph:
    return read_graph(shipped_graph("vgg16"))


@cache
def a_plan() -> dict[str, Any]:
    return answers.plan(vgg(), V100, 4)


@cache
def small() -> Graph:
    return mlp(64, 256, 1024)


def _quote() -> dict[str, Any]:
    offers = read_offers()[:3]
    return answers.quote(
        small(), offers, steps=100, deadline_s=1e6, budget_usd=1e3, max_instances=1
    )


MADE: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "a frontier": ("frontier", lambda: answers.frontier(small(), V100, 4)),
    "a frontier of sums": (
        "frontier", lambda: answers.frontier(small(), V100, 4, Options(overlap=False)),
    ),
    "a frontier by Tofu": (
        "frontier",
        lambda: answers.frontier(small(), V100, 2, Options(overlap=False, method="tofu")),
    ),
    "a curve": ("curve", lambda: answers.curve(small(), V100, 3)),
    "a curve on which nothing fits": (
        "curve",
        lambda: answers.curve(small(), V100, 2, Options(overlap=False, memory_limit_bytes=1e6)),
    ),
    "a curve beyond the hardware": ("curve", lambda: answers.curve(small(), ONE_NODE, 2)),
    "a plan": ("plan", a_plan),
    "a plan with everything on": (
        "plan",
        lambda: answers.plan(
            small(), V100, 4,
            options=Options(recompute="auto", micro_batches=(1, 2), precision="bf16"),
        ),
    ),
    "an explanation": ("explanation", lambda: answers.explain(a_plan())),
    "a quote": ("quote", _quote),
    "a quote without steps": (
        "quote",
        lambda: answers.quote(
            small(), read_offers()[:1], max_instances=1, options=Options(micro_batches=(1,))
        ),
    ),
    "a comparison": ("compare", lambda: answers.compare(small(), V100, 2)),
    "a comparison by sums": (
        "compare", lambda: answers.compare(small(), V100, 2, Options(overlap=False)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_a_document_is_its_type(name: str) -> None:
    kind, make = MADE[name]
    document = make()
    typed = documents.read(document, documents.DOCUMENTS[kind])
    assert json.loads(msgspec.json.encode(typed)) == document
    assert msgspec.json.encode(typed) == msgspec.json.encode(document)
    jsonschema.validate(json.loads(msgspec.json.encode(document)), documents.json_schema(kind))


@pytest.mark.parametrize("kind", [*documents.DOCUMENTS, *SERVICE_DOCUMENTS])
def test_schemas_are_valid_and_say_what_they_are_of(kind: str) -> None:
    schema = documents.json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:shardwise:schema:{kind}:1"
    descriptions = [d["description"] for d in schema["$defs"].values() if "description" in d]
    assert descriptions and not any("\n " in text for text in descriptions)


def test_a_wrong_member_is_named() -> None:
    plan = copy.deepcopy(a_plan())
    plan["groups"][0]["operators"][0]["moves"] = "none"
    with pytest.raises(BadInput) as refused:
        documents.read(plan, documents.Plan, file="plan.json")
    assert refused.value.file == "plan.json"
    assert refused.value.field == "groups[0].operators[0].moves"
    with pytest.raises(BadInput, match="unknown schema"):
        documents.read({**plan, "schema": "shardwise.plan/3"}, documents.Plan)
    with pytest.raises(BadInput, match="not an object"):
        documents.read([], documents.Plan)
    with pytest.raises(BadInput, match="unknown document"):
        documents.json_schema("planet")


def test_members_of_a_later_release_are_passed_over() -> None:
    plan = {**a_plan(), "colour": "red"}
    assert documents.read(plan, documents.Plan).id == plan["id"]


def test_plans_and_pipelines_answer_the_same_questions() -> None:
    plan, pipeline, mixed = (stored(name) for name in ("plan", "pipeline", "plan-bundle"))
    assert plan.step_s == plan.replayed_s == plan.predicted.replayed_time_s
    assert replace(plan, overlap=False).step_s == plan.predicted.time_s != plan.replayed_s
    assert pipeline.step_s == pipeline.replayed_s == pipeline.predicted.step_s
    assert (plan.ranks, pipeline.ranks) == (1, len(pipeline.stages))
    assert (plan.kinds, pipeline.kinds, mixed.kinds) == ([], [], mixed.cluster.kinds)
    assert len(mixed.kinds) == mixed.gpus
    assert pipeline.execution is pipeline.cluster is msgspec.UNSET
