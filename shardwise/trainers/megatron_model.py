"""Megatron-LM: the arguments that say a model, and what of it they cannot say.

Defaults are those of megatron/training/arguments.py; those by which Megatron would train another
model are written whatever they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from shardwise.documents.model_facts import ModelFacts
from shardwise.trainers.job import Job

PADDING = 128
"""Megatron pads the vocabulary to a multiple of this for each device of a tensor group."""


def model_flags(job: Job) -> list[str]:
    """Returns the arguments of a plan's model, a comment where its sizes are not known."""
    facts = job.facts
    if facts is None:
        return ["# --num-layers, --hidden-size, --num-attention-heads, … of your model"]
    return [*_sizes(facts, job), *_experts(facts), *_positions(facts, job), *_options(facts)]


def model_unsaid(job: Job) -> Iterator[str]:
    """Yields what of a plan's model the arguments cannot say."""
    facts = job.facts
    if facts is None:
        yield f"The model: the sizes of {job.name[:60]!r}; fill in MODEL."
        return
    if facts.heads is None or not (facts.feed_forward or facts.expert_feed_forward):
        yield "The blocks: the graph does not show attention and feed-forward layers of Megatron's."
        return
    unlike = {
        "attention in both directions": facts.causal is False,
        "attention and feed-forward side by side": facts.parallel,
        "norms of another kind or number": facts.norm is None,
        "biases in some products of a block": facts.bias is None
        or (facts.bias and facts.qkv_bias is False),
        f"the activation function {facts.activation or 'of the feed-forward layer'}": (
            _activation(facts) is None
        ),
        "positions that are neither learned nor rotated": facts.positions is None,
        "several probabilities of dropout": facts.dropout is None,
    }
    for what, is_so in unlike.items():
        if is_so:
            yield f"The model has {what}, which Megatron's arguments do not say."
    if facts.positions == "rotary" and facts.rotary_base is None:
        yield "The base of the rotation: the graph does not show it; Megatron's default is 10000."
    if facts.experts is not UNSET:
        yield (
            "The router: its scores, their normalisation and losses; Megatron takes the softmax of "
            "the chosen experts (--moe-router-pre-softmax, --moe-router-score-function, "
            "--moe-aux-loss-coeff)."
        )
    padded = _padded(facts.vocabulary, job.parallelism.tensor)
    if padded > facts.vocabulary:
        yield (
            f"The vocabulary: Megatron pads {facts.vocabulary:,} words to {padded:,}, a multiple "
            "of the tensor degree."
        )


def _sizes(facts: ModelFacts, job: Job) -> list[str]:
    lines = [f"--num-layers {facts.layers}", f"--hidden-size {facts.hidden}"]
    if facts.feed_forward is not None and facts.experts is UNSET:
        lines.append(f"--ffn-hidden-size {facts.feed_forward}")
    if facts.heads is not None:
        lines.append(f"--num-attention-heads {facts.heads}")
        if facts.key_value_heads not in (None, facts.heads):
            lines.append(f"--group-query-attention --num-query-groups {facts.key_value_heads}")
        if facts.head_size is not None and facts.head_size * facts.heads != facts.hidden:
            lines.append(f"--kv-channels {facts.head_size}")
    lines.append(f"--vocab-size {facts.vocabulary}")
    multiple = divisor(facts.vocabulary, job.parallelism.tensor)
    if multiple != PADDING:
        lines.append(f"--make-vocab-size-divisible-by {multiple}")
    if not facts.tied:
        lines.append("--untie-embeddings-and-output-weights")
    return lines


def _experts(facts: ModelFacts) -> list[str]:
    """Returns the arguments of a mixture, whose products are grouped as they are priced."""
    if facts.experts is UNSET:
        return []
    lines = [
        f"--num-experts {facts.experts} --moe-router-topk {facts.experts_per_token}",
        f"--moe-ffn-hidden-size {facts.expert_feed_forward}",
        "--moe-grouped-gemm",
    ]
    if facts.feed_forward is not None:
        lines.append(f"--moe-shared-expert-intermediate-size {facts.feed_forward}")
    return lines


def _positions(facts: ModelFacts, job: Job) -> list[str]:
    rows = facts.position_rows or (job.model.positions if job.model else 0)
    lines = [f"--max-position-embeddings {max(rows, job.sequence_length or 1)}"]
    if facts.positions == "learned":
        return ["--position-embedding-type learned_absolute", *lines]
    if facts.positions != "rotary":
        return lines
    base = "" if facts.rotary_base is None else f" --rotary-base {int(facts.rotary_base)}"
    share = f" --rotary-percent {facts.rotary_share:g}" if facts.rotary_share else ""
    return [f"--position-embedding-type rope{base}{share}", *lines]


def _options(facts: ModelFacts) -> list[str]:
    lines = []
    if facts.dropout is not None:
        lines.append(f"--hidden-dropout {facts.dropout:g}")
    if facts.attention_dropout is not None:
        lines.append(f"--attention-dropout {facts.attention_dropout:g}")
    if facts.norm is not None:
        lines.append(f"--normalization {facts.norm}")
    if facts.norm_epsilon is not None:
        lines.append(f"--norm-epsilon {facts.norm_epsilon:g}")
    if facts.bias is False:
        lines.append("--disable-bias-linear")
        if facts.qkv_bias:
            lines.append("--add-qkv-bias")
    if facts.query_key_norm:
        lines.append("--qk-layernorm")
    activation = _activation(facts)
    return [*lines, activation] if activation else lines


def _activation(facts: ModelFacts) -> str | None:
    """Returns the flag of the activation function, empty for the default; None where none says it.

    With biases Megatron fuses the approximation by tanh, without or unfused it is exact.
    """
    if facts.gated:
        return "--swiglu" if facts.activation == "silu" else None
    if facts.activation == "gelu":
        return "--no-bias-gelu-fusion" if facts.bias else ""
    return "" if facts.activation == "gelu-tanh" and facts.bias else None


def divisor(vocabulary: int, tensor: int) -> int:
    """Returns the multiple with which Megatron pads the least: its own where nothing is padded."""
    multiple = PADDING
    while multiple > 1 and vocabulary % (multiple * tensor):
        multiple //= 2
    return multiple


def _padded(vocabulary: int, tensor: int) -> int:
    multiple = divisor(vocabulary, tensor) * tensor
    return -(-vocabulary // multiple) * multiple
