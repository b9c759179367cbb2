"""One published training step, and the source that it was read in (runs/README.md).

Published throughputs become the time of one iteration:

    samples/s     batch / figure
    tokens/s      batch · seq / figure
    tokens/s/gpu  batch · seq / (figure · gpus)
    ms, s         as they are

with batch the samples of one iteration of the whole job.
"""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import UNSET

from shardwise.cost.software import EAGER, FRAMEWORKS
from shardwise.cost.step_settings import CAPTURED, FLOAT32, FOREACH, SHARDS, StepSettings
from shardwise.documents.parallelism import ContextForm, Parallelism, Part, Recomputed
from shardwise.errors import BadInput
from shardwise.sharding.precision import CAPTURED as AS_CAPTURED

UNITS = ("samples/s", "tokens/s", "tokens/s/gpu", "ms", "s")
MEMORY_UNITS = {"bytes": 1.0, "MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30}
RECOMPUTE = ("none", "full", "attention", "products")
ZERO_WITHIN = ("job", "node")

SAID = (
    *("name", "source", "also", "quote", "figure", "unit", "note", "parameters", "grid"),
    *("outlier", "memory_figures", "memory_unit", "memory_kind"),
)
"""Fields that say what was published; the others say what is predicted."""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A page or file with figures, as it was read.

    Sources of one `project` count as one in statistics; without it a source is a project.
    """

    key: str
    title: str
    address: str
    version: str
    project: str = ""


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published training step; the fields are described in runs/README.md."""

    name: str
    source: str
    quote: str
    figure: float
    unit: str
    capture: str
    dtype: str
    optimizer: str
    batch: int
    gpus: int
    hardware: str
    note: str
    seq: int = 0
    also: tuple[str, ...] = ()
    parameters: float = 0.0
    micro_batches: int = 1
    data_parallel: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    virtual_stages: int = 1
    end_layers: tuple[int, ...] = ()
    expert_parallel: int = 1
    expert_tensor_parallel: int = 0
    context_parallel: int = 1
    context_form: ContextForm = "ring"
    precision: str = AS_CAPTURED
    sequence_parallel: bool = False
    gathers_again: bool = False
    zero: int = 0
    zero_within: str = "job"
    recompute: str = "none"
    recompute_share: float = 1.0
    recompute_modules: tuple[Part, ...] = ()
    rerun: str = ""
    framework: str = EAGER
    kernels: str = ""
    loss: str = ""
    state: str = FLOAT32
    gradients: str = CAPTURED
    accumulation: str = SHARDS
    update: str = FOREACH
    weights: str = CAPTURED
    per_node: int = 0
    network_gbps: float = 0.0
    memory_figures: tuple[float, ...] = ()
    memory_unit: str = "GiB"
    memory_kind: str = ""
    grid: str = ""
    outlier: str = ""

    @property
    def iteration_s(self) -> float:
        """Seconds of one published iteration."""
        return iteration_seconds(self.figure, self.unit, self.batch, self.seq, self.gpus)

    @property
    def memory_bytes(self) -> float | None:
        """Published bytes of one device, where there are any."""
        if not self.memory_figures:
            return None
        return sum(self.memory_figures) * MEMORY_UNITS[self.memory_unit]

    @property
    def micro_batch(self) -> int:
        """Samples of one micro-batch of one data-parallel rank."""
        return self.batch // (self.data_parallel * self.micro_batches)

    @property
    def ends(self) -> dict[int, tuple[int, int]]:
        """The layers of the first and of the last of all stages, by the number of these; empty
        where they are as the others."""
        if not self.end_layers:
            return {}
        first, last = self.end_layers
        return {self.pipeline_parallel * self.virtual_stages: (first, last)}

    @property
    def as_trained(self) -> bool:
        """Whether it divides experts or positions, which trainers' degrees pin (`predict.py`)."""
        return self.expert_parallel > 1 or self.context_parallel > 1

    @property
    def is_fitted(self) -> bool:
        """Whether numbers may be fitted to it: to steps in 16 bits or more without a pipeline, in
        which all devices have the same parameters or parts of them."""
        return self.pipeline_parallel == 1 and not self.as_trained and self.precision == AS_CAPTURED

    @property
    def expert_devices(self) -> int:
        """How many neighbouring devices have all experts once."""
        inner = self.expert_tensor_parallel or self.tensor_parallel * self.context_parallel
        return self.expert_parallel * inner if self.expert_parallel > 1 else 1

    @property
    def parallelism(self) -> Parallelism:
        """What the devices of one stage have, as degrees; `recompute` is not `attention` or
        `products`, which are none of them."""
        sharded = self.data_parallel if self.zero else 1
        of_parts: Recomputed = "selective" if self.recompute_modules else "none"
        return Parallelism(
            replicas=self.data_parallel // sharded,
            shards=sharded,
            tensor=self.tensor_parallel,
            sequence=self.sequence_parallel,
            zero=self.zero,
            recompute="full" if self.recompute == "full" else of_parts,
            recompute_modules=self.recompute_modules or UNSET,
            micro_batches=self.micro_batches,
            expert=self.expert_parallel,
            context=self.context_parallel,
            context_form=self.context_form if self.context_parallel > 1 else "gather",
            whole_experts=self.expert_tensor_parallel
            == 1
            < min(self.expert_parallel, self.tensor_parallel),
        )

    @property
    def schedule(self) -> str:
        """In which order the stages of a pipeline run micro-batches."""
        return "interleaved" if self.virtual_stages > 1 else "1f1b"

    @property
    def light_kernels(self) -> str:
        """How light operators run: as stated, else as the framework has them."""
        return self.kernels or FRAMEWORKS[self.framework].kernels

    @property
    def rerun_of_segments(self) -> str:
        """How much of a recomputed layer runs again: as stated, else as the framework has it."""
        return self.rerun or FRAMEWORKS[self.framework].rerun

    @property
    def step(self) -> StepSettings:
        """What is kept of optimizer states and gradients."""
        return StepSettings(
            update=self.update,
            state=self.state,
            gradients=self.gradients,
            accumulation=self.accumulation,
            weights=self.weights,
        )

    @property
    def predicted_as(self) -> str:
        """A hash of what a prediction depends on: of two runs with one hash they are equal.

        Fields at their defaults are left out: a field that is added makes no prediction old.
        """
        content = {
            field.name: value
            for field in msgspec.structs.fields(self)
            if field.name not in SAID and (value := getattr(self, field.name)) != field.default
        }
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]


def iteration_seconds(figure: float, unit: str, batch: int, seq: int, gpus: int) -> float:
    """The time of one iteration from a published figure; raises `BadInput` for an unknown unit."""
    if unit == "s":
        return figure
    if unit == "ms":
        return figure / 1e3
    if unit == "samples/s":
        return batch / figure
    if unit == "tokens/s":
        return batch * seq / figure
    if unit == "tokens/s/gpu":
        return batch * seq / (figure * gpus)
    raise BadInput(f"unknown unit {unit!r}", field="unit", expected=", ".join(UNITS))
