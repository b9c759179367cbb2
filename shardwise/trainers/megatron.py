"""Megatron-LM: writing the arguments of `pretrain_gpt.py` as a shell script."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET

from shardwise.documents import Plan
from shardwise.documents.parallelism import ContextForm, Parallelism
from shardwise.trainers import precisions
from shardwise.trainers.job import Job, Limits, Written, job_of
from shardwise.trainers.megatron_model import PADDING, divisor, model_flags, model_unsaid

NAME = "megatron"
FILENAME = "megatron.sh"
LIMITS = Limits(
    context=("gather", "ring", "ulysses"),
    zero=(0, 1, 2, 3),
    hybrid=(1,),
    recompute=("none", "selective", "full"),
    layers=("first",),
    parts=True,
    schedules=("1f1b", "interleaved"),
    experts=(0, 1),
)

STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_SHARDED = {stage: name for name, stage in STRATEGIES.items()}
ALL_BUT_PRODUCTS = ("core_attn", "layernorm")
"""The modules of a dense layer that Megatron recomputes without products by weights."""


def write(plan: Plan) -> Written:
    """Returns a shell script that starts a plan. Raises as `job_of` does."""
    job = job_of(plan, NAME, LIMITS)
    parts = {
        "MODEL": model_flags(job),
        "PARALLEL": _parallel(job.parallelism, job.stages, job.stages_per_rank),
        "TRAINING": _training(job),
    }
    arrays = "".join(
        f"{name}=(\n{''.join(f'  {line}{chr(10)}' for line in lines)})\n\n"
        for name, lines in parts.items()
    )
    used = " ".join(f'"${{{name}[@]}}"' for name in parts)
    text = (
        "#!/usr/bin/env bash\n"
        "# Data, tokenizer, learning rate and checkpoints: further arguments of this script.\n"
        f"set -euo pipefail\n{_environment(job)}\n{arrays}{_faster(job)}"
        f'{_quoted(job.torchrun())} pretrain_gpt.py \\\n  {used} "$@"\n'
    )
    return Written(text, [*job.unsaid, *_unsaid(job)])


COMMUNICATION: Mapping[ContextForm, str] = {"gather": "all_gather", "ring": "p2p", "ulysses": "a2a"}
"""By our form of context parallelism Megatron's `--cp-comm-type`."""


def _parallel(p: Parallelism, stages: int, stages_per_rank: int) -> list[str]:
    lines = [
        f"--tensor-model-parallel-size {p.tensor}",
        f"--pipeline-model-parallel-size {stages}",
        f"--context-parallel-size {p.context}",
    ]
    if p.context > 1:
        lines.append(f"--cp-comm-type {COMMUNICATION[p.context_form]}")
    if stages_per_rank > 1:
        lines.insert(2, f"--num-virtual-stages-per-pipeline-rank {stages_per_rank}")
    if p.expert > 1:
        lines += [
            f"--expert-model-parallel-size {p.expert}",
            f"--expert-tensor-parallel-size {1 if p.whole_experts else p.tensor}",
            "--moe-token-dispatcher-type alltoall",
        ]
    if p.sequence:
        lines.append("--sequence-parallel")
    if p.zero == 1:
        lines += ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
        if p.replicas > 1:
            lines.append(f"--num-distributed-optimizer-instances {p.replicas}")
    elif p.zero:
        lines += [
            "--use-distributed-optimizer",
            "--use-megatron-fsdp",
            f"--data-parallel-sharding-strategy {_SHARDED[p.zero]}",
            "--no-gradient-accumulation-fusion",
            "--ckpt-format fsdp_dtensor",
        ]
    elif p.replicas > 1:
        lines.append("--overlap-grad-reduce")
    if p.recompute == "full":
        method = "uniform" if p.recompute_layers is UNSET else "block"
        lines += [
            "--recompute-granularity full",
            f"--recompute-method {method}",
            f"--recompute-num-layers {p.recompute_layers or 1}",
        ]
    elif p.recompute == "selective":
        named = ALL_BUT_PRODUCTS if p.recompute_modules is UNSET else p.recompute_modules
        lines += [
            "--recompute-granularity selective",
            f"--recompute-modules {' '.join(named)}",
        ]
    return lines


def _training(job: Job) -> list[str]:
    lines = [f"--micro-batch-size {job.samples}", f"--global-batch-size {job.batch}"]
    if job.sequence_length is not None:
        lines.append(f"--seq-length {job.sequence_length}")
    if job.precision != "fp32":
        lines.append(f"--{job.precision}")
    lines += precisions.to_megatron(job.recipe) or []
    # Megatron turns float32 gradients on with --bf16 unless it is told otherwise.
    if job.precision == "bf16" and not job.wide_gradients:
        lines.append("--grad-reduce-in-bf16")
    elif job.precision == "fp16" and job.wide_gradients:
        lines.append("--accumulate-allreduce-grads-in-fp32")
    lines.append("--optimizer adam" if job.optimizer == "adam" else "--optimizer sgd")
    if job.optimizer == "sgd":
        lines.append("--sgd-momentum 0.0")
    return lines


def _faster(job: Job) -> str:
    """Returns NVIDIA's own performance flags as comments, which leave the plan's strategy as it is
    (megatron/core/transformer/moe/README.md, and the recipes of Megatron's tests)."""
    flags = [
        "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te",
        "--manual-gc --manual-gc-interval 100",
        "--attention-backend flash",
        "--no-check-for-nan-in-loss-and-grad",
    ]
    if job.parallelism.sequence:
        flags.insert(0, "--tp-comm-overlap")
    if job.facts is not None and divisor(job.facts.vocabulary, job.parallelism.tensor) < PADDING:
        flags.append(f"--make-vocab-size-divisible-by {PADDING} (it pads the vocabulary)")
    lines = "".join(f"#   {line}\n" for line in flags)
    return f"# NVIDIA's own performance flags, further arguments of this script:\n{lines}\n"


def _environment(job: Job) -> str:
    # Megatron's tensor parallelism wants one queue; its FSDP overlaps over several.
    if job.parallelism.tensor > 1 and job.parallelism.zero < 2:
        return "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    return ""


def _quoted(command: str) -> str:
    return command.replace("$HEAD_NODE:29500", '"$HEAD_NODE:29500"')


def _unsaid(job: Job) -> list[str]:
    unsaid = list(model_unsaid(job))
    unsaid += job.recipe_unsaid("Megatron", precisions.to_megatron(job.recipe))
    p = job.parallelism
    if p.recompute == "selective" and p.recompute_modules is UNSET:
        unsaid.append(
            "Selective recomputation: Megatron keeps what the activation function of a "
            "feed-forward layer reads and makes, the plan recomputes it."
        )
    if job.parallelism.zero >= 2:
        unsaid.append(
            f"ZeRO stage {job.parallelism.zero} is Megatron-FSDP, not Megatron's usual optimizer."
        )
    if job.kernels != "fused":
        unsaid.append(f"Kernels: the plan counts on {job.kernels} ones; Megatron has fused ones.")
    return unsaid
