"""The model that Megatron's flags describe, as a configuration of transformers.

Defaults are those of megatron/training/arguments.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.errors import BadInput
from shardwise.trainers.configuration import NamedModel
from shardwise.trainers.megatron_flags import MegatronFlags

_TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Vocabularies of tokenizers that have only one."""

_DIVISIBLE_BY = 128
_OTHERS = (
    "num-experts",
    "multi-latent-attention",
    "squared-relu",
    "openai-gelu",
    "quick-geglu",
    "window-size",
    "hybrid-override-pattern",
    "hybrid-layer-pattern",
    "encoder-num-layers",
    "decoder-num-layers",
    "spec",
)
"""Flags of models that are neither a GPT nor a Llama nor a Qwen here."""


def named_model(flags: MegatronFlags, tensor: int) -> NamedModel:
    """Returns the model of the flags; what the flags leave out or open is `missing`."""
    other = next((name for name in _OTHERS if flags.gives(name)), None)
    if other is not None:
        return NamedModel(missing=f"a model without {flags.path(other)}, which is not built here")
    try:
        return _model(flags, tensor)
    except BadInput as error:
        return NamedModel(missing=str(error))


def _model(flags: MegatronFlags, tensor: int) -> NamedModel:
    layers, hidden, heads = (
        flags.maybe_number(name) for name in ("num-layers", "hidden-size", "num-attention-heads")
    )
    if layers is None or hidden is None or heads is None:
        return NamedModel(missing="--num-layers, --hidden-size and --num-attention-heads")
    gated = "swiglu" in flags
    wide = 4 * hidden if not gated else int(4 * hidden * 2 / 3) // 64 * 64
    wide = flags.number("ffn-hidden-size", wide)
    groups = flags.number("num-query-groups", 1) if "group-query-attention" in flags else heads
    tied = "untie-embeddings-and-output-weights" not in flags
    sizes: dict[str, int | bool] = {"tie_word_embeddings": tied}
    config = _family(flags, gated)
    if not config:
        return NamedModel(
            missing="the flags of a GPT (none of --swiglu, --normalization RMSNorm and rotary "
            "positions) or of a Llama (all of them, and --disable-bias-linear)"
        )
    if config == "GPT2Config":
        positions = flags.maybe_number("max-position-embeddings")
        positions = positions or flags.number("seq-length", 1024)
        sizes |= {"n_layer": layers, "n_embd": hidden, "n_head": heads}
        sizes |= {"n_inner": wide, "n_positions": positions}
        if groups != heads:
            return NamedModel(missing="a GPT without --group-query-attention")
    else:
        width = flags.number("kv-channels", max(1, hidden // heads))
        sizes |= {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": wide}
        sizes |= {"num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": width}
    vocabulary = _vocabulary(flags, tensor)
    if vocabulary is None:
        return NamedModel(config=config, fields=sizes, missing="--vocab-size")
    return NamedModel(config=config, fields={**sizes, "vocab_size": vocabulary})


def _family(flags: MegatronFlags, gated: bool) -> str:
    """Returns the class of transformers that has the flags' kind of blocks, "" if none has."""
    positions = flags.word("position-embedding-type", "learned_absolute")
    traits = (
        gated,
        flags.word("normalization", "LayerNorm") == "RMSNorm",
        positions == "rope" or "use-rotary-position-embeddings" in flags,
        "disable-bias-linear" in flags,
    )
    biased, normed = "add-qkv-bias" in flags, "qk-layernorm" in flags
    if all(traits) and not (biased and normed):
        return "Qwen2Config" if biased else "Qwen3Config" if normed else "LlamaConfig"
    return "" if any(traits[:3]) or normed or positions != "learned_absolute" else "GPT2Config"


def _vocabulary(flags: MegatronFlags, tensor: int) -> int | None:
    """Returns the padded size of the vocabulary, None where the flags do not say it."""
    words = flags.maybe_number("vocab-size")
    if words is None:
        words = _TOKENIZERS.get(flags.word("tokenizer-type", ""))
    if words is None:
        return None
    multiple = flags.number("make-vocab-size-divisible-by", _DIVISIBLE_BY) * tensor
    return -(-words // multiple) * multiple


def with_model_flags(flags: Mapping[str, object]) -> dict[str, object]:
    """Returns the flags of a mapping of NeMo or Megatron-Bridge with Megatron's names for what a
    block is made of."""
    found = dict(flags)
    activation = str(found.get("activation") or "")
    if "swiglu" in activation or found.get("gated_linear_unit"):
        found["swiglu"] = True
    if str(found.get("normalization", "")).lower() == "rmsnorm":
        found["normalization"] = "RMSNorm"
    if found.get("bias") is False or found.get("add_bias_linear") is False:
        found["disable_bias_linear"] = True
    if found.get("share_embeddings_and_output_weights") is False:
        found["untie_embeddings_and_output_weights"] = True
    if found.get("num_query_groups"):
        found["group_query_attention"] = True
    return found
