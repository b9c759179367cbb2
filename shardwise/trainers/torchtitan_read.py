"""torchtitan: what the TOML of its JobConfig says of a step, in all its layouts since 2024.

Degrees stood under [training] and [experimental] until April 2025, and the samples of a device were
`batch_size` until summer 2025 (torchtitan/config_manager.py and torchtitan/config/job_config.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from shardwise.cost.software import COMPILED
from shardwise.cost.step_settings import CAPTURED, FUSED, UPDATES
from shardwise.documents.parallelism import Parallelism, Recomputed
from shardwise.errors import BadInput
from shardwise.sharding.fusion import ALONE
from shardwise.trainers import precisions
from shardwise.trainers.configuration import (
    LARGEST,
    Configuration,
    NamedModel,
    Section,
    divided,
    has_whole_experts,
    whole_number,
)
from shardwise.trainers.model_sizes import of_flavor, sizes_of_model
from shardwise.trainers.models import MODELS
from shardwise.trainers.stated import optimizer_of
from shardwise.trainers.torchtitan import NAME, OPERATORS, ROTATIONS, SCHEDULES, STAGES_PER_RANK

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

_SEVERAL = ("interleaved", "zb-h1", "zbv", "dualpipev")
"""Schedules of several stages on each device."""

_OWN_STAGES = (
    "pipeline_parallel_split_points",
    "module_fqns_per_model_part",
    "pipeline_parallel_schedule_csv",
)

_IGNORED = (
    "job",
    "profiling",
    "metrics",
    "checkpoint",
    "comm",
    "validation",
    "lr_scheduler",
    "memory_estimation",
    "fault_tolerance",
    "debug",
)
_FORMER = {
    "tensor": ("sequence_parallel_degree",),
    "shards": ("data_parallel_degree",),
}
"""What degrees were called in spring 2024."""


_SECTIONS = ("parallelism", "training", "experimental")
"""Sections that have had degrees, the present one first."""

_WITHOUT_EFFECT = (
    "steps",
    "dataset",
    "dataset_path",
    "max_norm",
    "gc_freq",
    "gc_debug",
    "seed",
    "deterministic",
    "data_parallel_type",
    "warmup_steps",
    "enable_fp8_linear",
)


class _Layout:
    """The sections that have degrees; each key is read wherever the file has it."""

    def __init__(self, job: Section) -> None:
        self.sections = [
            job.section(name, KEYS if name == _SECTIONS[0] else ()) for name in _SECTIONS
        ]

    def of(self, *names: str) -> tuple[Section, str]:
        """Returns the section that has one of the names, and the name; else where it belongs.

        Raises `BadInput` where two have one.
        """
        found = [(one, name) for name in names for one in self.sections if one.has(name)]
        if len(found) > 1:
            raise BadInput(
                f"given beside {found[0][0].path(found[0][1])}",
                field=found[1][0].path(found[1][1]),
                expected="one of the two",
            )
        return found[0] if found else (self.sections[0], names[0])

    def count(self, *names: str, default: int, least: int = 1, most: int = LARGEST) -> int:
        """Returns a whole number by one of its names."""
        section, name = self.of(*names)
        return section.count(name, default, least, most)


_DEGREES = tuple(name for name in (*KEYS, *sum(_FORMER.values(), ())) if name.endswith("_degree"))


def _check_sections(document: Mapping[str, Any]) -> None:
    """Raises `BadInput` for a degree outside the sections that have them: torchtitan refuses it."""
    for name, section in document.items():
        if name in _DEGREES or (isinstance(section, Mapping) and name not in _SECTIONS):
            found = (
                [name] if name in _DEGREES else [f"{name}.{k}" for k in _DEGREES if k in section]
            )
            if found:
                raise BadInput(
                    "a degree outside the sections that have degrees",
                    field=found[0][:100],
                    expected="it under [parallelism]",
                )


def is_titan(document: Mapping[str, Any]) -> bool:
    """Returns whether a document has keys that only torchtitan has."""
    model, job = document.get("model"), document.get("job")
    if isinstance(model, Mapping) and "flavor" in model:
        return True
    if isinstance(job, Mapping) and {"dump_folder", "config_file"} & set(job):
        return True
    recompute = document.get("activation_checkpoint")
    if isinstance(recompute, Mapping) and "selective_ac_option" in recompute:
        return True
    degrees = {*KEYS, *(name for names in _FORMER.values() for name in names), "local_batch_size"}
    return any(
        isinstance(document.get(name), Mapping) and degrees & set(document[name])
        for name in _SECTIONS
    )


def read(text: Mapping[str, Any], gpus: int) -> Configuration:
    """Returns what a job's TOML says. Raises `BadInput` naming a field that cannot be read."""
    _check_sections(text)
    job = Section(text)
    job.ignore(*_IGNORED)
    layout = _Layout(job)
    training = job.section("training")
    context = layout.count("context_parallel_degree", default=1)
    section, name = layout.of("context_parallel_rotate_method")
    rotation = section.word(name, "allgather", tuple(ROTATIONS.values()))
    stages = layout.count("pipeline_parallel_degree", default=1)
    tensor = layout.count("tensor_parallel_degree", *_FORMER["tensor"], default=1)
    replicas = layout.count("data_parallel_replicate_degree", default=1)
    shards = layout.count("data_parallel_shard_degree", *_FORMER["shards"], default=-1, least=-1)
    if shards < 1:
        section, name = layout.of("context_parallel_degree")
        of_context = divided(gpus, context, "GPUs", section.path(name))
        what = "GPUs (tensor × replicate × pipeline)"
        given = tensor * replicas * stages
        section, name = layout.of("tensor_parallel_degree", *_FORMER["tensor"])
        shards = divided(of_context, given, what, section.path(name))
    if training.word("data_parallel_type", "fsdp", ("fsdp", "ddp")) == "ddp":
        replicas, shards = replicas * shards, 1
    expert = layout.count("expert_parallel_degree", default=1)
    section, name = layout.of("expert_tensor_parallel_degree")
    of_experts = section.count(name, 1)
    whole_experts = has_whole_experts(of_experts, tensor, expert, section.path(name))
    policies = ("default", "always", "never")
    section, name = layout.of("fsdp_reshard_after_forward")
    policy = section.word(name, "default", policies)
    section, name = layout.of("enable_sequence_parallel")
    sequence = section.flag(name, True)
    section, name = layout.of("local_batch_size", "batch_size")
    samples = (section if section.has(name) else training).count(name, 8)
    batch = training.count("global_batch_size", -1, least=-1)
    data = replicas * shards
    if batch < 1:
        batch = samples * data
    training.ignore(*_WITHOUT_EFFECT)
    notes: list[str] = []
    schedule, pieces, layers = _schedule(layout, stages, samples)
    less = _less(layout.of("pipeline_parallel_degree")[0]) if stages > 1 else None
    if stages > 1 and batch != samples * data:
        raise BadInput(
            f"got {batch}: a pipeline that runs several times in a step is not priced yet",
            field="training.global_batch_size",
            expected=f"local_batch_size × {data} = {samples * data}",
        )
    recompute, every = _recomputed(job.section("activation_checkpoint"), stages, notes)
    model = job.section("model")
    preset = of_flavor(model.word("name", ""), model.word("flavor", ""))
    called = " ".join(filter(None, (model.word("name", ""), model.word("flavor", ""))))
    model.ignore("tokenizer_path", "hf_assets_path", "print_after_conversion", "norm_type")
    stated = _stated(job, training, notes)
    left_out = list(_left_out(job, training))
    precision = precisions.of_titan(job, model, left_out)
    if precision is not None:
        stated[precisions.PRECISION] = precision
    length = training.count("seq_len", 2048)
    if any(True for _ in training.unread()) and not training.has("seq_len"):
        notes.append(f"training.seq_len: not given, read as torchtitan's {length}")
    return Configuration(
        trainer=NAME,
        parallelism=Parallelism(
            replicas=replicas,
            shards=shards,
            tensor=tensor,
            sequence=sequence,
            expert=expert,
            whole_experts=whole_experts,
            context=context,
            context_form=next(form for form, name in ROTATIONS.items() if name == rotation),
            # torchtitan keeps parameters whole in a pipeline unless it is told otherwise.
            zero=2 if policy == "never" or (policy == "default" and stages > 1) else 3,
            recompute=recompute,
            recompute_every=every,
            micro_batches=pieces
            * divided(batch, samples * data, "samples", "training.global_batch_size"),
        ),
        batch=batch,
        sequence_length=length,
        unread=[*notes, *job.unread()],
        stages=stages,
        schedule=schedule,
        stages_per_rank=STAGES_PER_RANK if schedule in _SEVERAL and layers is None else 1,
        layers_per_stage=layers,
        less=less,
        stated=stated,
        left_out=left_out,
        model={} if preset is None else sizes_of_model(MODELS[preset]),
        named=NamedModel(preset or called),
    )


def _stated(job: Section, training: Section, notes: list[str]) -> dict[str, str]:
    """Returns the options that a job states: compilation and the optimizer."""
    stated = {}
    compiles = job.section("compile")
    parts = compiles.given("components")
    parts = parts if isinstance(parts, list) else ["model", "loss"]
    compiles.ignore("backend")
    former = training.flag("compile")
    if (compiles.flag("enable") or former) and "model" in parts:
        stated["framework"] = COMPILED
        if "loss" not in parts:
            stated["loss"] = ALONE
    optimizer = job.section("optimizer")
    name = optimizer.word("name", "AdamW")
    stated.update(optimizer_of(name, "optimizer.name", notes))
    update = optimizer.word("implementation", FUSED if job.has("parallelism") else "")
    if optimizer.flag("fused"):
        update = FUSED
    if update and update not in UPDATES:
        notes.append(f"optimizer.implementation {update[:40]}: priced as {FUSED}")
        update = FUSED
    if update:
        stated["update"] = update
    narrow = training.word("dtype", "float32", ("float32", "bfloat16"))
    if narrow == "bfloat16":
        stated["state"] = CAPTURED
    elif training.word("mixed_precision_param", "bfloat16") == "float32":
        notes.append("training.mixed_precision_param float32: priced in the dtype of the graph")
    return stated


def _left_out(job: Section, training: Section) -> Iterator[str]:
    """Yields what the trainer does to memory or time that is priced otherwise."""
    if training.flag("enable_cpu_offload"):
        yield "training.enable_cpu_offload: priced with states on the GPU"
    if job.section("optimizer").flag("early_step_in_backward"):
        yield "optimizer.early_step_in_backward: priced with the gradients of all parameters kept"
    job.section("optimizer").ignore_all()
    for section in ("parallelism", "experimental"):
        one = job.section(section)
        if one.flag("enable_async_tensor_parallel"):
            path = one.path("enable_async_tensor_parallel")
            yield f"{path}: priced with products that wait for their communication"


def _schedule(layout: _Layout, stages: int, samples: int) -> tuple[str, int, int | None]:
    """Returns the schedule of a pipeline, its micro-batches of a local batch, of one stage 1, and
    the layers of a stage where devices have several and the file says it."""
    parallelism = layout.of("pipeline_parallel_degree")[0]
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
            field=parallelism.path("pipeline_parallel_schedule"),
            expected=" or ".join(SCHEDULES.values()),
        )
    parallelism.empty(*_OWN_STAGES, expected="stages of equal layers, as torchtitan makes them")
    pieces = _pieces(parallelism, stages, samples)
    layers = 0
    if schedule in _SEVERAL:
        layers = parallelism.count("pipeline_parallel_layers_per_stage", 0, least=0)
    return schedule, pieces, layers or None


def _pieces(parallelism: Section, stages: int, samples: int) -> int:
    """Returns the micro-batches of a local batch: by their size, or in 2024 by their number."""
    former = "pipeline_parallel_microbatches"
    if parallelism.has(former):
        pieces = parallelism.count(former, stages)
        divided(samples, pieces, "samples", parallelism.path(former))
        return pieces
    name = "pipeline_parallel_microbatch_size"
    return divided(samples, parallelism.count(name, 1), "samples", parallelism.path(name))


def _less(parallelism: Section) -> tuple[int, int] | None:
    """Returns how many layers the first and the last stage have less than the others, None for
    equal stages, which files of 2024 had."""
    default = int(parallelism.path("").startswith(_SECTIONS[0]))
    first, last = (
        parallelism.count(f"pipeline_parallel_{end}_stage_less_layers", default, least=0)
        for end in ("first", "last")
    )
    return (first, last) if first or last else None


def _recomputed(
    section: Section, stages: int, notes: list[str]
) -> tuple[Recomputed, int | UnsetType]:
    """Returns what runs again, and in one of how many layers where the file says so."""
    mode = section.word("mode", "selective", ("none", "selective", "full", "memory_budget"))
    option = str(section.given("selective_ac_option") or "2")
    if mode == "memory_budget":
        raise BadInput(
            "a memory budget lets the compiler choose what to recompute",
            field="activation_checkpoint.mode",
            expected="none, selective or full",
        )
    if mode != "selective" or option == OPERATORS:
        return "none" if mode == "none" else "full" if mode == "full" else "selective", UNSET
    each = whole_number(option, section.path("selective_ac_option"), least=0)
    if stages == 1:
        return "full", each if each > 1 else UNSET
    notes.append(
        f"activation_checkpoint.selective_ac_option = {each}: read as selective recomputation by "
        "operator in every layer"
    )
    return "selective", UNSET
