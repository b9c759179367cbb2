"""torchtitan: the TOML of its JobConfig (0.1 and 0.2), and the same as flags (0.3.0 and main).

Main counts tokens since August 2026 where 0.3.0 counts samples (torchtitan/config/configs.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shardwise.documents import Plan
from shardwise.documents.model_facts import differences
from shardwise.documents.parallelism import ContextForm, Parallelism
from shardwise.errors import BadInput
from shardwise.trainers import precisions
from shardwise.trainers.facts import facts_of_preset
from shardwise.trainers.job import Job, Limits, Written, job_of

NAME = "torchtitan"
FILENAME = "torchtitan.toml"
LIMITS = Limits(
    context=("gather", "ring"),
    zero=(0, 2, 3),
    hybrid=(2, 3),
    sequence=(True,),
    recompute=("none", "selective", "full"),
    layers=("every",),
    schedules=("1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "dualpipev"),
    experts=(2, 3),
)

_RESHARD = {2: "never", 3: "always"}
OPERATORS = "op"
"""Selective recomputation by operator, as opposed to every n-th layer."""

SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zb-h1": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
"""By our name what torchtitan calls them."""

ROTATIONS: Mapping[ContextForm, str] = {"gather": "allgather", "ring": "alltoall"}
"""By our form of context parallelism what torchtitan calls it."""

_WITHOUT_RECIPE = ("qwen3-8b",)
"""Presets of which torchtitan has the model, and from 0.3 no configuration to start from."""

STAGES_PER_RANK = 2
"""Stages of each device under schedules with several, unless the layers of a stage are given."""


def write(plan: Plan) -> Written:
    """Returns the TOML of a plan, with the command that reads it. Raises as `job_of` does."""
    job = job_of(plan, NAME, LIMITS)
    unsaid = [*job.unsaid, *_unsaid(job)]
    return Written(_head(job) + _toml(_sections(job)), unsaid)


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
            "context_parallel_degree": p.context,
            **(
                {"context_parallel_rotate_method": ROTATIONS[p.context_form]}
                if p.context > 1
                else {}
            ),
            **(_experts(p) if p.expert > 1 else {}),
        },
        "activation_checkpoint": {
            "mode": "selective" if p.in_part else p.recompute,
            "selective_ac_option": str(p.recompute_every or OPERATORS),
        },
        "compile": {"enable": job.kernels == "compiled"},
    }
    if not name:
        del sections["model"]
    converter = precisions.to_titan(job.recipe)
    if converter is not None:
        sections.setdefault("model", {})["converters"] = [converter[0]]
        sections[converter[0]] = converter[1]
    if job.sequence_length is None:
        del sections["training"]["seq_len"]
    if p.recompute != "selective" and not p.in_part:
        del sections["activation_checkpoint"]["selective_ac_option"]
    if job.optimizer == "adam":
        sections["optimizer"] = {"name": "AdamW", "implementation": job.update}
    return sections


def _experts(p: Parallelism) -> dict[str, Any]:
    """Returns what spreads experts over devices."""
    return {
        "expert_parallel_degree": p.expert,
        "expert_tensor_parallel_degree": 1 if p.whole_experts else p.tensor,
    }


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
    if _has_recipe(job):
        sections = _sections(job)
        lines.append(f"torchtitan 0.3.0: {start} {_flags(job, sections)}")
        if job.sequence_length is not None:
            in_tokens = {**sections, **_in_tokens(job, sections, job.sequence_length)}
            lines.append(f"torchtitan main: {start} {_flags(job, in_tokens)}")
    return "".join(f"# {line}\n" for line in lines) + "\n"


def _has_recipe(job: Job) -> bool:
    """Returns whether torchtitan from 0.3 has a configuration of the model to start from, and the
    plan's recomputation, which is of operators or of all layers there."""
    known = bool(job.model and job.model.titan) and job.name not in _WITHOUT_RECIPE
    return known and not job.parallelism.in_part


def _flags(job: Job, sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the flags of torchtitan from 0.3 that say what sections of the TOML say."""
    name, flavor = (job.model and job.model.titan) or ("", "")
    flags = [f"--module {name} --config {name}_{flavor.lower()}"]
    if job.stages > 1:
        # It captures CUDA graphs otherwise, and refuses pipelines with them.
        flags.append("--training.disable_cuda_graphs")
    for section in ("training", "parallelism", "compile"):
        for key, value in sections[section].items():
            if isinstance(value, bool):
                flags.append(f"--{section}.{'' if value else 'no-'}{key}")
            else:
                flags.append(f"--{section}.{key} {value}")
    if job.optimizer == "adam":
        flags.append(f"--optimizer.implementation {job.update}")
    flags.append(f"activation-checkpoint:{job.parallelism.recompute}")
    return " ".join(flags)


def _in_tokens(
    job: Job, sections: Mapping[str, Mapping[str, Any]], length: int
) -> dict[str, dict[str, Any]]:
    """Returns the sections in which main counts tokens, and pipelines their micro-batches."""
    training, parallelism = dict(sections["training"]), dict(sections["parallelism"])
    for name in ("local_batch_size", "global_batch_size", "seq_len"):
        training.pop(name)
    budget = {
        "num_tokens_per_microbatch_per_dp_rank": job.samples * length,
        "num_tokens_per_train_step": job.batch * length,
        "max_context_length": length,
    }
    if parallelism.pop("pipeline_parallel_microbatch_size", None) is not None:
        parallelism["num_pp_microbatches"] = job.parallelism.micro_batches
    return {"training": {**budget, **training}, "parallelism": parallelism}


def _unsaid(job: Job) -> list[str]:
    unsaid = []
    if not (job.model and job.model.titan):
        unsaid.append(
            f"The model: torchtitan has no {job.name[:60]!r}; set model.name and model.flavor."
        )
    elif job.parallelism.in_part:
        unsaid.append(
            "Recomputation of some layers: torchtitan from 0.3 recomputes all or none, so the file "
            "is for 0.1 and 0.2 alone."
        )
    elif not _has_recipe(job):
        unsaid.append(f"torchtitan from 0.3: it has no configuration of {job.name} to start from.")
    if job.model and job.model.titan and job.facts is not None:
        unsaid += [
            f"The model: its {name} is {own}, that of torchtitan's {job.name} {theirs}."
            for name, (own, theirs) in differences(job.facts, facts_of_preset(job.model)).items()
        ]
    if job.optimizer != "adam":
        unsaid.append(f"The optimizer: torchtitan has Adam and AdamW, the plan {job.optimizer}.")
    if job.precision == "fp16":
        unsaid.append("The precision: torchtitan trains in bfloat16 or float32, not fp16.")
    unsaid += job.recipe_unsaid("torchtitan", precisions.to_titan(job.recipe))
    if job.precision != "fp32" and not job.wide_gradients:
        unsaid.append(f"Gradients: torchtitan reduces them in float32, the plan in {job.dtype}.")
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
