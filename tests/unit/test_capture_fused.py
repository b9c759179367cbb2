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

    from shardwise.capture.fused import operators
    from shardwise.capture.scans import whole_scans

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


@pytest.mark.parametrize(
    ("config", "window"),
    [("MistralConfig", 4), ("MistralConfig", 128), ("Gemma3TextConfig", 4), ("Phi3Config", 4)],
)
def test_windows_are_what_transformers_gives(config: str, window: int) -> None:
    import transformers

    from shardwise.capture.fused import WINDOWS, whole_windows
    from shardwise.capture.huggingface import training_form

    settings = getattr(transformers, config)(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        vocab_size=32,
        sliding_window=window,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="sdpa")
    model.double().eval()
    tokens = torch.randint(0, 32, (2, 9))
    expected = model(tokens).logits
    whole_windows(model)
    assert model.config._attn_implementation == WINDOWS
    with training_form():
        assert torch.allclose(model(tokens).logits, expected)


def test_a_window_costs_what_its_keys_cost_and_has_no_mask() -> None:
    from shardwise.capture import capture
    from shardwise.tdl.registry import analyse

    small = "hidden_size=16,num_hidden_layers=1,num_attention_heads=4,num_key_value_heads=2"
    graphs = [
        capture(
            f"hf:MistralConfig:{small},intermediate_size=24,vocab_size=32,sliding_window={window}",
            batch=2,
            seq=32,
        )
        for window in (4, 64)
    ]
    kinds = ["shardwise.sink_attention.default", "aten.scaled_dot_product_attention.default"]
    found = [
        next(one for one in graph.operators if one.kind == kind)
        for graph, kind in zip(graphs, kinds, strict=True)
    ]
    assert found[0].attributes["window"] == 4 and found[1].attributes["is_causal"] is True
    assert not any(tensor.dtype == "bool" for tensor in graphs[0].tensors.values())
    window, causal = (
        analyse(one, graph.tensors).forward_flops for graph, one in zip(graphs, found, strict=True)
    )
    # 4 keys of each query but the first three; half of 32.
    assert window / causal == pytest.approx((32 * 4 - 6) / (32 * 16))


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


def _scans_of_transformers() -> list[tuple[object, str, tuple[object, ...], dict[str, object]]]:
    """Returns modules of transformers, their functions, and arguments of these."""
    from transformers.models.kimi_linear import modeling_kimi_linear
    from transformers.models.mamba2 import modeling_mamba2
    from transformers.models.qwen3_5 import modeling_qwen3_5

    step = {"chunk_size": 4, "D": _random(4), "dt_bias": _random(4), "dt_softplus": True}
    mamba = (
        *(_random(2, 10, 4, 3), _random(2, 10, 4), _random(4)),
        *(_random(2, 10, 2, 5), _random(2, 10, 2, 5)),
    )
    keys = _random(2, 10, 2, 8), _random(2, 10, 2, 8)
    rule = {"chunk_size": 4, "use_qk_l2norm_in_kernel": True}
    gates = {"g": _random(2, 10, 4), "beta": _random(2, 10, 4)}
    channels = {"g": _random(2, 10, 2, 8), "beta": _random(2, 10, 2)}
    return [
        (modeling_mamba2, "mamba2_chunk_scan", mamba, step),
        (
            modeling_qwen3_5,
            "torch_chunk_gated_delta_rule",
            (*keys, _random(2, 10, 4, 6)),
            {**rule, **gates},
        ),
        (
            modeling_kimi_linear,
            "chunk_kimi_delta_attention",
            (*keys, _random(2, 10, 2, 6)),
            {**rule, **channels},
        ),
    ]


def test_scans_in_chunks_give_what_transformers_gives() -> None:
    from shardwise.capture.scans import whole_scans
    from shardwise.errors import CaptureWarning

    torch.manual_seed(0)
    for module, name, inputs, more in _scans_of_transformers():
        expected = getattr(module, name)(*inputs, **more)
        with pytest.warns(CaptureWarning, match="scan_implementation=eager"), whole_scans():
            got = getattr(module, name)(*inputs, **more)
        if isinstance(expected, tuple):
            (expected, _), (got, state) = expected, got
            assert state is None
        assert torch.allclose(got, expected.to(got.dtype), atol=1e-5), name


def test_scans_in_chunks_have_their_gradients() -> None:
    from shardwise.capture.fused import operators

    torch.manual_seed(0)
    scan = _random(1, 3, 2, 2, 2), _random(1, 3, 2, 2), _random(2, 2), *[_random(1, 3, 2, 3)] * 2
    assert torch.autograd.gradcheck(operators().chunk_scan, scan)
    rule = (
        *(_random(1, 3, 2, 3), _random(1, 3, 2, 3), _random(1, 3, 2, 2, 2)),
        *(_random(1, 3, 2, 2), _random(1, 3, 2, 2)),
    )
    assert torch.autograd.gradcheck(operators().gated_delta_rule, rule)


@pytest.mark.parametrize(
    ("how", "kind", "operators"), [("fused", "chunk_scan", 60), ("eager", "cumsum", 140)]
)
def test_mamba_2_is_captured_as_its_kernels_are_unless_it_is_said(
    how: str, kind: str, operators: int, recwarn: pytest.WarningsRecorder
) -> None:
    from shardwise.capture import capture

    graph = capture(
        "hf:Mamba2Config:hidden_size=32,num_hidden_layers=1,num_heads=8,head_dim=8,state_size=8,"
        f"n_groups=2,vocab_size=64,scan_implementation={how}",
        batch=2,
        seq=16,
    )
    assert any(kind in operator.kind for operator in graph.operators)
    assert len(graph.operators) < operators
    said = [str(one.message) for one in recwarn if "mamba_ssm" in str(one.message)]
    assert bool(said) == (how == "fused")


def test_qwen_3_5_is_captured_with_the_delta_rule_as_one_operator() -> None:
    from shardwise.capture import capture
    from shardwise.errors import CaptureWarning

    with pytest.warns(CaptureWarning, match="fla's fused kernels"):
        graph = capture(
            "hf:Qwen3_5TextConfig:hidden_size=32,num_hidden_layers=1,num_attention_heads=2,"
            "num_key_value_heads=1,head_dim=64,intermediate_size=64,vocab_size=64,"
            "linear_num_key_heads=2,linear_num_value_heads=4,linear_key_head_dim=8,"
            "linear_value_head_dim=8",
            batch=2,
            seq=16,
        )
    rules = [one for one in graph.operators if one.kind == "shardwise.gated_delta_rule.default"]
    assert [graph.tensors[one.outputs[0]].shape for one in rules] == [(2, 16, 2, 2, 8)]
