"""Operators that ATen has no name for, whole as their fused kernels compute them.

**Experts.** `shardwise::expert_linear(x, w, e)`: every token has k experts, and each of its k
copies goes through the matrix of its own expert:

    y[t, c, n] = Σ_i x[t, c, i] · w[e[t, c], n, i]

x [tokens, k, in], w [experts, out, in], e [tokens, k]. transformers' own forms sort all tokens of
the batch by expert (`grouped_mm`: a global sort, which no data-parallel training does), copy a
matrix for every token (`batched_mm`: terabytes at real sizes) or branch on the data (`eager`:
cannot be exported). Llama 4's repeats every token for every expert, most of them times zero.

**Attention with sinks.** `shardwise::sink_attention(q, k, v, s, scale, window, first)`: causal
attention of which each head has one more logit that no value belongs to, and with a window w > 0
the last w keys alone (gpt-oss, OpenAI 2025):

    y[b, h, i] = Σ_j exp(a[i, j]) · v[b, h, j] / (exp(s[h]) + Σ_j exp(a[i, j]))
    a[i, j]    = scale · q[b, h, i] · k[b, h, j],  j ≤ first + i,  j > first + i - w

transformers' own form makes a mask of the whole batch and keeps every score. Windows without sinks
(Mistral, Gemma 3) are the same with s = -∞: a window's kernel skips the keys outside of it.

Both run on real tensors and have gradients, so that a captured program can be executed; so do the
scans (`shardwise/capture/scans.py`).
"""

from __future__ import annotations

from functools import cache
from types import MethodType
from typing import Any

from shardwise.capture.scans import define, scan_operators

EXPERTS = "shardwise"
"""The name under which transformers knows our form of its experts."""

SINKS = "shardwise_sinks"
"""The name under which transformers knows our form of attention with sinks."""

WINDOWS = "shardwise_windows"
"""The name of our form of causal attention of which some layers have windows."""


@cache
def operators() -> Any:
    """Returns `torch.ops.shardwise`, with the operators of this module and of scans registered."""
    import torch

    _register_expert_linear(torch)
    _register_sink_attention(torch)
    return scan_operators()


def whole_experts(model: Any) -> None:
    """Makes a transformers model compute its experts by `expert_linear`; others are unchanged."""
    for module in model.modules():
        if type(module).__name__ == "Llama4TextMoe":
            module.forward = MethodType(_routed_llama4, module)
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError:  # an older transformers writes out its experts
        return
    if not any(hasattr(module, "_apply_gate") for module in model.modules()):
        return
    ALL_EXPERTS_FUNCTIONS.register(EXPERTS, _experts)
    model.config._experts_implementation = EXPERTS


def whole_sinks(model: Any) -> None:
    """Makes a transformers model whose attention has sinks compute it by `sink_attention`.

    Others are unchanged, and those with dropout in attention or without a causal mask.
    """
    layers = [m for m in model.modules() if hasattr(m, "sinks") and hasattr(m, "scaling")]
    if not layers or any(
        getattr(layer, "attention_dropout", 0.0) or not getattr(layer, "is_causal", False)
        for layer in layers
    ):
        return
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(SINKS, _attention_with_sinks)
    for config in {
        id(m.config): m.config for m in model.modules() if hasattr(m, "config")
    }.values():
        config._attn_implementation = SINKS


def whole_windows(model: Any) -> None:
    """Makes a transformers model with sliding windows compute these by `sink_attention`.

    Others are unchanged, and configurations whose attention is not causal, or not sdpa.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    kinds: dict[int, tuple[Any, bool]] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(module, "scaling"):
            causal = bool(getattr(module, "is_causal", False))
            _, before = kinds.get(id(config), (config, True))
            kinds[id(config)] = config, before and causal
    for config, causal in kinds.values():
        window = getattr(config, "sliding_window", None)
        if causal and isinstance(window, int) and config._attn_implementation == "sdpa":
            ALL_ATTENTION_FUNCTIONS.register(WINDOWS, _attention_with_windows)
            config._attn_implementation = WINDOWS


def _experts(self: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """Runs the forward pass of a transformers `Experts` module, [tokens, hidden] to the same."""
    apply = operators().expert_linear.default

    def linear(x: Any, name: str) -> Any:
        weight = getattr(self, name)
        y = apply(x, weight.transpose(1, 2) if self.is_transposed else weight, top_k_index)
        return y + getattr(self, f"{name}_bias")[top_k_index] if self.has_bias else y

    x = hidden_states.unsqueeze(1).expand(-1, top_k_index.shape[-1], -1)
    if self.has_gate:
        x = self._apply_gate(linear(x, "gate_up_proj"))
    else:
        x = self.act_fn(linear(x, "up_proj"))
    x = linear(x, "down_proj")
    if getattr(self, "has_post_expert_norm", False):
        x = self.post_expert_norm(x)
    y = (x * top_k_weights.unsqueeze(-1).to(x.dtype)).sum(dim=1)
    return y.to(hidden_states.dtype)


def _routed_llama4(self: Any, hidden_states: Any) -> Any:
    """Runs the forward pass of a `Llama4TextMoe`; the experts that a token does not choose add 0.

    Its router gives every expert's score, 0 for those: the chosen ones are the largest.
    """
    experts, apply = self.experts, operators().expert_linear.default
    x = hidden_states.reshape(-1, self.hidden_dim)
    all_scores, logits = self.router(x)
    scores, chosen = all_scores.topk(self.top_k, dim=1)
    routed = x.unsqueeze(1) * scores.unsqueeze(-1)
    gate, up = apply(routed, experts.gate_up_proj.transpose(1, 2), chosen).chunk(2, dim=-1)
    y = apply(up * experts.act_fn(gate), experts.down_proj.transpose(1, 2), chosen)
    return self.shared_expert(x) + y.sum(dim=1), logits


def _attention_with_sinks(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    scaling: float,
    sliding_window: int | None = None,
    s_aux: Any = None,
    **kwargs: Any,
) -> Any:
    """Computes what transformers asks of an attention function, without a mask tensor."""
    if attention_mask is not None:
        raise ValueError("attention with sinks is captured for full sequences")
    sinks = query.new_full((query.shape[1],), -float("inf")) if s_aux is None else s_aux
    apply = operators().sink_attention.default
    y = apply(query, key, value, sinks, scaling, sliding_window or 0, 0)
    return y.transpose(1, 2).contiguous(), None


def _attention_with_windows(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> Any:
    """Computes attention as transformers' sdpa does, but a window that hides keys by our form."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    hides = sliding_window is not None and sliding_window < key.shape[2] == query.shape[2]
    if (
        not hides
        or attention_mask is not None
        or dropout
        or kwargs.get("position_bias") is not None
    ):
        more = {"scaling": scaling, "dropout": dropout, **kwargs}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _attention_with_sinks(
        module, query, key, value, None, scaling=scale, sliding_window=sliding_window
    )


def _register_expert_linear(torch: Any) -> None:
    def make(input: Any, weight: Any, experts: Any) -> Any:
        out = input.new_zeros(*input.shape[:-1], weight.shape[1])
        for expert in range(weight.shape[0]):
            chosen = experts == expert
            out[chosen] = input[chosen] @ weight[expert].t()
        return out

    def fake(input: Any, weight: Any, experts: Any) -> Any:
        return input.new_empty(*input.shape[:-1], weight.shape[1])

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def gradient(ctx: Any, grad: Any) -> Any:
        input, weight, experts = ctx.saved_tensors
        to_input = operators().expert_linear.default(grad, weight.transpose(1, 2), experts)
        to_weight = torch.zeros_like(weight)
        for expert in range(weight.shape[0]):
            chosen = experts == expert
            to_weight[expert] = grad[chosen].t() @ input[chosen]
        return to_input, to_weight, None

    schema = "(Tensor input, Tensor weight, Tensor experts) -> Tensor"
    define(torch, "expert_linear", schema, make, fake, keep, gradient)


def _register_sink_attention(torch: Any) -> None:
    def make(
        query: Any, key: Any, value: Any, sinks: Any, scale: float, window: int, first: int
    ) -> Any:
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        scores = query @ key.transpose(-1, -2) * scale
        rows = torch.arange(first, first + query.shape[2], device=query.device)[:, None]
        columns = torch.arange(key.shape[2], device=query.device)[None, :]
        hidden = columns > rows
        if window:
            hidden = hidden | (columns <= rows - window)
        scores = scores.masked_fill(hidden, -float("inf"))
        sink = sinks.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1] @ value

    def fake(
        query: Any, key: Any, value: Any, sinks: Any, scale: float, window: int, first: int
    ) -> Any:
        return query.new_empty(*query.shape[:-1], value.shape[-1])

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        # The fused kernel keeps its result too, to rebuild the weights of the scores.
        ctx.save_for_backward(*inputs[:4], output)
        ctx.numbers = inputs[4:]

    def gradient(ctx: Any, grad: Any) -> Any:
        # The scores are recomputed, as in the fused kernel.
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors[:4]]
            made = make(*inputs, *ctx.numbers)
            return (*torch.autograd.grad(made, inputs, grad), None, None, None)

    schema = (
        "(Tensor query, Tensor key, Tensor value, Tensor sinks, float scale, int window, "
        "int first) -> Tensor"
    )
    define(torch, "sink_attention", schema, make, fake, keep, gradient)
