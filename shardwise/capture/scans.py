"""Recurrences over the sequence, one operator each, as their fused kernels compute them.

**Mamba**, `shardwise::selective_scan(u, Δ, A, B, C)` (Gu & Dao 2023, Eq. 2 with Algorithm 2's
discretisation):

    h[b, d, n, s] = exp(A[d, n] · Δ[b, d, s]) · h[b, d, n, s-1]
                    + Δ[b, d, s] · B[b, n, s] · u[b, d, s]
    y[b, d, s]    = Σ_n C[b, n, s] · h[b, d, n, s]

u and Δ [batch, channels, seq], A [channels, state], B and C [batch, state, seq].

**Mamba-2**, `shardwise::chunk_scan(x, Δ, A, B, C)` (Dao & Gu 2024, Eq. 1 with scalar A; heads in
groups that share B and C):

    h[b, g, r, p, n, s] = exp(A[g, r] · Δ[b, s, g, r]) · h[b, g, r, p, n, s-1]
                          + Δ[b, s, g, r] · B[b, s, g, n] · x[b, s, g, r, p]
    y[b, s, g, r, p]    = Σ_n C[b, s, g, n] · h[b, g, r, p, n, s]

**Gated delta rule**, `shardwise::gated_delta_rule(q, k, v, γ, β)` (Yang et al. 2025, Eq. 10; Kimi
Linear has a decay γ for each channel of a key), with q and k of length one, q / √width:

    S[s] = exp(γ[s]) · S[s-1] + β[s] · k[s] (v[s] - (exp(γ[s]) · S[s-1])ᵀ k[s])ᵀ
    y[s] = S[s]ᵀ q[s]

q and k [batch, seq, groups, width], v [batch, seq, groups, heads, values], γ and β [batch, seq,
groups, heads], γ also with the width of keys.

Without these kernels transformers unrolls loops over steps or chunks, which keeps every state: tens
of thousands of operators. `mamba_ssm` and `fla` are what trainers use; `scan_implementation=eager`
captures transformers' own form.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from shardwise.errors import CaptureWarning

_MODELS = "transformers.models."


@contextlib.contextmanager
def whole_scans() -> Iterator[None]:
    """Makes models that are loaded compute their recurrences as one operator in this context.

    Warns afterwards of packages whose kernels were assumed.
    """
    said: set[str] = set()
    originals: list[tuple[Any, str, Any]] = []
    for module_name, module in list(sys.modules.items()):
        if module is None or not module_name.startswith(_MODELS):
            continue
        for name, (make, package) in _WHOLE.items():
            original = vars(module).get(name)
            if callable(original):
                originals.append((module, name, original))
                setattr(module, name, _replacing(make, original, package, said))
    try:
        yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)
    for package in sorted(said):
        warnings.warn(
            f"scans are those of {package}'s fused kernels; scan_implementation=eager captures "
            "transformers' own form",
            CaptureWarning,
            stacklevel=3,
        )


def _replacing(
    make: Callable[..., Any], original: Callable[..., Any], package: str, said: set[str]
) -> Callable[..., Any]:
    """Returns a function that computes a recurrence as one operator where that is possible."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        if made is None:
            return original(*args, **kwargs)
        if package:
            said.add(package)
        return made

    return compute


def _selective_scan(
    hidden_states: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **kwargs: Any,
) -> Any:
    """Computes transformers' `mamba_selective_scan` with the recurrence as one operator."""
    import torch

    if return_last_state:
        raise ValueError("training keeps no last state")
    if delta_bias is not None:
        dt = dt + delta_bias.to(dt.dtype)[..., None]
    if delta_softplus:
        dt = torch.nn.functional.softplus(dt)
    y = scan_operators().selective_scan.default(hidden_states, dt, A, B, C)
    if D is not None:
        y = y + hidden_states * D[None, :, None]
    return y * torch.nn.functional.silu(z) if z is not None else y


def _chunk_scan(
    hidden_states: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    chunk_size: int,
    D: Any = None,
    dt_bias: Any = None,
    initial_states: Any = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **kwargs: Any,
) -> Any:
    """Computes transformers' `mamba2_chunk_scan` with the recurrence as one operator; None where it
    has or leaves a state."""
    import torch

    if return_final_states or initial_states is not None:
        return None
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    if dt_softplus:
        dt = torch.nn.functional.softplus(dt)
    if dt_limit != (0.0, float("inf")):
        dt = torch.clamp(dt, min=dt_limit[0], max=dt_limit[1])
    groups = B.shape[2]
    grouped = [x.unflatten(-1, (groups, -1)) for x in (dt, A)]
    x = hidden_states.unflatten(2, (groups, -1))
    y = scan_operators().chunk_scan.default(x, *grouped, B, C).flatten(2, 3)
    return y if D is None else y + D[..., None] * hidden_states


def _gated_delta_rule(
    query: Any,
    key: Any,
    value: Any,
    g: Any,
    beta: Any,
    chunk_size: int = 64,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> Any:
    """Computes transformers' chunked delta rule as one operator; None where it has or leaves a
    state, or takes keys of any length."""
    if initial_state is not None or output_final_state or not use_qk_l2norm_in_kernel:
        return None
    groups = key.shape[2]
    value, g, beta = (x.unflatten(2, (groups, -1)) for x in (value, g, beta))
    return scan_operators().gated_delta_rule.default(query, key, value, g, beta).flatten(2, 3), None


@cache
def scan_operators() -> Any:
    """Returns `torch.ops.shardwise`, with the operators of this module registered."""
    import torch

    _register_scans(torch)
    return torch.ops.shardwise


_WHOLE: Mapping[str, tuple[Callable[..., Any], str]] = {
    "mamba_selective_scan": (_selective_scan, ""),
    "mamba2_chunk_scan": (_chunk_scan, "mamba_ssm"),
    "torch_chunk_gated_delta_rule": (_gated_delta_rule, "fla"),
    "chunk_kimi_delta_attention": (_gated_delta_rule, "fla"),
}
"""By the name of transformers' function: ours, and the package whose kernels it stands for."""


def _register_scans(torch: Any) -> None:
    """Defines the operators of this module in `torch.ops.shardwise`."""

    def selective_scan(hidden: Any, dt: Any, A: Any, B: Any, C: Any) -> Any:
        state = hidden.new_zeros(*hidden.shape[:2], A.shape[1], dtype=dt.dtype)
        steps = []
        for s in range(hidden.shape[2]):
            decay = torch.exp(A * dt[:, :, s, None])
            state = decay * state + dt[:, :, s, None] * B[:, None, :, s] * hidden[:, :, s, None]
            steps.append((state * C[:, None, :, s]).sum(-1))
        return torch.stack(steps, dim=-1).to(hidden.dtype)

    def chunk_scan(hidden: Any, dt: Any, A: Any, B: Any, C: Any) -> Any:
        batch, _, *rest = hidden.shape
        wide = torch.promote_types(torch.float32, hidden.dtype)
        state = hidden.new_zeros(batch, *rest, B.shape[-1], dtype=wide)
        steps = []
        for s in range(hidden.shape[1]):
            step = dt[:, s, ..., None].to(wide)
            into = (step * hidden[:, s])[..., None] * B[:, s, :, None, None]
            state = torch.exp(A[..., None] * step)[..., None] * state + into
            steps.append((state * C[:, s, :, None, None]).sum(-1))
        return torch.stack(steps, dim=1).to(hidden.dtype)

    def gated_delta_rule(query: Any, key: Any, value: Any, g: Any, beta: Any) -> Any:
        wide = torch.promote_types(torch.float32, query.dtype)
        query, key = (torch.nn.functional.normalize(x.to(wide), dim=-1) for x in (query, key))
        query = query * query.shape[-1] ** -0.5
        decay = torch.exp(g.to(wide) if g.dim() == 5 else g.to(wide)[..., None])
        batch, seq, groups, heads, values = value.shape
        state = value.new_zeros(batch, groups, heads, key.shape[-1], values, dtype=wide)
        steps = []
        for s in range(seq):
            at = key[:, s, :, None, :, None]
            state = decay[:, s, ..., None] * state
            error = value[:, s].to(wide) - (state * at).sum(-2)
            state = state + at * (beta[:, s, ..., None].to(wide) * error)[..., None, :]
            steps.append((state * query[:, s, :, None, :, None]).sum(-2))
        return torch.stack(steps, dim=1).to(value.dtype)

    for make, inputs, like in (
        (selective_scan, ("hidden", "dt", "A", "B", "C"), 0),
        (chunk_scan, ("hidden", "dt", "A", "B", "C"), 0),
        (gated_delta_rule, ("query", "key", "value", "g", "beta"), 2),
    ):
        _define_scan(torch, make, inputs, like)


def _define_scan(torch: Any, make: Callable[..., Any], inputs: tuple[str, ...], like: int) -> None:
    """Defines a scan whose result has the shape of one of its inputs.

    Its states are recomputed in backward, as in the fused kernels.
    """

    def fake(*given: Any) -> Any:
        return given[like].new_empty(given[like].shape)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def gradient(ctx: Any, grad: Any) -> Any:
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            return torch.autograd.grad(make(*inputs), inputs, grad)

    schema = f"({', '.join(f'Tensor {name}' for name in inputs)}) -> Tensor"
    define(torch, make.__name__, schema, make, fake, keep, gradient)


def define(
    torch: Any, name: str, schema: str, make: Any, fake: Any, keep: Any, gradient: Any
) -> None:
    """Defines one operator `shardwise::name` with its kernel, its shapes and its gradient."""
    qualified = f"shardwise::{name}"
    registered = torch.library.custom_op(qualified, make, mutates_args=(), schema=schema)
    registered.register_fake(fake)
    registered.register_autograd(gradient, setup_context=keep)
