"""Megatron-LM: what the flags of `pretrain_gpt.py` say of a step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

from msgspec import UNSET, UnsetType

from shardwise.cost.software import MEGATRON
from shardwise.cost.step_settings import ROUNDED
from shardwise.documents.parallelism import ContextForm, Parallelism, Part, Recomputed
from shardwise.errors import BadInput
from shardwise.sharding.fusion import CONVERTED
from shardwise.trainers import precisions
from shardwise.trainers.configuration import (
    Configuration,
    divided,
    has_whole_experts,
    only_one,
    whole_number,
)
from shardwise.trainers.launched import launched_by
from shardwise.trainers.megatron import ALL_BUT_PRODUCTS, COMMUNICATION, NAME, STRATEGIES
from shardwise.trainers.megatron_flags import (
    MegatronFlags,
    check_spelling,
    flags_of_mapping,
    flags_of_script,
)
from shardwise.trainers.megatron_named import named_model
from shardwise.trainers.megatron_stages import UNEQUAL_STAGES, VIRTUAL, stages_of
from shardwise.trainers.stated import optimizer_of

_STATE_TYPES = ("main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype")
_BITS = {"fp32": 32, "float32": 32, "fp16": 16, "float16": 16, "bf16": 16, "bfloat16": 16, "fp8": 8}
"""Bits of the dtypes of main parameters and moments."""

_ROUNDED_WEIGHTS = ("fp8-param-gather", "fp8-param", "fp4-param-gather", "fp4-param")
"""What stores weights in 8 or 4 bits alone; of Megatron and, as members, of Megatron-Bridge."""

_OLD_FULL = ("checkpoint-activations", "activations-checkpoint-method")
"""What recomputed whole layers until 2022."""

_RAMPUP = ("the first batch", "what is added", "the samples over which it grows")
"""What `--rampup-batch-size` has."""

_OTHER_DEGREES = (
    "encoder-tensor-model-parallel-size",
    "encoder-pipeline-model-parallel-size",
)
"""Degrees of what is not planned."""

READ = (
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    *VIRTUAL,
    *UNEQUAL_STAGES,
    *_OTHER_DEGREES,
    "expert-model-parallel-size",
    "expert-tensor-parallel-size",
    "context-parallel-size",
    "cp-comm-type",
    "sequence-parallel",
    "use-distributed-optimizer",
    "num-distributed-optimizer-instances",
    "use-megatron-fsdp",
    "use-custom-fsdp",
    "use-torch-fsdp2",
    "data-parallel-sharding-strategy",
    "micro-batch-size",
    "global-batch-size",
    "rampup-batch-size",
    "seq-length",
    "recompute-activations",
    "recompute-granularity",
    "recompute-method",
    "recompute-num-layers",
    "recompute-modules",
    *_OLD_FULL,
    "bf16",
    "fp16",
    "grad-reduce-in-bf16",
    "accumulate-allreduce-grads-in-fp32",
    "main-grads-dtype",
    "use-precision-aware-optimizer",
    *_STATE_TYPES,
    "mtp-num-layers",
    "optimizer",
    "sgd-momentum",
    "num-layers",
    "hidden-size",
    "num-attention-heads",
)
"""The flags that decide what a step is."""

_REQUIRED = (
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    "micro-batch-size",
    "global-batch-size",
)
MARKS = re.compile(rf"--(?:{'|'.join(_REQUIRED)})(?![\w-])")
"""Flags by which a text is Megatron's: it requires `--micro-batch-size`."""

_BEARING = re.compile(
    r"fp8|fp4|overlap|tp-comm|moe-|num-experts|no-|cuda-graph|use-mcore|mtp-|recompute|fsdp"
    r"|distribute-saved|checkpoint-(num|act)|activations-checkpoint|.*cross-entropy|.*-dtype$"
    r"|defer-embedding|delay-wgrad|heterogeneous"
)
"""Flags that bear on time or memory, and are not read."""

_FOREIGN = (
    "deepspeed",
    "deepspeed-config",
    "deepspeed_config",
    "zero-stage",
    "fsdp",
    "fsdp-config",
)
"""Flags of programs that are not Megatron-LM, which shard states as its flags do not say."""

_LEFT_OUT = {
    r".*offload.*": "states or activations stay on the GPU",
}
"""Flags that change memory or time, and as what the step is priced."""


def read(text: str, gpus: int) -> Configuration:
    """Returns what the flags in a text or a shell script say.

    Raises `BadInput` naming a flag that cannot be read or that the script leaves open.
    """
    flags = flags_of_script(text, READ)
    if not any(flags.gives(name) for name in _REQUIRED):
        raise BadInput(
            "it names flags of Megatron and gives none to a launch",
            expected="a launch script, or the flags and their values as a command has them",
        )
    _check_program(flags)
    launched = None if flags.commands is None else launched_by(flags.commands, text)
    return replace(of_flags(flags, gpus), launched=launched)


def read_mapping(
    mapping: Mapping[str, Any], gpus: int, paths: Mapping[str, str] | None = None
) -> Configuration:
    """Returns what a mapping of flags says, by their names with `-` or `_`.

    `paths` are what the file calls them, where that is not their name.
    """
    return of_flags(flags_of_mapping(mapping, paths or {}), gpus)


def _check_program(flags: MegatronFlags) -> None:
    """Raises `BadInput` for a launch of another program with flags of the same names."""
    flags.check_alone()
    for name in _FOREIGN:
        if flags.gives(name):
            raise BadInput(
                "no flag of Megatron-LM: its program shards states in a way that is not read",
                field=flags.path(name),
                expected="a launch of Megatron-LM, or DeepSpeed's JSON or accelerate's YAML itself",
            )


def of_flags(flags: MegatronFlags, gpus: int) -> Configuration:
    """Returns what flags say; raises `BadInput` naming one that cannot be read."""
    for degree in _OTHER_DEGREES:
        only_one(flags.number(degree, 1, least=0), flags.path(degree))
    if "yaml-cfg" in flags:
        raise BadInput(
            "names another file, which says what the flags leave out",
            field=flags.path("yaml-cfg"),
            expected="the flags themselves",
        )
    stages = flags.number("pipeline-model-parallel-size", 1)
    _check_predictors(flags)
    cut = stages_of(flags, stages)
    tensor = flags.number("tensor-model-parallel-size", 1)
    of_stage = divided(gpus, stages, "GPUs", flags.path("pipeline-model-parallel-size"))
    of_tensor = divided(of_stage, tensor, "GPUs", flags.path("tensor-model-parallel-size"))
    context = flags.number("context-parallel-size", 1)
    data = divided(of_tensor, context, "GPUs", flags.path("context-parallel-size"))
    expert = flags.number("expert-model-parallel-size", 1)
    of_experts = flags.number("expert-tensor-parallel-size", tensor)
    path = flags.path("expert-tensor-parallel-size")
    whole_experts = has_whole_experts(of_experts, tensor, expert, path)
    replicas = flags.number("num-distributed-optimizer-instances", 1)
    shards = divided(data, replicas, "devices", flags.path("num-distributed-optimizer-instances"))
    samples = flags.number("micro-batch-size", 1)
    batch = flags.number("global-batch-size", samples * data)
    notes: list[str] = []
    _rampup(flags, batch, notes)
    recompute, layers_again, parts = _recomputed(flags, notes)
    stated = _stated(flags, notes)
    flags.ignore("micro-batch-size", "num-query-groups", "ffn-hidden-size")
    parallelism = Parallelism(
        replicas=replicas,
        shards=shards,
        tensor=tensor,
        expert=expert,
        whole_experts=whole_experts,
        context=context,
        context_form=_context_form(flags),
        sequence="sequence-parallel" in flags,
        zero=_zero(flags),
        recompute=recompute,
        recompute_layers=layers_again,
        recompute_modules=parts,
        micro_batches=divided(batch, samples * data, "samples", flags.path("global-batch-size")),
    )
    length = flags.maybe_number("seq-length")
    model = {
        "layers": flags.maybe_number("num-layers"),
        "hidden size": flags.maybe_number("hidden-size"),
        "attention heads": flags.maybe_number("num-attention-heads"),
    }
    named = named_model(flags, tensor)
    check_spelling(flags, READ)
    return Configuration(
        trainer=NAME,
        parallelism=parallelism,
        batch=batch,
        sequence_length=length,
        unread=[*notes, *_unread(flags)],
        stages=stages,
        schedule="1f1b" if cut.each == 1 and cut.layers is None else "interleaved",
        stages_per_rank=cut.each,
        layers_per_stage=cut.layers,
        ends=cut.ends,
        stated=stated,
        left_out=list(_left_out(flags)),
        model={name: size for name, size in model.items() if size is not None},
        named=named,
    )


def _context_form(flags: MegatronFlags) -> ContextForm:
    """Returns how attention sees all positions; raises `BadInput` for two forms at once
    (`a2a+p2p`)."""
    forms = {name: form for form, name in COMMUNICATION.items()}
    given = set(flags.values("cp-comm-type"))
    if len(given) > 1:
        raise BadInput(
            f"got {' '.join(sorted(given))[:60]}",
            field=flags.path("cp-comm-type"),
            expected="one form for all layers",
        )
    return forms[flags.word("cp-comm-type", "p2p", forms)]


def _unread(flags: MegatronFlags) -> Iterator[str]:
    for name in flags.unread():
        if _BEARING.match(name) and not any(re.fullmatch(one, name) for one in _LEFT_OUT):
            yield flags.path(name)


def _left_out(flags: MegatronFlags) -> Iterator[str]:
    for name in flags.unread():
        for pattern, instead in _LEFT_OUT.items():
            if re.fullmatch(pattern, name) and not name.startswith("no-"):
                yield f"{flags.path(name)}: priced with {instead}"


def _stated(flags: MegatronFlags, notes: list[str]) -> dict[str, str]:
    """Returns the options that the flags state: Megatron's program, gradients, the optimizer."""
    stated = {"framework": MEGATRON}
    wide = _bits(flags, "main-grads-dtype") == 32
    # megatron/training/arguments.py: bf16 gradients add up and are reduced in float32.
    in_float32 = "accumulate-allreduce-grads-in-fp32" in flags or "bf16" in flags
    if in_float32 and wide and "grad-reduce-in-bf16" not in flags:
        stated["gradients"] = "float32"
    flags.ignore("fp16")
    name = flags.word("optimizer", "adam")
    if (
        name == "sgd"
        and _float_of(flags.word("sgd-momentum", "0.9"), flags.path("sgd-momentum")) > 0
    ):
        name = "momentum"
    stated.update(optimizer_of(name, flags.path("optimizer"), notes))
    stated.update(_state(flags))
    precision = precisions.of_megatron(flags)
    if precision is not None:
        stated[precisions.PRECISION] = precision
        if any(flag in flags for flag in _ROUNDED_WEIGHTS):
            stated["weights"] = ROUNDED
    if "cross-entropy-loss-fusion" in flags:
        if flags.word("cross-entropy-fusion-impl", "native") == "te":
            stated["loss"] = CONVERTED
    else:
        flags.ignore("cross-entropy-fusion-impl")
    return stated


def _state(flags: MegatronFlags) -> dict[str, str]:
    """Returns what the precision-aware optimizer keeps.

    Of float32 main parameters it stores the 16 bits that bfloat16 parameters lack (Transformer
    Engine's `store_param_remainders`), but the whole of them where products round with scales of
    the step itself (Megatron's distributed optimizer). Raises `BadInput` for types without this
    optimizer.
    """
    copy, first, second = (_bits(flags, name) for name in _STATE_TYPES)
    if "use-precision-aware-optimizer" not in flags:
        for name, bits in zip(_STATE_TYPES, (copy, first, second), strict=True):
            if bits != 32:
                raise BadInput(
                    f"got {flags.word(name, '')[:40]!r}, which Megatron takes only with "
                    "--use-precision-aware-optimizer",
                    field=flags.path(name),
                    expected="fp32, or that flag",
                )
        return {}
    delayed = flags.word("fp8-recipe", "delayed") == "delayed"
    remainders = "bf16" in flags and (delayed or "fp8-format" not in flags)
    return {"state": f"{16 if remainders else copy}:{first}:{second}"}


def _bits(flags: MegatronFlags, name: str) -> int:
    """Returns the bits of a dtype, by Megatron's or torch's name; float32 unless given."""
    word = flags.word(name, "fp32")
    known = [one for one, bits in _BITS.items() if bits > 8 or name.startswith("exp-avg")]
    if word.removeprefix("torch.") not in known:
        raise BadInput(f"got {word[:40]!r}", field=flags.path(name), expected=", ".join(known))
    return _BITS[word.removeprefix("torch.")]


def _check_predictors(flags: MegatronFlags) -> None:
    """Raises `BadInput` for layers that predict further tokens, which no graph here has."""
    count = flags.number("mtp-num-layers", 0, least=0)
    if count:
        raise BadInput(
            f"got {count}: each adds a layer, a projection of two hidden states to one and another "
            "loss over the vocabulary, which take memory and time in the last stage",
            field=flags.path("mtp-num-layers"),
            expected="0; captured models have no layers that predict further tokens",
        )


def _float_of(text: str, field: str) -> float:
    """Returns a number. Raises `BadInput` for anything else."""
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"got {text[:40]!r}", field=field, expected="a number") from None


def _rampup(flags: MegatronFlags, batch: int, notes: list[str]) -> None:
    """Adds a note where batches grow to the global one, of which the step is priced.

    Raises `BadInput` for other values than the three that Megatron takes.
    """
    path, given = flags.path("rampup-batch-size"), flags.values("rampup-batch-size")
    if "rampup-batch-size" not in flags:
        return
    if len(given) != len(_RAMPUP):
        raise BadInput(
            f"got {len(given)} values", field=path, expected=f"three numbers: {', '.join(_RAMPUP)}"
        )
    start, step, _ = (whole_number(value, path) for value in given)
    divided(batch - start, step, "samples of growth", path)
    if start != batch:
        notes.append(f"{path}: batches grow from {start} to {batch}, of which the step is priced")


def _zero(flags: MegatronFlags) -> int:
    strategy = flags.word("data-parallel-sharding-strategy", "no_shard", STRATEGIES)
    distributed = "use-distributed-optimizer" in flags
    if "use-torch-fsdp2" in flags:
        return 3
    if "use-megatron-fsdp" in flags or "use-custom-fsdp" in flags:
        return STRATEGIES[strategy]
    return 1 if distributed else 0


def _recomputed(
    flags: MegatronFlags, notes: list[str]
) -> tuple[Recomputed, int | UnsetType, tuple[Part, ...] | UnsetType]:
    """Returns what runs again, of how many layers and which parts of these where the flags say so
    and it is priced."""
    granularity = flags.word("recompute-granularity", "", ("", "full", "selective"))
    method = flags.word("recompute-method", "uniform")
    layers = flags.number("recompute-num-layers", 1)
    modules = flags.values("recompute-modules") or ["core_attn"]
    old = [flags.path(flag) for flag in _OLD_FULL if flag in flags]
    if granularity == "full":
        if method == "block":
            return "full", layers, UNSET
        if layers != 1:
            notes.append(
                f"{flags.path('recompute-method')} {method[:20]} in {layers} layers: read as the "
                "recomputation of every layer by itself"
            )
        return "full", UNSET, UNSET
    selective = "recompute-activations" in flags
    if granularity == "selective" or selective:
        known = tuple(part for part in get_args(Part) if part in modules)
        others = [name for name in modules if name not in known]
        if others:
            notes.append(
                f"{flags.path('recompute-modules')} {' '.join(others)[:80]}: kept, not recomputed"
            )
        if set(modules) == set(ALL_BUT_PRODUCTS):
            return "selective", UNSET, UNSET
        return ("selective", UNSET, known) if known else ("none", UNSET, UNSET)
    if old:
        notes.append(f"{old[0]}: read as the recomputation of every layer by itself")
        return "full", UNSET, UNSET
    return "none", UNSET, UNSET
