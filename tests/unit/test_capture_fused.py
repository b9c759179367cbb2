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
