"""OpenAPI descriptions of all routes: shapes, examples, all possible statuses.

Routes take raw requests, so that bodies are read within limits and errors are ours; here FastAPI
learns what they take and return. The shapes are the types that requests are decoded into, and those
of `shardwise.documents`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from service.base.problems import MEDIA_TYPE, PROBLEMS
from service.base.scopes import security_of
from service.cluster.reports import (
    DrainRequest,
    EnrolRequest,
    HeartbeatRequest,
    ReportsRequest,
    TokenRequest,
)
from service.edge.curve_forms import (
    BUNDLES,
    COUNTS,
    CURVE,
    MOST_GPU_TYPE,
    SCHEDULES,
    SPACE,
    STAGES,
)
from service.handlers.accuracy import RefitRequest
from service.handlers.allocations import AllocationRequest
from service.handlers.keys import KeyRequest, RotateRequest
from service.handlers.plan_export import FORMAT, GPU_TYPE, TO
from service.handlers.tenants import LimitsRequest, TenantRequest
from service.handlers.watches import WatchRequest
from service.handlers.webhooks import WebhookRequest
from service.openapi.examples import EXAMPLES
from service.questions.fair_order import PRIORITIES
from service.questions.skypilot_task import UserRequest
from service.store.job_search import MOST_TEXT
from service.store.pages import CURSOR, DEFAULT_LIMIT, MAX_LIMIT
from service.store.tables import STATES
from shardwise.cost.named_options import NAMES, NUMBERS, PINS, STEP
from shardwise.documents import (
    DOCUMENTS,
    CompareRequest,
    CurveRequest,
    CurvesRequest,
    FrontierRequest,
    LaunchRequest,
    PlanRequest,
    PricingRequest,
    QuoteRequest,
)
from shardwise.documents.questions import COLLECTIONS, MOST_BUNDLE_CHARACTERS, MOST_BUNDLES
from shardwise.documents.schemas import without_indentation
from shardwise.documents.service import SERVICE_TYPES
from shardwise.schedulers.formats import FORMS, PLAN_FORMS, SHELL
from shardwise.trainers.formats import TRAINERS

Route = dict[str, Any]
REQUESTS = (
    FrontierRequest,
    CurveRequest,
    CurvesRequest,
    PlanRequest,
    PricingRequest,
    QuoteRequest,
    CompareRequest,
    AllocationRequest,
    UserRequest,
    WatchRequest,
    TokenRequest,
    EnrolRequest,
    HeartbeatRequest,
    DrainRequest,
    ReportsRequest,
    LaunchRequest,
    RefitRequest,
    KeyRequest,
    RotateRequest,
    TenantRequest,
    LimitsRequest,
    WebhookRequest,
)
_REF = "#/components/schemas/"

READS = (401, 403, 422, 429, 503)
CHANGES = (400, *READS, 408, 409, 413, 415)
TITLES = {
    status: "; ".join(title for other, title in PROBLEMS.values() if other == status)
    for status, _ in PROBLEMS.values()
}


def components() -> dict[str, Any]:
    """Returns every named shape."""
    types = (*REQUESTS, *DOCUMENTS.values(), *SERVICE_TYPES)
    _, shapes = msgspec.json.schema_components(types, ref_template=_REF + "{name}")
    return {name: without_indentation(shape) for name, shape in shapes.items()}


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """Returns FastAPI's document with our shapes and security schemes added."""
    parts = document.setdefault("components", {})
    parts["schemas"] = components()
    parts["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "`shardwise keys create`, or an access token of the identity provider "
            "if the service accepts those (`Shardwise-Tenant` then names one of its tenants); not "
            "needed by a service on loopback that has no keys and no identity provider.",
        }
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["security"] = security_of(method, path)
    return document


def allowed_methods(document: dict[str, Any], path: str) -> list[str]:
    """Returns the methods of a path by the document; Starlette names those of one route only.

    Of several templates the one with the fewest parameters counts: `/v1/agents/tokens` is not the
    agent `tokens`.
    """
    fitting = [
        template
        for template in document["paths"]
        if re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", template), path)
    ]
    if not fitting:
        return []
    closest = min(fitting, key=lambda template: template.count("{"))
    return sorted(method.upper() for method in document["paths"][closest])


def _problem() -> dict[str, Any]:
    return {MEDIA_TYPE: {"schema": {"$ref": _REF + "Problem"}}}


def json_body(shape: str, example: Any = None) -> dict[str, Any]:
    """Returns a body of the named shape."""
    content: dict[str, Any] = {"schema": {"$ref": _REF + shape}}
    if example is None:
        example = EXAMPLES.get(shape)
    if example is not None:
        content["example"] = example
    return {"application/json": content}


def _responses(good: dict[int, tuple[str, Any]], bad: tuple[int, ...]) -> dict[int | str, Any]:
    responses: dict[int | str, Any] = {
        status: {"description": text, **({"content": content} if content else {})}
        for status, (text, content) in good.items()
    }
    for status in sorted({*bad, 500}):
        responses[status] = {"description": TITLES[status], "content": _problem()}
    return responses


def route(
    good: dict[int, tuple[str, Any]],
    bad: tuple[int, ...],
    *,
    body: dict[str, Any] | None = None,
    body_required: bool = True,
    parameters: list[dict[str, Any]] | None = None,
    create: bool = False,
    status_code: int = 200,
) -> Route:
    """Returns FastAPI's arguments for a route: good answers with their bodies, and bad statuses."""
    extra: dict[str, Any] = {}
    if body is not None:
        extra["requestBody"] = {"required": body_required, "content": body}
    if create:
        parameters = [*(parameters or []), _IDEMPOTENCY]
    if parameters:
        extra["parameters"] = parameters
    return {
        "responses": _responses(good, bad),
        "openapi_extra": extra,
        "status_code": status_code,
        "response_model": None,
    }


def query(name: str, schema: dict[str, Any], text: str, *, required: bool = False) -> Any:
    """Returns a query parameter."""
    return {
        "name": name,
        "in": "query",
        "required": required,
        "schema": schema,
        "description": text,
    }


_IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    "description": "A repeat with the same key and body gets the first answer again.",
}
TEXT_TYPE = {"type": "string"}
BUNDLE = {"type": "string", "minLength": 1, "maxLength": MOST_BUNDLE_CHARACTERS}
_SIZE = {"type": "integer", "minimum": 1, "maximum": 2**32}
PAGING = [
    query("cursor", {"type": "string", "pattern": CURSOR}, "`next` of the page before."),
    query(
        "limit",
        {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
        "Items of a page.",
    ),
]
_GZIP = {"schema": {"type": "string", "format": "binary"}}

post_graph = route(
    {
        201: ("The graph is new", json_body("GraphSummary")),
        200: ("The graph is known", json_body("GraphSummary")),
    },
    CHANGES,
    body={
        "application/json": {"schema": {"$ref": _REF + "Graph"}, "example": EXAMPLES["Graph"]},
        "application/onnx": _GZIP,
        "application/gzip": _GZIP,
    },
    parameters=[
        query("name", TEXT_TYPE, "ONNX: the graph's name."),
        query(
            "batch", _SIZE, "Samples, where an ONNX file leaves them open or a graph has symbols."
        ),
        query("seq", _SIZE, "Tokens of a sample, as `batch`."),
    ],
    create=True,
    status_code=201,
)
list_graphs = route({200: ("A page", json_body("GraphPage"))}, READS, parameters=PAGING)
get_graph = route({200: ("The graph", json_body("GraphSummary"))}, (*READS, 404))
get_graph_document = route({200: ("The document", json_body("Graph"))}, (*READS, 404))
delete_graph = route({204: ("Forgotten", None)}, (*CHANGES, 404), status_code=204)

post_hardware = route(
    {
        201: ("The profile is new", json_body("HardwareSummary")),
        200: ("The profile is known", json_body("HardwareSummary")),
    },
    CHANGES,
    body=json_body("Hardware"),
    create=True,
    status_code=201,
)
list_hardware = route({200: ("A page", json_body("HardwarePage"))}, READS, parameters=PAGING)
get_hardware = route({200: ("The profile", json_body("Hardware"))}, (*READS, 404))
delete_hardware = route({204: ("Forgotten", None)}, (*CHANGES, 404), status_code=204)

_CURVE_FORMS = {
    "application/json": {
        "schema": {
            "anyOf": [
                {"$ref": _REF + "Curve"},
                {"$ref": _REF + "Infeasible"},
                {"type": "object"},
            ]
        },
    },
    SHELL: {"schema": TEXT_TYPE},
}
_NUMBERS = "Whole numbers separated by commas"
_OPTIONS = {
    "overlap": "`true`: the time of the replayed step is searched; `false`: the sum of times.",
    "recompute": "`never`, `auto` or `always`. Left out, it is `auto`; by sums `never`.",
    "micro_batches": ". Left out, they are all divisors of the batch; by sums 1.",
}
"""Reference texts of query options whose names do not explain them."""

SIZES = {
    "batch": "Samples of a step, where the graph is a preset or a shipped one.",
    "seq": "Tokens of a sample, as `batch`.",
}

get_curve = route(
    {
        200: ("The curve, with its ETag, in the form that was asked for", _CURVE_FORMS),
        202: ("It is being computed: ask again after Retry-After", json_body("Job")),
        304: ("The client's copy (If-None-Match) is still valid", None),
    },
    (*CHANGES, 404),
    parameters=[
        query("graph", TEXT_TYPE, "Id of a graph, `shipped:NAME` or `preset:NAME`.", required=True),
        query(
            "hardware", TEXT_TYPE, "Id or built-in name, with `*NODES` if needed.", required=True
        ),
        *(query(name, {"type": "integer", "minimum": 1}, about) for name, about in SIZES.items()),
        query(
            "max_gpus",
            {"type": "integer", "minimum": 1},
            "The largest GPU count. Needed without `counts`, except for hardware with groups of "
            "devices.",
        ),
        query(COUNTS, TEXT_TYPE, "Instead of `max_gpus`: these counts alone, such as `8,16,32`."),
        query(
            SPACE, TEXT_TYPE, "A trainer, whose strategies alone are searched; by default `any`."
        ),
        query(
            BUNDLES,
            {"type": "array", "items": BUNDLE, "maxItems": MOST_BUNDLES},
            "For hardware with groups of devices, instead of `max_gpus`: devices by group such as "
            "`v100=2,1080ti=4`, one per parameter. `usual` stands for each group alone, the "
            "fastest together and everything.",
        ),
        query(
            STAGES,
            TEXT_TYPE,
            "Numbers of pipeline stages to search too, separated by commas, or `auto`: all that "
            "are possible. A point has its `pipeline` where one is faster.",
        ),
        query(
            SCHEDULES,
            TEXT_TYPE,
            "How stages may run micro-batches, some of `1f1b`, `1f1b-eager`, `gpipe`, "
            "`zb-h1`, `interleaved:2` to `interleaved:8`, `zb-h1:2` to `zb-h1:8`, `zbv`, "
            "`dualpipev`, separated by commas. Left out, the first two.",
        ),
        query(
            "priority",
            {"type": "integer", "minimum": PRIORITIES[0], "maximum": PRIORITIES[1], "default": 0},
            "Priority of the job, if one is needed, among the tenant's own jobs.",
        ),
        query(
            "format",
            {"type": "string", "enum": [CURVE, *FORMS], "default": CURVE},
            "The format, by the scheduler that reads it (docs/schedulers.md).",
        ),
        query(
            "efficiency",
            {"type": "number", "minimum": 0, "maximum": 1},
            "For a scheduler's format: least rate per GPU of the count it names, over the best.",
        ),
        query(
            "gpu_type",
            {"type": "string", "maxLength": MOST_GPU_TYPE},
            "For a scheduler's format: its name of the GPU.",
        ),
        *(
            query(name, TEXT_TYPE, _OPTIONS.get(name, "An option of the search."))
            for name in NAMES
            if name not in (*NUMBERS, PINS, STEP)
        ),
        query(STEP, TEXT_TYPE, "The option `step` as a JSON object."),
        *(query(name, TEXT_TYPE, _NUMBERS + _OPTIONS.get(name, ".")) for name in NUMBERS),
        query(
            PINS,
            {"type": "array", "items": TEXT_TYPE},
            "Rules (docs/strategies.md), one per parameter.",
        ),
    ],
)
post_watch = route(
    {
        201: ("It is watched; `job` computes its curve", json_body("Watch")),
        200: ("It was watched already", json_body("Watch")),
    },
    (*CHANGES, 404),
    body=json_body("WatchRequest"),
    create=True,
    status_code=201,
)
list_watches = route({200: ("All watches", json_body("WatchPage"))}, READS)
get_watch = route({200: ("The watch", json_body("Watch"))}, (*READS, 404))
delete_watch = route({204: ("No longer watched", None)}, (*CHANGES, 404), status_code=204)
watch_metrics = route({200: ("Metrics", {"text/plain": {"schema": TEXT_TYPE}})}, READS)
get_usage = route({200: ("Each quota by its setting's name", json_body("Usage"))}, READS)
healthz = route({200: ("The process answers", json_body("Health"))}, ())
PURPOSES = ("writing", "reading")
readyz = route(
    {200: ("Ready", json_body("Readiness")), 503: ("Not ready", json_body("Readiness"))},
    (422, 429),
    parameters=[
        query(
            "for",
            {"type": "string", "enum": list(PURPOSES), "default": PURPOSES[0]},
            "`reading`: ready as long as the database answers, whether or not it takes writes.",
        )
    ],
)
metrics = route({200: ("Metrics", {"text/plain": {"schema": TEXT_TYPE}})}, (429,))
post_curves = route(
    {
        200: ("Every curve is known or refused", json_body("Curves")),
        202: ("Some are being computed: ask again after Retry-After", json_body("Curves")),
    },
    CHANGES,
    body=json_body("CurvesRequest"),
    create=True,
)
post_allocation = route(
    {
        200: ("The allocation", json_body("Allocation")),
        202: ("Curves are being computed: ask again after Retry-After", json_body("Pending")),
    },
    (*CHANGES, 404),
    body=json_body("AllocationRequest"),
    create=True,
)
post_policy = route(
    {200: ("The mutated request, as a JSON string", {"application/json": {"schema": TEXT_TYPE}})},
    CHANGES,
    body={
        "application/json": {
            "schema": {"anyOf": [TEXT_TYPE, {"$ref": _REF + "UserRequest"}]},
            "example": EXAMPLES["UserRequest"],
        }
    },
)


def ask(kind: str, shape: type) -> Route:
    """Returns the route that asks a question."""
    return route(
        {
            200: ("The answer was known: the job with its `result`", json_body("Job")),
            202: ("It is being computed: see Location", json_body("Job")),
        },
        (*CHANGES, 404),
        body=json_body(shape.__name__),
        create=True,
        status_code=202,
    )


def list_jobs(kind: str | None) -> Route:
    """Returns the route of a list of jobs, of one kind or of all."""
    filters = [
        query("state", {"type": "string", "enum": list(STATES)}, "Only jobs in this state."),
        query("graph", TEXT_TYPE, "Only jobs on this graph."),
        query("hardware", TEXT_TYPE, "Only jobs on the profile of this name."),
        query(
            "text",
            {"type": "string", "maxLength": MOST_TEXT},
            "Only jobs of which each word is in the graph's or the profile's name, the kind, the "
            "state, the objective or the trainer. With this or `hardware` a page may hold fewer "
            "jobs than `limit`, or none, and have a `next`.",
        ),
    ]
    if kind is None:
        kinds = {"type": "string", "enum": list(COLLECTIONS)}
        filters.append(query("kind", kinds, "Only jobs of this kind."))
    return route({200: ("A page", json_body("JobPage"))}, READS, parameters=[*PAGING, *filters])


def get_job(kind: str | None) -> Route:
    """Returns the route of one job."""
    return route(
        {
            200: ("The job, with its `result` when it is done", json_body("Job")),
            304: ("The client's copy (If-None-Match) is still valid", None),
        },
        (*READS, 404),
    )


export_plan = route(
    {200: ("The text, and what of the plan it does not say", json_body("Export"))},
    (*READS, 404),
    parameters=[
        query(
            TO,
            {"type": "string", "enum": list(TRAINERS)},
            "The trainer that runs the plan (docs/trainers.md). Either this or `format`.",
        ),
        query(
            FORMAT,
            {"type": "string", "enum": list(PLAN_FORMS)},
            "The scheduler that starts the plan's hosts (docs/schedulers.md).",
        ),
        query(
            GPU_TYPE,
            {"type": "string", "maxLength": MOST_GPU_TYPE},
            "With `format`: the scheduler's name of the GPU.",
        ),
    ],
)


def job_events(kind: str | None) -> Route:
    """Returns the route of a job's event stream."""
    stream = {"text/event-stream": {"schema": {"$ref": _REF + "Event"}}}
    return route({200: ("Events until the job ends", stream)}, (*READS, 404))


def cancel_job(kind: str | None) -> Route:
    """Returns the route that cancels a job."""
    return route({200: ("The job as it is now", json_body("Job"))}, (*CHANGES, 404))
