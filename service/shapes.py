"""The shapes of answers as JSON Schema, and examples, for the OpenAPI document.

Members that the library adds to its documents later are allowed: clients pass over what they do
not know.
"""

from __future__ import annotations

from typing import Any

from service.problems import PREFIX
from service.queue_view import REASONS
from service.store.jobs import COLLECTIONS
from service.store.tables import ENDED, STATES

Shape = dict[str, Any]
TEXT: Shape = {"type": "string"}
NUMBER: Shape = {"type": "number"}
WHOLE: Shape = {"type": "integer"}
FLAG: Shape = {"type": "boolean"}
OBJECT: Shape = {"type": "object"}


def maybe(shape: Shape) -> Shape:
    """The shape or null."""
    return {"anyOf": [shape, {"type": "null"}]}


def of(*required: str, **members: Shape) -> Shape:
    """An object; the named members are required, all when none is named."""
    return {"type": "object", "required": list(required or members), "properties": members}


def several(shape: Shape) -> Shape:
    """An array."""
    return {"type": "array", "items": shape}


def ref(name: str) -> Shape:
    """A named shape."""
    return {"$ref": f"#/components/schemas/{name}"}


def schema(kind: str) -> Shape:
    """The `schema` member of a document."""
    return {"type": "string", "const": f"shardwise.{kind}/1"}


def page(name: str, **more: Shape) -> Shape:
    """A page of the named shape."""
    return of(schema=schema("page"), items=several(ref(name)), next=maybe(TEXT), **more)


SHAPES: dict[str, Shape] = {
    "Problem": of(
        "type", "title", "status", "detail", "request_id",
        type={"type": "string", "pattern": f"^{PREFIX}"}, title=TEXT, status=WHOLE, detail=TEXT,
        request_id=TEXT, field=TEXT, expected=TEXT,
    ),
    "Health": of(status=TEXT),
    "Readiness": of(
        status=TEXT, checks=of(database=TEXT, writes=TEXT, broker=TEXT, workers=WHOLE)
    ),
    "Graph": of(
        schema=schema("graph"), name=TEXT,
        tensors=several(
            of("name", "shape", "dtype", "role", name=TEXT, shape=several(WHOLE), dtype=TEXT,
               role=TEXT, batch_dim=WHOLE)
        ),
        operators=several(
            of("name", "kind", "inputs", "outputs", name=TEXT, kind=TEXT, inputs=several(TEXT),
               outputs=several(TEXT), attributes=OBJECT, scope=TEXT)
        ),
    ),
    "GraphSummary": of(
        schema=schema("graph-summary"), id=TEXT, name=TEXT, operators=WHOLE, tensors=OBJECT,
        parameters=WHOLE, parameter_bytes=WHOLE, batch_size=maybe(WHOLE), size_bytes=WHOLE,
        created_at=TEXT,
    ),
    "GraphPage": page("GraphSummary"),
    "Hardware": of(
        "schema", "name", "provenance", "devices", "levels",
        schema=schema("hardware"), name=TEXT, provenance=TEXT, devices=several(OBJECT),
        levels=several(OBJECT), collectives=several(OBJECT), operators=several(OBJECT),
        sources=OBJECT, nodes=WHOLE,
    ),
    "HardwareSummary": of(
        schema=schema("hardware-summary"), id=TEXT, name=TEXT, builtin=FLAG, provenance=TEXT,
        device=TEXT, gpus_per_node=WHOLE, memory_bytes=NUMBER, max_nodes=WHOLE, measured=FLAG,
        created_at=maybe(TEXT),
    ),
    "HardwarePage": page("HardwareSummary", builtin=several(ref("HardwareSummary"))),
    "Job": of(
        "schema", "id", "kind", "state", "stage", "progress", "question", "content_id", "error",
        "created_at", "started_at", "ended_at", "location",
        schema=schema("job"), id=TEXT, kind={"type": "string", "enum": list(COLLECTIONS)},
        state={"type": "string", "enum": list(STATES)}, stage=TEXT, progress=NUMBER,
        question=OBJECT, content_id=TEXT, attempts=WHOLE, cancel_requested=FLAG,
        error=maybe(of("type", "title", "detail", type=TEXT, title=TEXT, detail=TEXT)),
        created_at=TEXT, started_at=maybe(TEXT), ended_at=maybe(TEXT), request_id=TEXT,
        location=TEXT, result=OBJECT, priority=WHOLE, queue=maybe(ref("QueuePlace")),
    ),
    "QueuePlace": of(
        place=maybe(WHOLE), of=WHOLE,
        code={"type": "string", "enum": list(REASONS)}, waits_for=maybe(TEXT),
        starts_at=maybe(TEXT), ends_at=maybe(TEXT),
    ),
    "JobPage": page("Job"),
    "Event": of(
        id=TEXT, event={"type": "string", "enum": ["progress", *ENDED]},
        data={**TEXT, "contentMediaType": "application/json", "contentSchema": ref("Job")},
    ),
    "Curve": of(
        "schema",
        schema={"type": "string", "enum": ["shardwise.curve/1", "shardwise.infeasible/1"]},
        points=several(of("gpus", "feasible", gpus=WHOLE, feasible=FLAG)), max_gpus=WHOLE,
    ),
    "Allocation": of(
        "schema", "objective", "gpus", "gpus_used", "jobs",
        schema=schema("allocation"), objective=TEXT, gpus=WHOLE, gpus_used=WHOLE,
        samples_per_s=NUMBER, smallest_share=maybe(NUMBER), deadlines_met=WHOLE,
        jobs=several(of("name", "gpus", name=TEXT, gpus=WHOLE)),
    ),
    "Watch": of(
        "schema", "name", "graph", "hardware", "max_gpus", "created_at",
        schema=schema("watch"), name=TEXT, graph=TEXT, hardware=TEXT, max_gpus=WHOLE,
        created_at=TEXT, job=ref("Job"),
    ),
    "WatchPage": page("Watch"),
    "Usage": of(
        schema=schema("usage"),
        quotas={
            "type": "object",
            "additionalProperties": of(used=WHOLE, limit=WHOLE, what=TEXT),
        },
        day_ends_at=TEXT,
    ),
    "Pending": of(schema=schema("pending"), waiting_for=several(ref("Job"))),
}  # fmt: skip

EXAMPLES: dict[str, Any] = {
    "FrontierRequest": {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "gpus": 4},
    "CurveRequest": {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "max_gpus": 8},
    "WatchRequest": {
        "name": "vgg-on-v100",
        "graph": "shipped:vgg16",
        "hardware": "dgx-v100-16gb",
        "max_gpus": 16,
    },
    "PlanRequest": {
        "graph": "shipped:vgg16",
        "hardware": "dgx-v100-16gb*1",
        "gpus": 8,
        "objective": "mini-time",
        "options": {"epsilon": 0.01, "optimizer": "adam"},
    },
    "QuoteRequest": {"graph": "shipped:gpt2", "steps": 100000, "deadline_s": 86400.0},
    "UserRequest": {"task": "run: python train.py\n", "skypilot_config": "{}\n"},
    "AllocationRequest": {
        "gpus": 8,
        "objective": "max-min",
        "jobs": [
            {"name": "vgg", "graph": "shipped:vgg16", "hardware": "dgx-v100-16gb"},
            {
                "name": "other",
                "curve": {"points": [{"gpus": 1, "time_s": 1.0}, {"gpus": 2, "time_s": 0.6}]},
            },
        ],
    },
    "Graph": {
        "schema": "shardwise.graph/1",
        "name": "one-layer",
        "tensors": [
            {"name": "x", "shape": [8, 32], "dtype": "float32", "role": "input", "batch_dim": 0},
            {"name": "w", "shape": [64, 32], "dtype": "float32", "role": "parameter"},
            {"name": "y", "shape": [8, 64], "dtype": "float32", "role": "output"},
        ],
        "operators": [
            {
                "name": "linear",
                "kind": "aten.linear.default",
                "inputs": ["x", "w"],
                "outputs": ["y"],
                "attributes": {"tensor_arguments": ["input", "weight"]},
                "scope": "",
            }
        ],
    },
}
