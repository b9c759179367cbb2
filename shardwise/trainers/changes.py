"""In what two strategies of the whole model differ, in words."""

from __future__ import annotations

from shardwise.documents.parallelism import Parallelism, recomputation_text

MICRO_BATCHES, RECOMPUTATION, ZERO = "micro-batches", "recomputation", "ZeRO stage"
EXTENT, TENSOR, SEQUENCE = "shards", "tensor parallelism", "sequence parallelism"
EXPERT = "expert parallelism"
CONTEXT = "context parallelism"


def changes(given: Parallelism, other: Parallelism) -> list[str]:
    """Returns the fields in which another strategy on as many devices differs.

    What follows from one field is not counted as another: the devices that are left for samples
    from the degree of tensor parallelism, sequence parallelism where one of both degrees is 1, the
    extent of shards where one of both has none.
    """
    fields = []
    if given.micro_batches != other.micro_batches:
        fields.append(MICRO_BATCHES)
    if recomputation_text(given) != recomputation_text(other):
        fields.append(RECOMPUTATION)
    if given.tensor != other.tensor:
        fields.append(TENSOR)
    if given.sequence != other.sequence and min(given.tensor, other.tensor) > 1:
        fields.append(SEQUENCE)
    if (given.expert, given.whole_experts) != (other.expert, other.whole_experts):
        fields.append(EXPERT)
    if _form(given) != _form(other):
        fields.append(CONTEXT)
    divided = min(given.data * given.context, other.data * other.context) > 1
    if given.zero != other.zero and divided:
        fields.append(ZERO)
    if (given.replicas > 1) != (other.replicas > 1) and divided and min(given.zero, other.zero):
        fields.append(EXTENT)
    return fields


def change_text(given: Parallelism, other: Parallelism) -> str:
    """Returns text such as `8 micro-batches instead of 4, full recomputation instead of none`."""
    words = {
        MICRO_BATCHES: f"{_counted(other.micro_batches)} instead of {given.micro_batches}",
        RECOMPUTATION: (
            f"{_word(recomputation_text(other))} recomputation instead of "
            f"{recomputation_text(given)}"
        ),
        TENSOR: (
            f"tp {other.tensor}{' with sequence parallelism' * _begins_sequence(given, other)} "
            f"instead of {given.tensor}"
        ),
        EXPERT: f"ep {_experts(other)} instead of {_experts(given)}",
        CONTEXT: f"cp {_form(other) or 1} instead of {_form(given) or 1}",
        SEQUENCE: f"{'with' if other.sequence else 'without'} sequence parallelism",
        ZERO: f"{_stage(other.zero)} instead of {_stage(given.zero)}",
        EXTENT: f"shards over {other.shards} devices instead of {given.shards}",
    }
    return ", ".join(words[field] for field in changes(given, other))


def _form(one: Parallelism) -> str:
    return f"{one.context} ({one.context_form})" if one.context > 1 else ""


def _experts(one: Parallelism) -> str:
    return f"{one.expert}{' of whole experts' if one.whole_experts else ''}"


def _begins_sequence(given: Parallelism, other: Parallelism) -> bool:
    """Returns whether sequence parallelism comes with tensor parallelism, not as its own change."""
    return other.sequence and given.tensor == 1


def _counted(count: int) -> str:
    return f"{count} micro-batch" + ("es" if count > 1 else "")


def _word(recompute: str) -> str:
    return "no" if recompute == "none" else recompute


def _stage(zero: int) -> str:
    return f"ZeRO-{zero}" if zero else "no ZeRO"
