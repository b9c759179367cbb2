"""The operators that capture keeps whole compute what transformers' own forms compute."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def _random(*shape: int) -> object:
    return torch.rand(*shape, dtype=torch.double).sub_(0.5).requires_grad_()


def test_expert_linear_is_the_product_with_the_chosen_matrix_and_has_its_gradients() -> None:
    from shardwise.capture.fused import operators

    torch.manual_seed(0)
    apply = operators().expert_linear
    x, weight = _random(5, 2, 3), _random(4, 6, 3)
    experts = torch.randint(0, 4, (5, 2))
    expected = torch.einsum("tci,tcni->tcn", x, weight[experts])
    assert torch.allclose(apply(x, weight, experts), expected)
    assert torch.autograd.gradcheck(lambda a, b: apply(a, b, experts), (x, weight))


def test_selective_scan_is_mambas_recurrence_and_has_its_gradients() -> None:
    from transformers.models.mamba import modeling_mamba

    from shardwise.capture.fused import operators, whole_scans

    torch.manual_seed(0)
    inputs = (_random(2, 3, 5), _random(2, 3, 5), _random(3, 4), _random(2, 4, 5), _random(2, 4, 5))
    assert torch.autograd.gradcheck(operators().selective_scan, inputs)
    more = {"D": _random(3), "z": _random(2, 3, 5), "delta_bias": _random(3)}
    expected = modeling_mamba.mamba_selective_scan(*inputs, **more, delta_softplus=True)
    with whole_scans():
        got = modeling_mamba.mamba_selective_scan(*inputs, **more, delta_softplus=True)
    # transformers computes parts of it in float32.
    assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("window", [0, 3])
def test_attention_with_sinks_has_its_gradients_and_shares_of_queries(window: int) -> None:
    from shardwise.capture.fused import operators

    torch.manual_seed(0)
    apply = operators().sink_attention.default
    query, keys = _random(2, 4, 6, 3), (_random(2, 2, 6, 3), _random(2, 2, 6, 3))
    sinks = _random(4)
    assert torch.autograd.gradcheck(
        lambda *x: apply(*x, 0.5, window, 0), (query, *keys, sinks), fast_mode=True
    )
    whole = apply(query, *keys, sinks, 0.5, window, 0)
    share = apply(query[:, :, 4:], *keys, sinks, 0.5, window, 4)
    assert torch.allclose(share, whole[:, :, 4:])


@pytest.mark.parametrize("window", [128, 4])
def test_attention_with_sinks_is_what_transformers_gives(window: int) -> None:
    import transformers

    from shardwise.capture.fused import SINKS, whole_sinks
    from shardwise.capture.huggingface import training_form

    settings = transformers.GptOssConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        vocab_size=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=window,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(settings, experts_implementation="eager")
    model.double().eval()
    tokens = torch.randint(0, 32, (2, 9))
    expected = model(tokens).logits
    whole_sinks(model)
    assert model.config._attn_implementation == SINKS
    with training_form():
        assert torch.allclose(model(tokens).logits, expected)


@pytest.mark.parametrize("config", ["MixtralConfig", "Qwen3MoeConfig", "Llama4TextConfig"])
def test_experts_give_what_transformers_gives(config: str) -> None:
    import transformers

    from shardwise.capture.fused import whole_experts

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32}
    experts = {"num_local_experts": 4, "num_experts": 4, "moe_intermediate_size": 24}
    experts["num_experts_per_tok"] = 2
    settings = getattr(transformers, config)(**sizes, **heads, **experts)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(settings, experts_implementation="eager")
    model.double().eval()
    tokens = torch.randint(0, 32, (2, 6))
    expected = model(tokens).logits
    gradients = torch.autograd.grad(expected.sum(), list(model.parameters()))
    whole_experts(model)
    if config != "Llama4TextConfig":  # its experts have one form, which is replaced
        assert model.config._experts_implementation == "shardwise"
    logits = model(tokens).logits
    assert torch.allclose(logits, expected)
    for own, theirs in zip(
        torch.autograd.grad(logits.sum(), list(model.parameters())), gradients, strict=True
    ):
        assert torch.allclose(own, theirs)
