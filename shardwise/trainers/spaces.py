"""What trainers can express of a strategy for the whole model, each with its source.

    trainer     ZeRO     shards in copies  tensor, of it sequence parallelism  recomputation
    torchtitan  0, 2, 3  yes               always                              none, selective, full
    megatron    0, 1     yes               either                              none, selective, full
    deepspeed   0 to 3   no                -                                   none, full
    fsdp2       0, 2, 3  yes               either                              none, selective, full
    accelerate  0 to 3   of ZeRO-2 and 3   -                                   none, full
    nanotron    0, 1     no                either                              none, full

Full recomputation may be of some layers alone: of the first k in Megatron and FSDP2, of one in k in
torchtitan until 0.2 (`partial.py`). Micro-batches are any number in all of them (gradient
accumulation). ZeRO-2 of `fully_shard` is `reshard_after_forward=False`: parameters stay whole from
forward to backward. Not told apart is what a trainer recomputes in selective recomputation: ours
are all groups of a block without a product by weights (`peers/practitioners.py`), torchtitan's
policy saves every second product, Megatron's default is the core of attention alone.

torchtitan and Megatron have expert parallelism, whose devices are among those that divide samples;
experts have as much tensor parallelism as the rest (`expert_tensor_parallel_degree`,
`--expert-tensor-parallel-size`), though a file may have whole ones. Context parallelism has the
forms that `context` names; it is not beside expert parallelism here. Pipelines are beside the space
(`pipelines.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwise.cost.software import COMPILED, EAGER, MEGATRON
from shardwise.cost.step_settings import FLOAT32
from shardwise.documents.parallelism import ContextForm, Parallelism, Recomputed
from shardwise.errors import BadInput
from shardwise.pipeline.asked import ANY
from shardwise.trainers.partial import Layers

EVERY_RECOMPUTATION: tuple[Recomputed, ...] = ("none", "selective", "full")
ALL_OR_NOTHING: tuple[Recomputed, ...] = ("none", "full")


@dataclass(frozen=True)
class TrainerSpace:
    """What a trainer can express.

    `zero` are its ZeRO stages, `hybrid` those of which shards may have several copies (HSDP).
    `tensor` are the stages beside tensor parallelism over several shares of samples, none where it
    has no tensor parallelism; `sequence` says whether positions may, must or must not be split with
    it. `experts` are the stages beside expert parallelism, none where it has none. `sources` are
    where the trainer says so. `implies` are options of the program that it runs,
    by name and value, which count unless others are given. `layers` are the blocks that it can
    recompute instead of all. `context` are its forms of context parallelism.
    """

    zero: tuple[int, ...]
    hybrid: tuple[int, ...]
    tensor: tuple[int, ...]
    sequence: tuple[bool, ...]
    recompute: tuple[Recomputed, ...]
    sources: tuple[str, ...]
    experts: tuple[int, ...] = ()
    implies: Mapping[str, str] = field(default_factory=dict)
    layers: Layers = "all"
    context: tuple[ContextForm, ...] = ()

    def allows(self, parallelism: Parallelism) -> bool:
        """Returns whether a strategy is one of those that are tried for the trainer."""
        one = parallelism
        if one.recompute not in self.recompute:
            return False
        if one.tensor > 1 and (not self.tensor or one.sequence not in self.sequence):
            return False
        if one.whole_experts or (one.expert > 1 and one.zero not in self.experts):
            return False
        if one.context > 1 and one.context_form not in self.context:
            return False
        if one.data * one.context == 1:
            return True
        if one.zero and one.replicas > 1 and one.zero not in self.hybrid:
            return False
        return one.zero in (self.tensor if one.tensor > 1 else self.zero)


SPACES: Mapping[str, TrainerSpace] = {
    # DDP (dp_replicate alone) refuses a mesh of more than one dimension.
    "torchtitan": TrainerSpace(
        zero=(0, 2, 3),
        hybrid=(2, 3),
        tensor=(2, 3),
        sequence=(True,),
        recompute=EVERY_RECOMPUTATION,
        sources=(
            "torchtitan's job configuration (JobConfig): data_parallel_replicate_degree, "
            "data_parallel_shard_degree, fsdp_reshard_after_forward, activation_checkpoint.mode",
            "torchtitan's parallelize_llama: sequence parallelism in apply_tp, "
            '"DDP has not supported > 1D parallelism"',
            "torchtitan's published runs (its benchmarks folder) compile",
            "torchtitan's ParallelDims: expert_parallel_degree is taken out of dp_shard, and "
            "fully_shard of experts is over what is left of it",
            "torchtitan's ParallelDims: context_parallel_degree beside dp_shard, fully_shard over "
            "both; context_parallel_rotate_method: allgather, or alltoall, which is a ring",
        ),
        context=("gather", "ring"),
        experts=(2, 3),
        implies={"framework": COMPILED},
        # activation_checkpoint.selective_ac_option = "3": one layer in three, until 0.2.
        layers="every",
    ),
    # Megatron-FSDP, which has ZeRO 2 and 3, is another path with limits of its own.
    "megatron": TrainerSpace(
        zero=(0, 1),
        hybrid=(1,),
        tensor=(0, 1),
        sequence=(False, True),
        recompute=EVERY_RECOMPUTATION,
        sources=(
            "Megatron-LM's arguments: --use-distributed-optimizer, "
            "--num-distributed-optimizer-instances, --sequence-parallel, "
            "--recompute-granularity",
            "megatron/training/arguments.py: gradients of --bf16 add up in float32",
            "megatron/core/parallel_state.py: expert-model-parallel ranks are of the data-parallel "
            "ones, the expert-data-parallel group is the rest",
            "megatron/training/arguments.py: --context-parallel-size, --cp-comm-type p2p, "
            "all_gather, a2a; the distributed optimizer is over data and context parallel ranks",
        ),
        context=("gather", "ring", "ulysses"),
        experts=(0, 1),
        implies={"framework": MEGATRON, "gradients": FLOAT32},
        layers="first",  # --recompute-method block --recompute-num-layers
    ),
    # AutoTP (tensor_parallel.autotp_size) and MiCS need calls in the script, and are left out.
    "deepspeed": TrainerSpace(
        zero=(0, 1, 2, 3),
        hybrid=(),
        tensor=(),
        sequence=(),
        recompute=ALL_OR_NOTHING,
        sources=(
            "https://www.deepspeed.ai/docs/config-json/: zero_optimization.stage, "
            "gradient_accumulation_steps, activation_checkpointing",
            "its engine runs the script's model eagerly unless the script calls compile()",
        ),
        implies={"framework": EAGER},
    ),
    # Without fully_shard it is DistributedDataParallel, which goes with no tensor parallelism.
    "fsdp2": TrainerSpace(
        zero=(0, 2, 3),
        hybrid=(2, 3),
        tensor=(2, 3),
        sequence=(False, True),
        recompute=EVERY_RECOMPUTATION,
        layers="first",  # the script wraps the blocks that it wants
        sources=(
            "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html: a mesh of one "
            "or two dimensions, reshard_after_forward",
            "https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html: "
            "parallelize_module, SequenceParallel",
        ),
    ),
    # Its DeepSpeed plugin has ZeRO 1, its FSDP plugin the hybrid strategies.
    "accelerate": TrainerSpace(
        zero=(0, 1, 2, 3),
        hybrid=(2, 3),
        tensor=(),
        sequence=(),
        recompute=ALL_OR_NOTHING,
        sources=(
            "https://huggingface.co/docs/accelerate/package_reference/fsdp: sharding_strategy "
            "(SHARD_GRAD_OP, FULL_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2), "
            "activation_checkpointing",
            "https://huggingface.co/docs/accelerate/usage_guides/deepspeed: zero_stage",
            "https://huggingface.co/docs/accelerate/usage_guides/compilation: off unless "
            "dynamo_backend is set",
            "https://huggingface.co/docs/accelerate/concept_guides/context_parallelism: cp_size "
            "with FSDP2, cp_comm_strategy allgather or alltoall",
        ),
        context=("gather", "ring"),
        implies={"framework": EAGER},
    ),
    "nanotron": TrainerSpace(
        zero=(0, 1),
        hybrid=(),
        tensor=(0, 1),
        sequence=(False, True),
        recompute=ALL_OR_NOTHING,
        sources=(
            "nanotron's ParallelismArgs: dp, tp, tp_mode (reduce_scatter is "
            "sequence parallelism), recompute_layer",
            "nanotron's Config: optimizer.zero_stage, tokens.batch_accumulation_per_replica",
            "nanotron's examples: optimizer.accumulate_grad_in_fp32",
        ),
        implies={"framework": EAGER, "gradients": FLOAT32},
    ),
}
"""By the name that `--space` takes."""


READ_ONLY: Mapping[str, TrainerSpace] = {
    "maxtext": TrainerSpace(
        zero=(0, 1, 3),
        hybrid=(3,),
        tensor=(0, 1, 3),
        sequence=(False, True),
        recompute=EVERY_RECOMPUTATION,
        sources=(
            "MaxText's base.yml: mesh axes data, fsdp, tensor and tensor_sequence, remat_policy, "
            "shard_optimizer_over_data",
        ),
    ),
}
"""Trainers whose files are priced and that no plan is made for."""


def priced_space(trainer: str) -> TrainerSpace | None:
    """Returns the space in which a trainer's file has alternatives, None for `ANY`."""
    if trainer == ANY:
        return None
    return READ_ONLY[trainer] if trainer in READ_ONLY else space_of(trainer)


def space_of(trainer: str) -> TrainerSpace:
    """Returns the space of a trainer; raises `BadInput` for one that is not known."""
    if trainer not in SPACES:
        known = ", ".join((ANY, *SPACES))
        raise BadInput(f"unknown trainer {trainer[:80]!r}", field="space", expected=known)
    return SPACES[trainer]
