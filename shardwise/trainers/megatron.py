"""Megatron-LM: the arguments of `pretrain_gpt.py`, in a shell script."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from shardwise.documents import Pipeline, Plan
from shardwise.documents.parallelism import Parallelism, Recomputed
from shardwise.errors import BadInput
from shardwise.trainers.configuration import (
    Configuration,
    divided,
    misspelt,
    only_one,
    whole_number,
)
from shardwise.trainers.job import Job, Limits, Written, job_of
from shardwise.trainers.models import Model

NAME = "megatron"
FILENAME = "megatron.sh"
LIMITS = Limits(
    zero=(0, 1, 2, 3),
    hybrid=(1,),
    recompute=("none", "selective", "full"),
    schedules=("1f1b", "interleaved"),
)

_STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_SHARDED = {stage: name for name, stage in _STRATEGIES.items()}
_ALL_BUT_PRODUCTS = ("core_attn", "layernorm")
"""The modules of a dense layer that Megatron recomputes without products by weights."""

READ = (
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--num-layers-per-virtual-pipeline-stage",
    "--num-virtual-stages-per-pipeline-rank",
    "--virtual-pipeline-model-parallel-size",
    "--context-parallel-size",
    "--expert-model-parallel-size",
    "--sequence-parallel",
    "--use-distributed-optimizer",
    "--num-distributed-optimizer-instances",
    "--use-megatron-fsdp",
    "--use-custom-fsdp",
    "--use-torch-fsdp2",
    "--data-parallel-sharding-strategy",
    "--micro-batch-size",
    "--global-batch-size",
    "--seq-length",
    "--recompute-activations",
    "--recompute-granularity",
    "--recompute-method",
    "--recompute-num-layers",
    "--recompute-modules",
)
"""The flags that say how a step is parallel."""

LAYERS_OF_STAGE = "num-layers-per-virtual-pipeline-stage"
VIRTUAL = (
    LAYERS_OF_STAGE,
    "num-virtual-stages-per-pipeline-rank",
    "virtual-pipeline-model-parallel-size",
)
"""Flags that interleave stages."""

UNEQUAL_STAGES = (
    "--pipeline-model-parallel-layout",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
)
"""Flags that give stages unequal layers."""

_BEARING = re.compile(
    r"--(fp8|fp4|cpu-offload|.*offload|overlap|tp-comm|moe-|num-experts|no-|cuda-graph|use-mcore)"
)
"""Flags that bear on time or memory, and are not read."""

_ASSIGNED = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=([A-Za-z0-9_.]+)\s*$", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::-(\w+))?\}?")
_COMMENT = re.compile(r"(?m)(^|\s)#.*$")


def write(plan: Plan | Pipeline) -> Written:
    """Returns a shell script that starts a plan. Raises as `job_of` does."""
    job = job_of(plan, NAME, LIMITS)
    parts = {
        "MODEL": _model(job),
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
        f"set -euo pipefail\n{_environment(job)}\n{arrays}"
        f'{_quoted(job.torchrun())} pretrain_gpt.py \\\n  {used} "$@"\n'
    )
    return Written(text, [*job.unsaid, *_unsaid(job)])


def read(text: str, gpus: int) -> Configuration:
    """Returns what the flags in a text or a shell script say.

    Raises `BadInput` naming a flag that cannot be read.
    """
    flags = _flags(text)
    number = _reader(flags)
    for degree in ("context-parallel", "expert-model-parallel"):
        only_one(number(f"{degree}-size", 1), f"--{degree}-size")
    stages = number("pipeline-model-parallel-size", 1)
    _check_stages(flags)
    each, layers = _interleaved(flags, stages)
    tensor = number("tensor-model-parallel-size", 1)
    of_stage = divided(gpus, stages, "GPUs", "--pipeline-model-parallel-size")
    data = divided(of_stage, tensor, "GPUs", "--tensor-model-parallel-size")
    replicas = number("num-distributed-optimizer-instances", 1)
    shards = divided(data, replicas, "devices", "--num-distributed-optimizer-instances")
    samples = number("micro-batch-size", 1)
    batch = number("global-batch-size", samples * data)
    notes: list[str] = []
    recompute = _recomputed(flags, notes)
    length = number("seq-length", 0, 0)
    return Configuration(
        trainer=NAME,
        parallelism=Parallelism(
            replicas=replicas,
            shards=shards,
            tensor=tensor,
            sequence="--sequence-parallel" in flags,
            zero=_zero(flags),
            recompute=recompute,
            micro_batches=divided(batch, samples * data, "samples", "--global-batch-size"),
        ),
        batch=batch,
        sequence_length=length or None,
        unread=[*notes, *(flag for flag in flags if flag not in READ and _BEARING.match(flag))],
        stages=stages,
        schedule="1f1b" if each == 1 and layers is None else "interleaved",
        stages_per_rank=each,
        layers_per_stage=layers,
    )


def _interleaved(flags: Mapping[str, list[str]], stages: int) -> tuple[int, int | None]:
    """Returns how many stages each device has, and how many layers a stage has where the flags say
    that instead. Without a pipeline there are no stages to interleave, and the flags say nothing.
    """
    number, given = _reader(flags), [flag for flag in VIRTUAL if f"--{flag}" in flags]
    if len(given) > 1:
        raise BadInput(
            f"given beside --{given[0]}",
            field=f"--{given[1]}",
            expected="one of the flags that interleave stages",
        )
    if stages == 1 or not given:
        return 1, None
    if given[0] == LAYERS_OF_STAGE:
        return 1, number(LAYERS_OF_STAGE, 1)
    return number(given[0], 1), None


def _check_stages(flags: Mapping[str, list[str]]) -> None:
    """Raises `BadInput` for a flag that makes stages of unequal layers."""
    for flag in UNEQUAL_STAGES:
        if flag in flags:
            raise BadInput(
                "stages of unequal layers are not priced yet",
                field=flag,
                expected="stages of equal layers",
            )


def _flags(text: str) -> dict[str, list[str]]:
    """Returns the values of every flag, with the script's own variables put in."""
    plain = _COMMENT.sub(r"\1", text).replace("\\\n", " ")
    values = dict(_ASSIGNED.findall(plain))
    plain = _VARIABLE.sub(lambda m: str(values.get(m[1]) or m[2] or m[0]), plain)
    words = re.sub(r"""["'()=,]""", " ", plain).split()
    flags: dict[str, list[str]] = {}
    current: list[str] = []
    for word in words:
        if word.startswith("--"):
            current = flags.setdefault(word.replace("_", "-"), [])
        else:
            current.append(word)
    for flag in flags:
        near = misspelt(flag, READ)
        # Flags that differ by "no-" or in one word only are Megatron's own.
        if near is not None and flag.count("-") == near.count("-"):
            raise BadInput(f"unknown flag: did you mean {near}?", field=flag[:80])
    return flags


def _reader(flags: Mapping[str, list[str]]) -> Callable[..., int]:
    def number(name: str, default: int, least: int = 1) -> int:
        values = flags.get(f"--{name}")
        if values is None:
            return default
        return whole_number(values[0] if values else None, f"--{name}", least)

    return number


def _zero(flags: Mapping[str, list[str]]) -> int:
    if "--use-torch-fsdp2" in flags:
        return 3
    if "--use-megatron-fsdp" in flags or "--use-custom-fsdp" in flags:
        field = "--data-parallel-sharding-strategy"
        strategy = (flags.get(field) or ["no_shard"])[0]
        if strategy not in _STRATEGIES:
            raise BadInput(f"got {strategy[:40]!r}", field=field, expected=" or ".join(_STRATEGIES))
        return _STRATEGIES[strategy]
    return 1 if "--use-distributed-optimizer" in flags else 0


def _recomputed(flags: Mapping[str, list[str]], notes: list[str]) -> Recomputed:
    granularity = (flags.get("--recompute-granularity") or [""])[0]
    if granularity not in ("", "full", "selective"):
        raise BadInput(
            f"got {granularity[:40]!r}",
            field="--recompute-granularity",
            expected="full or selective",
        )
    if granularity == "full":
        method = (flags.get("--recompute-method") or ["uniform"])[0]
        layers = (flags.get("--recompute-num-layers") or ["1"])[0]
        if method == "block" or layers != "1":
            notes.append(
                f"--recompute-method {method[:20]} --recompute-num-layers {layers[:20]}: read as "
                "the recomputation of every layer by itself"
            )
        return "full"
    if granularity == "selective" or "--recompute-activations" in flags:
        modules = flags.get("--recompute-modules") or ["core_attn"]
        if set(modules) != set(_ALL_BUT_PRODUCTS):
            notes.append(
                f"--recompute-modules {' '.join(modules)[:80]}: read as all of a layer but its "
                "products by weights"
            )
        return "selective"
    return "none"


def _parallel(p: Parallelism, stages: int, stages_per_rank: int) -> list[str]:
    lines = [
        f"--tensor-model-parallel-size {p.tensor}",
        f"--pipeline-model-parallel-size {stages}",
        "--context-parallel-size 1",
    ]
    if stages_per_rank > 1:
        lines.insert(2, f"--num-virtual-stages-per-pipeline-rank {stages_per_rank}")
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
        lines += [
            "--recompute-granularity full",
            "--recompute-method uniform",
            "--recompute-num-layers 1",
        ]
    elif p.recompute == "selective":
        lines += [
            "--recompute-granularity selective",
            f"--recompute-modules {' '.join(_ALL_BUT_PRODUCTS)}",
        ]
    return lines


def _training(job: Job) -> list[str]:
    lines = [f"--micro-batch-size {job.samples}", f"--global-batch-size {job.batch}"]
    if job.sequence_length is not None:
        lines.append(f"--seq-length {job.sequence_length}")
    if job.precision != "fp32":
        lines.append(f"--{job.precision}")
    lines.append("--optimizer adam" if job.optimizer == "adam" else "--optimizer sgd")
    if job.optimizer == "sgd":
        lines.append("--sgd-momentum 0.0")
    return lines


def _model(job: Job) -> list[str]:
    if job.model is None:
        return ["# --num-layers, --hidden-size, --num-attention-heads, … of your model"]
    positions = max(job.model.positions, job.sequence_length or 0)
    return [*_sizes(job.model), f"--max-position-embeddings {positions}"]


def _sizes(model: Model) -> list[str]:
    lines = [
        f"--num-layers {model.layers}",
        f"--hidden-size {model.hidden}",
        f"--ffn-hidden-size {model.feed_forward}",
        f"--num-attention-heads {model.heads}",
        f"--vocab-size {model.vocabulary}",
    ]
    if model.key_value_heads != model.heads:
        lines.append(f"--group-query-attention --num-query-groups {model.key_value_heads}")
    if model.family == "gpt":
        return [*lines, "--position-embedding-type learned_absolute"]
    lines += [
        "--swiglu --disable-bias-linear --normalization RMSNorm",
        "--untie-embeddings-and-output-weights",
        f"--position-embedding-type rope --rotary-base {int(model.rope_theta)}",
    ]
    if model.family == "qwen":
        lines.append("--qk-layernorm --kv-channels 128")
    return lines


def _environment(job: Job) -> str:
    # Megatron's tensor parallelism wants one queue; its FSDP overlaps over several.
    if job.parallelism.tensor > 1 and job.parallelism.zero < 2:
        return "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    return ""


def _quoted(command: str) -> str:
    return command.replace("$HEAD_NODE:29500", '"$HEAD_NODE:29500"')


def _unsaid(job: Job) -> list[str]:
    unsaid = []
    if job.model is None:
        unsaid.append(f"The model: the sizes of {job.name[:60]!r}; fill in MODEL.")
    if job.parallelism.recompute == "selective":
        unsaid.append(
            "Selective recomputation: Megatron keeps what the activation function of a "
            "feed-forward layer reads and makes, the plan recomputes it."
        )
    if job.parallelism.zero >= 2:
        unsaid.append(
            f"ZeRO stage {job.parallelism.zero} is Megatron-FSDP, not Megatron's usual optimizer."
        )
    if job.kernels == "eager":
        unsaid.append("Kernels: the plan counts on eager ones; Megatron fuses some by default.")
    return unsaid
