"""What the writers of all trainers need of a plan, checked once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import UNSET

from shardwise.cost.step_settings import EIGHT_BITS, FLOAT32
from shardwise.documents import Plan
from shardwise.documents.model_facts import ModelFacts, facts_text
from shardwise.documents.parallelism import (
    ContextForm,
    Parallelism,
    PlannedTrainer,
    Recomputed,
    recomputation_text,
)
from shardwise.errors import BadInput
from shardwise.pipeline.schedules import SCHEDULES
from shardwise.sharding.recipes import RECIPES
from shardwise.trainers.facts import facts_of_preset
from shardwise.trainers.models import MODELS, Model

FIELD = "trainer.parallelism"

_ORDER = "The plan's order of execution: a trainer runs the program's own order."
_NO_LENGTH = "The sequence length: the plan's samples are not sequences of tokens."
GUESSED_PRECISION = (
    "The precision: the plan keeps that of the captured graph and does not name it, so bfloat16 "
    "is written."
)
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_DTYPES = {precision: dtype for dtype, precision in _PRECISIONS.items()}


class Written(NamedTuple):
    """A trainer's configuration, and in plain sentences what of the plan it cannot say."""

    text: str
    unsaid: list[str]


@dataclass(frozen=True)
class Limits:
    """What a trainer's configuration can say of `Parallelism`.

    `hybrid` are the ZeRO stages that may have replicas of their shards, `experts` those beside
    which it has expert parallelism. `sequence` are the values
    that sequence parallelism may have beside tensor parallelism. `schedules` are those of its
    pipelines, `context` its forms of context parallelism; `parts` says that it recomputes modules
    by name.
    """

    zero: Collection[int]
    hybrid: Collection[int] = ()
    tensor: bool = True
    sequence: Collection[bool] = (False, True)
    recompute: Collection[Recomputed] = ("none", "full")
    layers: Collection[str] = ()
    parts: bool = False
    schedules: Collection[str] = ()
    experts: Collection[int] = ()
    context: Collection[ContextForm] = ()


@dataclass(frozen=True)
class Job:
    """A plan in the terms of trainers: `samples` of one micro-batch on one device.

    With `stages` above 1 it is a pipeline of equal layers on that many groups of devices, each with
    `stages_per_rank` of its stages, and `parallelism` that of each stage.
    `precision` is bf16, fp16 or fp32, `recipe` that of linear layers in 8 or 4 bits, if any.
    `wide_gradients` of parameters in 16 bits add up and are reduced in float32. `state` and
    `update` are those of the optimizer (`cost/step_settings.py`). `facts` are those of the
    model, as far as they are known; `model` is the preset of the graph's name.
    """

    name: str
    parallelism: Parallelism
    gpus: int
    nodes: int
    batch: int
    samples: int
    sequence_length: int | None
    precision: str
    optimizer: str
    kernels: str
    model: Model | None
    stages: int = 1
    schedule: str = ""
    stages_per_rank: int = 1
    wide_gradients: bool = False
    state: str = FLOAT32
    update: str = "foreach"
    facts: ModelFacts | None = None
    recipe: str = ""
    unsaid: list[str] = field(default_factory=list)

    @property
    def gpus_per_node(self) -> int:
        return -(-self.gpus // self.nodes)

    @property
    def dtype(self) -> str:
        """Returns what weights and activations are computed in, as torch names it."""
        return _DTYPES[self.precision]

    def recipe_unsaid(self, trainer: str, said: object = None) -> list[str]:
        """Returns what is left unsaid of a recipe for which a trainer's file has nothing to say."""
        if not self.recipe or said is not None:
            return []
        return [f"The recipe of products: {trainer} has none that is {self.recipe}."]

    @property
    def optimizer_of_script(self) -> str:
        """Returns what is left unsaid where the script makes the optimizer."""
        return f"The optimizer: the script makes it; the plan counts the state of {self.optimizer}."

    @property
    def model_of_script(self) -> list[str]:
        """Returns what is left unsaid where the script makes the model, at most a sentence."""
        if self.facts is None:
            return []
        return [f"The model: the script makes it; the plan's has {facts_text(self.facts)}."]

    @property
    def length_of_script(self) -> list[str]:
        """Returns what is left unsaid where the script makes samples of tokens, at most a
        sentence."""
        if self.sequence_length is None:
            return []
        return [f"The sequence length: the script's samples have {self.sequence_length} tokens."]

    def torchrun(self) -> str:
        """Returns the beginning of the command line that starts the ranks of one host."""
        hosts = "--standalone"
        if self.nodes > 1:
            hosts = f"--nnodes={self.nodes} --rdzv-backend=c10d --rdzv-endpoint=$HEAD_NODE:29500"
        return f"torchrun {hosts} --nproc-per-node={self.gpus_per_node}"


def job_of(plan: Plan, trainer: str, limits: Limits) -> Job:
    """Returns a plan in the terms of trainers.

    Raises `BadInput` for a plan without one strategy for every layer, for a pipeline of unequal
    stages, for devices of several kinds, and for what `limits` leaves out.
    """
    if plan.piped:
        _check_stages(plan, trainer, limits)
    elif plan.cluster is not UNSET:
        raise BadInput(
            f"{trainer} gives every device the same share",
            field="cluster",
            expected="a plan on devices of one kind",
        )
    if plan.trainer is UNSET:
        raise BadInput(
            "the plan splits each operator as suits it best, which no trainer's file can say",
            field="trainer",
            expected=f"a plan made with `shardwise plan GRAPH --space {trainer}`",
        )
    planned = plan.trainer
    parallelism = canonical(planned.parallelism)
    stages = plan.ranks
    if parallelism.gpus * stages != plan.gpus:
        raise BadInput(
            f"{parallelism.gpus * stages} devices in a plan for {plan.gpus}",
            field=FIELD,
            expected="replicas × shards × context × tensor devices"
            + (" × stages" if plan.piped else ""),
        )
    check(parallelism, trainer, limits)
    parts = parallelism.data * parallelism.micro_batches
    if plan.batch_size is None or plan.batch_size % parts:
        raise BadInput(
            f"{plan.batch_size} samples do not divide among {parallelism.data} devices in "
            f"{parallelism.micro_batches} micro-batches",
            field="batch_size",
            expected=f"a multiple of {parts}",
        )
    job = Job(
        name=plan.graph_name,
        parallelism=parallelism,
        gpus=plan.gpus,
        nodes=plan.nodes,
        batch=plan.batch_size,
        samples=plan.batch_size // parts,
        sequence_length=planned.sequence_length,
        precision=_precision(plan),
        optimizer=plan.optimizer,
        kernels="eager" if plan.kernels is UNSET else plan.kernels,
        model=MODELS.get(plan.graph_name),
        stages=stages,
        schedule=plan.pipeline_schedule,
        stages_per_rank=plan.stages_per_rank or 1,
        wide_gradients=planned.gradients == FLOAT32,
        state=_execution(plan, "state", FLOAT32),
        update=_execution(plan, "update", "foreach"),
        facts=_facts(planned, plan.graph_name),
        recipe=plan.precision if plan.precision in RECIPES else "",
    )
    if plan.reordered is not UNSET:
        job.unsaid.append(_ORDER)
    if plan.precision == "captured" and planned.dtype not in _PRECISIONS:
        job.unsaid.append(GUESSED_PRECISION)
    if job.state != FLOAT32:
        kept = "8 bits" if job.state == EIGHT_BITS else "the parameters' dtype"
        job.unsaid.append(f"The optimizer's state: the plan keeps moments in {kept}.")
    if planned.sequence_length is None:
        job.unsaid.append(_NO_LENGTH)
    return job


def _check_stages(plan: Plan, trainer: str, limits: Limits) -> None:
    """Raises `BadInput` for a pipeline that no trainer's file can say, or not this trainer's."""
    if not limits.schedules:
        raise BadInput(
            f"pipelines are not written for {trainer}",
            field="to",
            expected="megatron or torchtitan",
        )
    if plan.trainer is UNSET:
        raise BadInput(
            "each stage of the pipeline has cuts and splits of its own, which no trainer's file "
            "can say",
            field="trainer",
            expected=f"a pipeline made with `shardwise plan GRAPH --stages {len(plan.stages)} "
            f"--space {trainer}`",
        )
    schedule = plan.pipeline_schedule
    if schedule not in limits.schedules:
        raise BadInput(
            f"{trainer}'s configuration cannot say {schedule!r:.40}",
            field="schedule",
            expected=_listed(limits.schedules),
        )
    several = SCHEDULES[schedule].stages_per_rank != 1
    if several != (plan.ranks < len(plan.stages)):
        raise BadInput(
            f"{schedule} of {len(plan.stages)} stages on {plan.ranks} ranks",
            field="stages_per_rank",
            expected="above 1" if several else "1",
        )


def _precision(plan: Plan) -> str:
    """Returns bf16, fp16 or fp32; bf16 where neither the plan nor its graph says."""
    if plan.precision != "captured" or plan.trainer is UNSET:
        return plan.precision if plan.precision in _DTYPES else "bf16"
    return _PRECISIONS.get(plan.trainer.dtype or "", "bf16")


def _execution(plan: Plan, name: str, usual: str) -> str:
    """Returns how a plan's step runs, as far as it says."""
    return usual if plan.execution is UNSET else str(getattr(plan.execution, name))


def _facts(planned: PlannedTrainer, name: str) -> ModelFacts | None:
    """Returns what the plan's graph showed of its model; of a plan that does not say, the preset's
    by its name."""
    if planned.model is not UNSET:
        return planned.model
    return facts_of_preset(MODELS[name]) if name in MODELS else None


def canonical(parallelism: Parallelism) -> Parallelism:
    """Returns the same strategy with words that say nothing left out.

    ZeRO over one device is none, and sequence parallelism needs tensor parallelism. Shards without
    ZeRO are replicas.
    """
    p = parallelism
    zero = p.zero if p.sharded > 1 else 0
    replicas, shards = (p.replicas, p.shards) if zero else (p.replicas * p.shards, 1)
    return Parallelism(
        replicas=replicas,
        shards=shards,
        tensor=p.tensor,
        sequence=p.sequence and p.tensor > 1,
        zero=zero,
        expert=p.expert,
        context=p.context,
        context_form=p.context_form if p.context > 1 else "gather",
        whole_experts=p.whole_experts and min(p.expert, p.tensor) > 1,
        recompute=p.recompute,
        micro_batches=p.micro_batches,
        recompute_layers=p.recompute_layers if p.recompute == "full" else UNSET,
        recompute_every=p.recompute_every if p.recompute == "full" else UNSET,
        recompute_modules=p.recompute_modules if p.recompute == "selective" else UNSET,
    )


def check(parallelism: Parallelism, trainer: str, limits: Limits) -> None:
    """Raises `BadInput` naming the member that a trainer's configuration cannot say."""
    p = parallelism
    if p.tensor > 1 and not limits.tensor:
        raise _refused(trainer, "tensor", f"tensor parallelism of degree {p.tensor}", "1")
    if p.tensor > 1 and p.sequence not in limits.sequence:
        said = "with" if p.sequence else "without"
        expected = str(not p.sequence).lower()
        raise _refused(
            trainer, "sequence", f"tensor parallelism {said} sequence parallelism", expected
        )
    if p.expert > 1 and p.zero not in limits.experts:
        raise _refused(trainer, "expert", f"expert parallelism of degree {p.expert}", "1")
    if p.context > 1 and p.context_form not in limits.context:
        what = f"context parallelism of degree {p.context} ({p.context_form})"
        raise _refused(trainer, "context", what, "1")
    if p.zero not in limits.zero:
        raise _refused(trainer, "zero", f"ZeRO stage {p.zero}", _listed(limits.zero))
    if p.replicas > 1 and p.shards > 1 and p.zero not in limits.hybrid:
        what = f"{p.replicas} replicas of the shards of ZeRO stage {p.zero}"
        raise _refused(trainer, "replicas", what, "1")
    if p.recompute not in limits.recompute:
        what = f"recomputation that is {p.recompute!r}"
        raise _refused(trainer, "recompute", what, _listed(limits.recompute))
    for form, given in (("first", p.recompute_layers), ("every", p.recompute_every)):
        if given is not UNSET and form not in limits.layers:
            what = f"{recomputation_text(p)} recomputation"
            raise _refused(trainer, "recompute", what, _listed(limits.recompute))

    if p.recompute_modules is not UNSET and not limits.parts:
        what = f"{recomputation_text(p)} recomputation"
        raise _refused(trainer, "recompute", what, _listed(limits.recompute))


def _listed(values: Collection[object]) -> str:
    return " or ".join(str(value) for value in values)


def _refused(trainer: str, name: str, what: str, expected: str) -> BadInput:
    return BadInput(
        f"{trainer}'s configuration cannot say {what}",
        field=f"{FIELD}.{name}",
        expected=f"{expected}, as `shardwise plan GRAPH --space {trainer}` finds it",
    )
