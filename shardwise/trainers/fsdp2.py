"""FSDP2 and DTensor: `parallelize.py`, a Python file by the paths of the model's modules."""

from __future__ import annotations

import re
from string import Template

from shardwise.documents import Plan
from shardwise.files import DATA
from shardwise.trainers.job import GUESSED_PRECISION, Job, Limits, Written, job_of
from shardwise.trainers.module_splits import Splits, splits_of

NAME = "fsdp2"
FILENAME = "parallelize.py"
LIMITS = Limits(
    zero=(0, 2, 3),
    hybrid=(2, 3),
    recompute=("none", "selective", "full"),
    layers=("first", "every"),
)

TEMPLATE = DATA / "parallelize.py.template"
_UNPRINTABLE = re.compile(r"[^ -~]|[\"\\]")


def write(plan: Plan) -> Written:
    """Returns a Python file that parallelizes the plan's model.

    Raises `BadInput` as `job_of` does, and for splits that modules of torch cannot have.
    """
    job = job_of(plan, NAME, LIMITS)
    splits = splits_of(plan, job.parallelism)
    p = job.parallelism
    dtype = None if GUESSED_PRECISION in job.unsaid or job.precision == "fp32" else job.dtype
    reduced = "float32" if dtype is not None and job.wide_gradients else dtype
    name = _UNPRINTABLE.sub(" ", job.name)[:60]
    text = Template(TEMPLATE.read_text("utf-8")).substitute(
        title=f"{name} on {job.gpus} GPUs with FSDP2, made by Shardwise.",
        command=f"{job.torchrun()} train.py",
        batch=job.batch,
        replicas=p.replicas,
        shards=p.shards,
        tensor=p.tensor,
        sequence=p.sequence,
        zero=p.zero,
        recompute=f'"{p.recompute}"',
        recomputed=str(p.recomputed_blocks).replace(", None)", ")"),
        micro_batches=p.micro_batches,
        precision=_dtype(dtype),
        reduced=_dtype(reduced),
        compile=_compiles(job),
        blocks=_listed(splits.blocks),
        styles=_mapping(splits.styles),
        tied=_mapping({path: f'"{owner}"' for path, owner in splits.tied.items()}),
    )
    # A precision that is not known is not guessed here.
    unsaid = [sentence for sentence in job.unsaid if sentence != GUESSED_PRECISION]
    return Written(text, [*unsaid, *_unsaid(job, splits)])


def _compiles(job: Job) -> bool:
    """Returns whether blocks are compiled: not with tensor parallelism, where compiled blocks of
    torch 2.15 gave parameters wrong gradients or none (tests/integration/trainers)."""
    return job.kernels == "compiled" and job.parallelism.tensor == 1


def _dtype(name: str | None) -> str:
    return "None" if name is None else f"torch.{name}"


def _listed(names: tuple[str, ...]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def _mapping(members: dict[str, str]) -> str:
    if not members:
        return "{}"
    lines = "".join(f'    "{key}": {value},\n' for key, value in members.items())
    return "{\n" + lines + "}"


def _unsaid(job: Job, splits: Splits) -> list[str]:
    unsaid = [*job.model_of_script, job.optimizer_of_script]
    if GUESSED_PRECISION in job.unsaid:
        unsaid.append("The precision: parameters keep the dtype that the script gives them.")
    if job.precision == "fp16":
        unsaid.append("Loss scaling for fp16: the script does it.")
    unsaid += job.length_of_script
    if job.recipe:
        unsaid.append(
            f"The recipe {job.recipe}: the script converts linear layers, by torchao's "
            "convert_to_float8_training or TransformerEngine's modules, before it shards them."
        )
    if not splits.blocks and (job.parallelism.zero == 3 or job.parallelism.recompute != "none"):
        unsaid.append(
            "Blocks: the model has no list of modules, so that its parameters are gathered all at "
            "once and nothing is recomputed."
        )
    if job.kernels == "compiled" and not _compiles(job):
        unsaid.append(
            "Compilation: the plan counts on it; with tensor parallelism blocks that torch 2.15 "
            "compiles had wrong gradients, so COMPILE is False."
        )
    if job.kernels == "fused":
        unsaid.append("Kernels: the plan counts on fused ones, which the script chooses.")
    return unsaid
