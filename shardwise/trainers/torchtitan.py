"""torchtitan: the TOML of its JobConfig (0.1 and 0.2), and the same as flags (from 0.3)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from shardwise.documents import Pipeline, Plan
from shardwise.documents.parallelism import Parallelism, Recomputed
from shardwise.errors import BadInput
from shardwise.trainers.configuration import Configuration, Section, divided
from shardwise.trainers.job import Job, Limits, Written, job_of

NAME = "torchtitan"
FILENAME = "torchtitan.toml"
LIMITS = Limits(
    zero=(0, 2, 3),
    hybrid=(2, 3),
    sequence=(True,),
    recompute=("none", "selective", "full"),
    schedules=("1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "dualpipev"),
)

_RESHARD = {2: "never", 3: "always"}
_OPERATORS = "op"
"""Selective recomputation by operator, as opposed to every n-th layer."""

KEYS = (
    "data_parallel_replicate_degree",
    "data_parallel_shard_degree",
    "fsdp_reshard_after_forward",
    "enable_fsdp_symm_mem",
    "tensor_parallel_degree",
    "enable_sequence_parallel",
    "disable_loss_parallel",
    "enable_async_tensor_parallel",
    "spmd_backend",
    "pipeline_parallel_degree",
    "pipeline_parallel_split_points",
    "module_fqns_per_model_part",
    "pipeline_parallel_first_stage_less_layers",
    "pipeline_parallel_last_stage_less_layers",
    "pipeline_parallel_layers_per_stage",
    "pipeline_parallel_schedule",
    "pipeline_parallel_schedule_csv",
    "pipeline_parallel_microbatch_size",
    "pipeline_parallel_expert_parallel_overlap",
    "context_parallel_degree",
    "context_parallel_load_balancer",
    "context_parallel_ptrr_mask_key",
    "context_parallel_rotate_method",
    "expert_parallel_degree",
    "expert_tensor_parallel_degree",
    "expert_parallel_comm_backend",
    "expert_parallel_a2a_impl",
)
"""What the section `parallelism` may have."""

SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zb-h1": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
"""By our name what torchtitan calls them."""

STAGES_PER_RANK = 2
"""Stages of each device under schedules with several, unless the layers of a stage are given."""

_SEVERAL = ("interleaved", "zb-h1", "zbv", "dualpipev")
"""Schedules of several stages on each device."""

_OWN_STAGES = (
    "pipeline_parallel_split_points",
    "module_fqns_per_model_part",
    "pipeline_parallel_schedule_csv",
)

_IGNORED = ("job", "profiling", "metrics", "checkpoint", "comm", "validation", "lr_scheduler")


def write(plan: Plan | Pipeline) -> Written:
    """Returns the TOML of a plan, with the command that reads it. Raises as `job_of` does."""
    job = job_of(plan, NAME, LIMITS)
    unsaid = [*job.unsaid, *_unsaid(job)]
    return Written(_head(job) + _toml(_sections(job)), unsaid)


def read(text: Mapping[str, Any], gpus: int) -> Configuration:
    """Returns what a job's TOML says. Raises `BadInput` naming a field that cannot be read."""
    job = Section(text)
    job.ignore(*_IGNORED)
    parallelism = job.section("parallelism", KEYS)
    parallelism.one("context_parallel_degree", "expert_parallel_degree")
    stages = parallelism.count("pipeline_parallel_degree", 1)
    tensor = parallelism.count("tensor_parallel_degree", 1)
    replicas = parallelism.count("data_parallel_replicate_degree", 1)
    shards = parallelism.count("data_parallel_shard_degree", -1, least=-1)
    if shards < 1:
        what = "GPUs (tensor × replicate × pipeline)"
        given = tensor * replicas * stages
        shards = divided(gpus, given, what, "parallelism.tensor_parallel_degree")
    policies = ("default", "always", "never")
    policy = parallelism.word("fsdp_reshard_after_forward", "default", policies)
    sequence = parallelism.flag("enable_sequence_parallel", True)
    training = job.section("training")
    samples = training.count("local_batch_size", 8)
    batch = training.count("global_batch_size", -1, least=-1)
    data = replicas * shards
    if batch < 1:
        batch = samples * data
    training.ignore("steps", "dataset", "dataset_path", "max_norm", "gc_freq", "gc_debug")
    notes: list[str] = []
    schedule, pieces, layers = _schedule(parallelism, stages, samples, notes)
    if stages > 1 and batch != samples * data:
        raise BadInput(
            f"got {batch}: a pipeline that runs several times in a step is not priced yet",
            field="training.global_batch_size",
            expected=f"local_batch_size × {data} = {samples * data}",
        )
    recompute = _recomputed(job.section("activation_checkpoint"), notes)
    model = job.section("model")
    model.ignore("name", "flavor", "tokenizer_path", "hf_assets_path", "print_after_conversion")
    sections = (parallelism, training, model)
    return Configuration(
        trainer=NAME,
        parallelism=Parallelism(
            replicas=replicas,
            shards=shards,
            tensor=tensor,
            sequence=sequence,
            # torchtitan keeps parameters whole in a pipeline unless it is told otherwise.
            zero=2 if policy == "never" or (policy == "default" and stages > 1) else 3,
            recompute=recompute,
            micro_batches=pieces
            * divided(batch, samples * data, "samples", "training.global_batch_size"),
        ),
        batch=batch,
        sequence_length=training.count("seq_len", 2048),
        unread=[*notes, *job.unread(), *(path for part in sections for path in part.unread())],
        stages=stages,
        schedule=schedule,
        stages_per_rank=STAGES_PER_RANK if schedule in _SEVERAL and layers is None else 1,
        layers_per_stage=layers,
    )


def _schedule(
    parallelism: Section, stages: int, samples: int, notes: list[str]
) -> tuple[str, int, int | None]:
    """Returns the schedule of a pipeline, its micro-batches of a local batch, of one stage 1, and
    the layers of a stage where devices have several and the file says it."""
    if stages == 1:
        parallelism.ignore(*(key for key in KEYS if key.startswith("pipeline_parallel_")))
        return "1f1b", 1, None
    name = parallelism.word("pipeline_parallel_schedule", "1F1B")
    schedule = next(
        (own for own, theirs in SCHEDULES.items() if theirs.lower() == name.lower()), ""
    )
    if not schedule:
        raise BadInput(
            f"got {name[:40]!r}, which is not priced",
            field="parallelism.pipeline_parallel_schedule",
            expected=" or ".join(SCHEDULES.values()),
        )
    parallelism.empty(*_OWN_STAGES, expected="stages of equal layers, as torchtitan makes them")
    notes += _unequal(parallelism)
    size = parallelism.count("pipeline_parallel_microbatch_size", 1)
    pieces = divided(samples, size, "samples", "parallelism.pipeline_parallel_microbatch_size")
    layers = 0
    if schedule in _SEVERAL:
        layers = parallelism.count("pipeline_parallel_layers_per_stage", 0, least=0)
    return schedule, pieces, layers or None


def _unequal(parallelism: Section) -> Iterator[str]:
    """Yields what is said of layers that first and last stage have less than the others."""
    less = [
        parallelism.count(f"pipeline_parallel_{end}_stage_less_layers", 1, least=0)
        for end in ("first", "last")
    ]
    if any(less):
        yield (
            f"parallelism.pipeline_parallel_first_stage_less_layers = {less[0]} and last {less[1]} "
            "(1 where they are not given): read as 0, stages of equal layers"
        )


def _recomputed(section: Section, notes: list[str]) -> Recomputed:
    mode = section.word("mode", "selective", ("none", "selective", "full", "memory_budget"))
    option = section.word("selective_ac_option", "2")
    if mode == "memory_budget":
        raise BadInput(
            "a memory budget lets the compiler choose what to recompute",
            field="activation_checkpoint.mode",
            expected="none, selective or full",
        )
    if mode == "selective" and option != _OPERATORS:
        notes.append(
            f"activation_checkpoint.selective_ac_option = {option[:20]!r}: read as selective "
            "recomputation by operator in every layer"
        )
    return "none" if mode == "none" else "full" if mode == "full" else "selective"


def _sections(job: Job) -> dict[str, dict[str, Any]]:
    p = job.parallelism
    name, flavor = job.model.titan if job.model and job.model.titan else ("", "")
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": name, "flavor": flavor},
        "training": {
            # A pipeline takes its micro-batches from a local batch, and runs once in a step.
            "local_batch_size": job.samples * (p.micro_batches if job.stages > 1 else 1),
            "global_batch_size": job.batch,
            "seq_len": job.sequence_length,
            "mixed_precision_param": job.dtype,
            "mixed_precision_reduce": "float32",
        },
        "parallelism": {
            "data_parallel_replicate_degree": p.replicas,
            "data_parallel_shard_degree": p.shards,
            "fsdp_reshard_after_forward": _RESHARD.get(p.zero, "default"),
            "tensor_parallel_degree": p.tensor,
            "pipeline_parallel_degree": job.stages,
            **(_stages(job) if job.stages > 1 else {}),
            "context_parallel_degree": 1,
        },
        "activation_checkpoint": {
            "mode": p.recompute,
            "selective_ac_option": _OPERATORS,
        },
        "compile": {"enable": job.kernels == "compiled"},
    }
    if not name:
        del sections["model"]
    if job.sequence_length is None:
        del sections["training"]["seq_len"]
    if p.recompute != "selective":
        del sections["activation_checkpoint"]["selective_ac_option"]
    if job.optimizer == "adam":
        sections["optimizer"] = {"name": "AdamW"}
    return sections


def _stages(job: Job) -> dict[str, Any]:
    """Returns what makes stages of equal layers."""
    return {
        "pipeline_parallel_schedule": SCHEDULES[job.schedule],
        **_layers(job),
        "pipeline_parallel_microbatch_size": job.samples,
        "pipeline_parallel_first_stage_less_layers": 0,
        "pipeline_parallel_last_stage_less_layers": 0,
    }


def _layers(job: Job) -> dict[str, Any]:
    """Returns the layers of a stage where devices have another number of stages than torchtitan
    gives them anyway. Raises `BadInput` where the model's layers are not known."""
    if job.stages_per_rank in (1, STAGES_PER_RANK):
        return {}
    if job.model is None:
        raise BadInput(
            f"{job.stages_per_rank} stages of each device take the layers of a stage, and those of "
            f"{job.name[:60]!r} are not known",
            field="stages_per_rank",
            expected=f"{STAGES_PER_RANK}, or a preset",
        )
    layers = job.model.layers // (job.stages * job.stages_per_rank)
    return {"pipeline_parallel_layers_per_stage": layers}


def _head(job: Job) -> str:
    """Returns the commands that start training, as comments."""
    start = f"{job.torchrun()} -m torchtitan.train"
    lines = [f"torchtitan 0.1 and 0.2: {start} --job.config_file {FILENAME}"]
    if job.model and job.model.titan:
        flags = " ".join(_flags(job, *job.model.titan))
        lines.append(f"torchtitan 0.3 reads no TOML: {start} {flags}")
    return "".join(f"# {line}\n" for line in lines) + "\n"


def _flags(job: Job, name: str, flavor: str) -> list[str]:
    """Returns the flags of torchtitan 0.3 that say what the TOML says."""
    sections = _sections(job)
    flags = [f"--module {name} --config {name}_{flavor.lower()}"]
    for section in ("training", "parallelism", "compile"):
        for key, value in sections[section].items():
            if isinstance(value, bool):
                flags.append(f"--{section}.{'' if value else 'no-'}{key}")
            else:
                flags.append(f"--{section}.{key} {value}")
    flags.append(f"activation-checkpoint:{job.parallelism.recompute}")
    return flags


def _unsaid(job: Job) -> list[str]:
    unsaid = []
    if not (job.model and job.model.titan):
        unsaid.append(
            f"The model: torchtitan has no {job.name[:60]!r}; set model.name and model.flavor."
        )
    if job.optimizer != "adam":
        unsaid.append(f"The optimizer: torchtitan has Adam and AdamW, the plan {job.optimizer}.")
    if job.precision == "fp16":
        unsaid.append("The precision: torchtitan trains in bfloat16 or float32, not fp16.")
    if job.kernels == "fused":
        unsaid.append("Fused kernels: torchtitan fuses light operators by torch.compile alone.")
    if job.parallelism.recompute == "selective":
        unsaid.append(
            "Which products are kept: torchtitan recomputes every second product by a weight, the "
            "plan none."
        )
    return unsaid


def _toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    parts = []
    for name, members in sections.items():
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in members.items()]
        parts.append(f"[{name}]\n" + "".join(lines))
    return "\n".join(parts)
