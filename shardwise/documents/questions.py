"""The questions: the bodies of the requests that a service takes.

The client writes them, the service reads them. `options` are fields of `Options` by name; `graph`
is an id, `shipped:NAME` or `preset:NAME`, `hardware` an id or a built-in name. `batch` and `seq`
are another batch and sequence length of a graph with symbols; they become part of its name, as in
`preset:llama3-8b:batch=128,seq=4096`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec.structs import fields, force_setattr

from shardwise.errors import BadInput
from shardwise.step_sizes import MOST_SIZE, StepSizes, sized

SearchOptions = Annotated[
    dict[str, Any],
    msgspec.Meta(
        description="Fields of `shardwise.answers.Options` by name. Left out, the time of the "
        "replayed step is searched (`overlap`), with recomputation where it pays (`recompute`: "
        "null) and every divisor of the batch as number of micro-batches (`micro_batches`: []); "
        "with `overlap` false those two defaults are `never` and [1]."
    ),
]
"""The options of a search, as requests have them."""

MOST_BUNDLE_CHARACTERS = 1000
"""Characters of a text that says how many devices of which group a question takes."""
MOST_BUNDLES = 64
"""Bundles of one curve."""
MOST_CONFIGURATION_BYTES = 64 * 2**10
"""Bytes of a trainer's configuration, as UTF-8."""
MOST_FILE_NAME = 255
MOST_PROPOSALS = 10**7
"""Proposals of a random search in one comparison."""
MOST_SEED = 2**32 - 1

BundleText: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=MOST_BUNDLE_CHARACTERS,
        description="Devices by group of a profile with several kinds: `v100=2,1080ti=4`. Groups "
        "come in any order.",
        examples=["v100=2,1080ti=4"],
    ),
]
"""How many devices of which group (`shardwise.hardware.Devices` reads it)."""

Gpus: TypeAlias = int | BundleText
"""What a question takes: a number of like devices, or devices by group."""


MOST_CURVE_COUNTS = 1024
"""Counts that a curve may name."""

Counts: TypeAlias = Annotated[
    list[Annotated[int, msgspec.Meta(ge=1)]],
    msgspec.Meta(
        max_length=MOST_CURVE_COUNTS,
        description="Numbers of GPUs, instead of every number up to max_gpus.",
        examples=[[8, 16, 32, 64]],
    ),
]
"""The counts of a curve that has only some."""

MOST_COUNTS = 64
"""Numbers of stages, and schedules, of one question."""
MOST_SCHEDULE_NAME = 40

_Stages: TypeAlias = (
    Annotated[
        list[Annotated[int, msgspec.Meta(ge=1)]], msgspec.Meta(min_length=1, max_length=MOST_COUNTS)
    ]
    | Literal["auto"]
)

Stages: TypeAlias = Annotated[
    _Stages,
    msgspec.Meta(
        description="Numbers of pipeline stages, of which the fastest is the answer, "
        "`shardwise.pipeline/1`; with 1 among them also the plan without a pipeline. `auto`: every "
        "number that the model and the devices allow, and none.",
        examples=[[2, 4], "auto"],
    ),
]
"""How many stages the pipeline of a plan may have."""

StagesBeside: TypeAlias = Annotated[
    _Stages,
    msgspec.Meta(
        description="Numbers of pipeline stages to search beside the strategies without a "
        "pipeline. `auto`: every number that the model and the devices allow.",
        examples=[[2, 4], "auto"],
    ),
]
"""How many stages the pipelines of a frontier, a curve, a quote or a comparison may have."""

Schedules: TypeAlias = Annotated[
    list[Annotated[str, msgspec.Meta(max_length=MOST_SCHEDULE_NAME)]],
    msgspec.Meta(
        max_length=MOST_COUNTS,
        description="How stages may run micro-batches, some of `1f1b`, `1f1b-eager`, `gpipe`, "
        "`zb-h1`, `interleaved:2` to `interleaved:8`, `zb-h1:2` to `zb-h1:8`, `zbv`, "
        "`dualpipev`; the first two where they are left out.",
    ),
]
"""How the stages of a pipeline may run micro-batches."""


ExecutionOrder: TypeAlias = Annotated[
    Literal["program", "rank", "auto"],
    msgspec.Meta(
        description="In which order operators run: the program's, by upward rank, or the better "
        "one. Left out, the program's on devices of one kind and the better one on several."
    ),
]
"""The order in which the operators of a plan run."""
Batch: TypeAlias = Annotated[
    Annotated[int, msgspec.Meta(ge=1, le=MOST_SIZE)] | None,
    msgspec.Meta(
        description="Samples of a step, where the graph is a preset or a shipped one, instead of "
        "those that it was captured with."
    ),
]
Seq: TypeAlias = Annotated[
    Annotated[int, msgspec.Meta(ge=1, le=MOST_SIZE)] | None,
    msgspec.Meta(description="Tokens of a sample, as `batch`."),
]


def name_sizes(ask: Any) -> None:
    """Moves `batch` and `seq` of a question into the name of its graph. Raises `BadInput`."""
    sizes = StepSizes(ask.batch, ask.seq)
    if not sizes.asked:
        return
    if ask.graph is None:
        raise BadInput("is of a graph", field=min(sizes.asked), expected="a graph beside it")
    force_setattr(ask, "graph", sized(ask.graph, sizes))
    for name in sizes.asked:
        force_setattr(ask, name, None)


class OfGraph(msgspec.Struct):
    """A question about a graph."""

    def __post_init__(self) -> None:
        name_sizes(self)


MOST_QUESTIONS = 100
"""Curves of one bulk call."""


class FrontierRequest(OfGraph, forbid_unknown_fields=True):
    """`POST /v1/frontiers`. With `stages` the answer has `pipelines` beside its points."""

    graph: str
    hardware: str
    gpus: Gpus
    options: SearchOptions = {}
    priority: int = 0
    stages: StagesBeside | None = None
    schedules: Schedules = []
    batch: Batch = None
    seq: Seq = None


class CurveRequest(OfGraph, forbid_unknown_fields=True):
    """`GET /v1/curves` as an object.

    It has either `max_gpus`, `counts`, or for hardware with groups of devices `bundles`: texts such
    as `v100=2,1080ti=4`, of which `usual` stands for each group alone, the fastest groups together
    and everything. With `stages` a point has its `pipeline` where one is faster than every strategy
    without. `space` is `any`, or the trainer whose strategies alone are searched.
    """

    graph: str
    hardware: str
    max_gpus: int | None = None
    options: SearchOptions = {}
    priority: int = 0
    bundles: Annotated[list[BundleText], msgspec.Meta(max_length=MOST_BUNDLES)] = []
    stages: StagesBeside | None = None
    schedules: Schedules = []
    counts: Counts = []
    space: str = "any"
    batch: Batch = None
    seq: Seq = None


class CurvesRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/curves/bulk`: the curves of many jobs."""

    questions: Annotated[list[CurveRequest], msgspec.Meta(min_length=1, max_length=MOST_QUESTIONS)]


class PlanRequest(OfGraph, forbid_unknown_fields=True):
    """`POST /v1/plans`. `point`: the `plan_id` of a frontier's point, instead of an objective.

    `space` is `any`, or the trainer whose strategies alone are searched. With `stages` the answer
    is a pipeline, or the plan without one where that is as fast; `schedules` are how stages may run
    micro-batches, 1f1b and 1f1b-eager where they are left out (of a trainer all of its own).
    `order` is that in which operators run; left out, the program's on devices of one kind, and the
    better one on several. What does not go together is in
    docs/reference/refusals.md.
    """

    graph: str
    hardware: str
    gpus: Gpus
    objective: str = "mini-time"
    point: str | None = None
    options: SearchOptions = {}
    priority: int = 0
    space: str = "any"
    stages: Stages | None = None
    schedules: Schedules = []
    order: ExecutionOrder | None = None
    batch: Batch = None
    seq: Seq = None


class PricingRequest(OfGraph, forbid_unknown_fields=True):
    """`POST /v1/pricings`: what a trainer's configuration takes, and what to change in it.

    `configuration` is the text of the trainer's file, by which the trainer is recognised; `file` is
    what errors call it.
    """

    graph: str
    hardware: str
    gpus: int
    configuration: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_CONFIGURATION_BYTES)]
    file: Annotated[
        str,
        msgspec.Meta(min_length=1, max_length=MOST_FILE_NAME, pattern=r"^[^\x00-\x1f\x7f]+$"),
    ] = "configuration"
    options: SearchOptions = {}
    priority: int = 0
    batch: Batch = None
    seq: Seq = None


class QuoteRequest(OfGraph, forbid_unknown_fields=True):
    """`POST /v1/quotes`. `offers_csv`: a table with the SkyPilot catalog's columns.

    `combine` is how many kinds of instances one answer may have together. With `hardware`, which
    has groups of devices, its parts are quoted instead of offers: `prices` are USD per hour of one
    device by group, where they are left out those of the cheapest offers with its kind. With
    `stages` a row is that of a pipeline where one is faster than every strategy without.
    """

    graph: str
    offers_csv: str | None = None
    steps: int | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    max_instances: int = 16
    options: SearchOptions = {}
    priority: int = 0
    combine: int = 1
    hardware: str | None = None
    prices: dict[str, float] = {}
    stages: StagesBeside | None = None
    schedules: Schedules = []
    batch: Batch = None
    seq: Seq = None


class CompareRequest(OfGraph, forbid_unknown_fields=True):
    """`POST /v1/comparisons`: what practitioners and other systems use, beside our answer.

    `proposals` and `seed` are those of FlexFlow's random search; without `proposals` it makes
    50,000, on devices of several kinds 5,000. With `stages` pipelines are compared too, ours under
    some of the `schedules`.
    """

    graph: str
    hardware: str
    gpus: Gpus
    proposals: Annotated[int, msgspec.Meta(ge=1, le=MOST_PROPOSALS)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=MOST_SEED)] = 0
    options: SearchOptions = {}
    priority: int = 0
    stages: StagesBeside | None = None
    schedules: Schedules = []
    batch: Batch = None
    seq: Seq = None


QUESTIONS: Mapping[str, type[msgspec.Struct]] = {
    "frontier": FrontierRequest,
    "curve": CurveRequest,
    "plan": PlanRequest,
    "pricing": PricingRequest,
    "quote": QuoteRequest,
    "compare": CompareRequest,
}
"""By the kind of the answer."""

COLLECTIONS: Mapping[str, str] = {
    "frontier": "frontiers",
    "curve": "curves",
    "plan": "plans",
    "pricing": "pricings",
    "quote": "quotes",
    "compare": "comparisons",
}
"""What `/v1` calls the answers of a kind."""


def request_body(request: msgspec.Struct) -> dict[str, Any]:
    """Returns a request as JSON values, without members that have their default.

    A service of an earlier release, which does not know all members, then accepts it.
    """
    members: dict[str, Any] = msgspec.to_builtins(request)
    for item in fields(request):
        factory = item.default_factory
        default = item.default if factory is msgspec.NODEFAULT else factory()
        if members[item.encode_name] == default:
            del members[item.encode_name]
    return members
