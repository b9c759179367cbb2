"""Products of tokens with the matrices of experts, one operator that ATen has no name for.

`shardwise::expert_linear(x, w, e)`: every token has k experts, and each of its k
copies goes through the matrix of its own expert:

    y[t, c, n] = Σ_i x[t, c, i] · w[e[t, c], n, i]

x [tokens, k, in], w [experts, out, in], e [tokens, k]. transformers' own forms sort all tokens of
the batch by expert (`grouped_mm`: a global sort, which no data-parallel training does), copy a
matrix for every token (`batched_mm`: terabytes at real sizes) or branch on the data (`eager`:
cannot be exported).

It runs on real tensors and has gradients, so that a captured program can be executed; so do the
scans (`shardwise/capture/scans.py`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from shardwise.capture.scans import define, scan_operators

EXPERTS = "shardwise"
"""The name under which transformers knows our form of its experts."""


@cache
def operators() -> Any:
    """Returns `torch.ops.shardwise`, with the operators of experts and of scans registered."""
    import torch

    _register_expert_linear(torch)
    return scan_operators()


def whole_experts(model: Any) -> None:
    """Makes a transformers model compute its experts by `expert_linear`; others are unchanged."""
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError:  # an older transformers writes out its experts
        return
    if not any(hasattr(module, "_apply_gate") for module in model.modules()):
        return
    ALL_EXPERTS_FUNCTIONS.register(EXPERTS, _experts)
    model.config._experts_implementation = EXPERTS


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
