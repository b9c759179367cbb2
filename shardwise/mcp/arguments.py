"""Arguments of the tools, named as in the service's requests (`shardwise.documents.questions`).

`gpus` is a number, or devices by group of a profile that has groups. All texts and numbers are
bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from shardwise.answers import OBJECTIVES
from shardwise.cost.named_options import options_schema
from shardwise.documents import BundleText
from shardwise.documents.questions import (
    MOST_BUNDLES,
    MOST_CONFIGURATION_BYTES,
    MOST_FILE_NAME,
    MOST_PROPOSALS,
    MOST_SEED,
    Batch,
    Counts,
    ExecutionOrder,
    Schedules,
    Seq,
    Stages,
    StagesBeside,
    name_sizes,
)
from shardwise.documents.schemas import without_indentation
from shardwise.errors import InternalError
from shardwise.pipeline.asked import ANY
from shardwise.schedulers.formats import PLAN_FORMS
from shardwise.trainers.formats import TRAINERS
from shardwise.trainers.spaces import SPACES

MOST_GPUS = 2**20
MOST_CURVE_GPUS = 1024
MOST_NAME = 4096
MOST_CSV = 4 * 2**20
MOST_MEMBERS = 64

CONFIGURATION = (
    "The whole text of the file: torchtitan's TOML, Megatron's flags, DeepSpeed's JSON, or the "
    "YAML of accelerate or nanotron. The trainer is recognised by what it says."
)
FILE = "The file's name, which errors name."

GraphName: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=MOST_NAME,
        description="The model's training graph: shipped:NAME (list_graphs), or a file that "
        "`shardwise capture` wrote.",
        examples=["shipped:gpt2"],
    ),
]
HardwareName: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=MOST_NAME,
        description="A built-in profile (list_hardware) or a profile file; NAME*NODES fixes the "
        "number of nodes.",
        examples=["dgx-h100", "dgx-v100-16gb*2"],
    ),
]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)]
Gpus: TypeAlias = Annotated[
    Count | BundleText,
    msgspec.Meta(
        description="GPUs of the job: exactly this number is used. Of a profile with groups by "
        "group: v100=2,1080ti=4."
    ),
]
OptionsObject: TypeAlias = Annotated[dict[str, Any], msgspec.Meta(max_length=MOST_MEMBERS)]
Objective: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        max_length=40,
        description="Which point of the frontier: the fastest, the smallest, the knee, the "
        "cheapest.",
    ),
]
PlanId: TypeAlias = Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
GivenPlan: TypeAlias = Annotated[
    Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_NAME)] | dict[str, Any],
    msgspec.Meta(
        description="A plan: the `id` of one that the tool plan or explain made in this session, "
        "a file, or the document itself."
    ),
]
Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e15)]


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The arguments of a tool; an argument that it does not have is refused."""

    def __post_init__(self) -> None:
        if hasattr(self, "batch"):
            name_sizes(self)


class ListArguments(Arguments, frozen=True):
    """A list takes no arguments."""


Space: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        max_length=40,
        description="A trainer: only the strategies that it can run; any: all strategies.",
    ),
]
"""Which strategies are searched."""


class JobArguments(Arguments, frozen=True):
    """A graph on a number of GPUs."""

    graph: GraphName
    hardware: HardwareName
    gpus: Gpus
    batch: Batch = None
    seq: Seq = None
    options: OptionsObject = {}


class FrontierArguments(JobArguments, frozen=True):
    """A graph on a number of GPUs, and which pipelines to search too."""

    stages: StagesBeside | None = None
    schedules: Schedules = []


class PlanArguments(JobArguments, frozen=True):
    """A graph on a number of GPUs, and which point of its frontier, or which pipelines."""

    objective: Objective = OBJECTIVES[0]
    point: Annotated[
        PlanId | None,
        msgspec.Meta(description="The plan_id of a point of the frontier, instead of an objective"),
    ] = None
    space: Space = ANY
    stages: Stages | None = None
    schedules: Schedules = []
    order: ExecutionOrder | None = None


class PricingArguments(Arguments, frozen=True):
    """A trainer's configuration for a graph on a number of GPUs."""

    graph: GraphName
    hardware: HardwareName
    gpus: Count
    configuration: Annotated[
        str,
        msgspec.Meta(min_length=1, max_length=MOST_CONFIGURATION_BYTES, description=CONFIGURATION),
    ]
    file: Annotated[
        str,
        msgspec.Meta(min_length=1, max_length=MOST_FILE_NAME, description=FILE),
    ] = "configuration"
    batch: Batch = None
    seq: Seq = None
    options: OptionsObject = {}


class CurveArguments(Arguments, frozen=True):
    """A graph on every number of GPUs up to `max_gpus`, on `counts`, or on bundles of devices."""

    graph: GraphName
    hardware: HardwareName
    max_gpus: Annotated[int, msgspec.Meta(ge=1, le=MOST_CURVE_GPUS)] | None = None
    counts: Counts = []
    space: Space = ANY
    bundles: Annotated[
        list[BundleText],
        msgspec.Meta(
            max_length=MOST_BUNDLES,
            description="Instead of max_gpus, of a profile with groups: v100=2,1080ti=4, or usual.",
        ),
    ] = []
    batch: Batch = None
    seq: Seq = None
    options: OptionsObject = {}
    stages: StagesBeside | None = None
    schedules: Schedules = []


class QuoteArguments(Arguments, frozen=True):
    """A graph on rented machines; a deadline or a budget needs `steps`."""

    graph: GraphName
    steps: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=10**12)] | None,
        msgspec.Meta(description="Steps of the whole job."),
    ] = None
    deadline_s: Positive | None = None
    budget_usd: Positive | None = None
    max_instances: Annotated[
        int, msgspec.Meta(ge=1, le=MOST_CURVE_GPUS, description="The most instances of one offer.")
    ] = 16
    combine: Annotated[
        int,
        msgspec.Meta(ge=1, le=3, description="The most kinds of instances together in one answer."),
    ] = 1
    offers_csv: Annotated[
        Annotated[str, msgspec.Meta(max_length=MOST_CSV)] | None,
        msgspec.Meta(
            description="Offers as CSV text with the SkyPilot catalog's columns; left out, the "
            "shipped list prices."
        ),
    ] = None
    hardware: HardwareName | None = None
    prices: Annotated[
        dict[str, Positive],
        msgspec.Meta(
            max_length=MOST_MEMBERS,
            description="With hardware, whose parts are quoted: USD per hour of one device by "
            "group.",
        ),
    ] = {}
    batch: Batch = None
    seq: Seq = None
    options: OptionsObject = {}
    stages: StagesBeside | None = None
    schedules: Schedules = []


class CompareArguments(JobArguments, frozen=True):
    """A graph on a number of GPUs, the random searches of the other systems, and which pipelines to
    compare too."""

    proposals: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=MOST_PROPOSALS)] | None,
        msgspec.Meta(description="Of FlexFlow's random search."),
    ] = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=MOST_SEED)] = 0
    stages: StagesBeside | None = None
    schedules: Schedules = []


class ExplainArguments(Arguments, frozen=True):
    """A plan that is there, or the arguments of one to be made."""

    plan: GivenPlan | None = None
    graph: GraphName | None = None
    hardware: HardwareName | None = None
    gpus: Gpus | None = None
    objective: Objective = OBJECTIVES[0]
    batch: Batch = None
    seq: Seq = None
    options: OptionsObject = {}


class ExportArguments(Arguments, frozen=True):
    """A plan and what reads it: a trainer, `to`, or a scheduler, `format`."""

    plan: GivenPlan
    to: Annotated[
        Annotated[str, msgspec.Meta(max_length=40)] | None,
        msgspec.Meta(description="The trainer that runs the plan, made with this as space."),
    ] = None
    format: Annotated[
        Annotated[str, msgspec.Meta(max_length=40)] | None,
        msgspec.Meta(description="Or the scheduler that starts its hosts."),
    ] = None
    gpu_type: Annotated[
        Annotated[str, msgspec.Meta(max_length=1000)] | None,
        msgspec.Meta(
            description="What the scheduler calls the GPUs; of several kinds by group: "
            "v100=V100,p100=P100."
        ),
    ] = None


_CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "objective": OBJECTIVES,
    "space": (ANY, *SPACES),
    "to": (*TRAINERS, None),
    "format": (*PLAN_FORMS, None),
}


def input_schema(
    kind: type[msgspec.Struct], about: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Returns the JSON Schema of a tool's arguments: an object with everything in place.

    `about` has descriptions by argument.
    """
    schema = object_schema(msgspec.json.schema(kind))
    properties = schema["properties"]
    for name, choices in _CHOICES.items():
        if name in properties:
            properties[name] = {**properties[name], "enum": list(choices)}
    for name, description in (about or {}).items():
        properties[name] = {**properties[name], "description": description}
    if "options" in properties:
        properties["options"] = {**options_schema(), "description": "Of the search.", "default": {}}
    return schema


def object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema whose root is the object itself, which the protocol asks for, in place of a
    reference to it; of several kinds of objects it says that it is one."""
    schema = without_indentation(schema)
    if "anyOf" in schema:
        return {"type": "object", **schema}
    root = schema.pop("$ref").removeprefix("#/$defs/")
    others = {name: of for name, of in schema["$defs"].items() if name != root}
    if f'"#/$defs/{root}"' in msgspec.json.encode(schema["$defs"]).decode():
        raise InternalError(f"the schema of {root} refers to itself")
    rest = {name: value for name, value in schema.items() if name != "$defs"}
    return {**rest, **schema["$defs"][root], **({"$defs": others} if others else {})}
