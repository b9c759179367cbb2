"""transformers and zoo models: parameters, sizes and structure as the models' own."""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest

from harness.tiers import some
from shardwise.capture import capture, zoo_names
from shardwise.capture.shipped import RECIPES
from shardwise.errors import CaptureError
from shardwise.graph import Graph, Operator, graph_id, read_graph

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

GIB = 2**30
SMALL_LSTM = "zoo:lstm:layers=2,hidden=8,inputs=4,vocab=32,steps=3"


def kinds(graph: Graph) -> Counter[str]:
    return Counter(op.kind.removeprefix("aten.").partition(".")[0] for op in graph.operators)


def weights_gib(graph: Graph, copies: int = 1) -> float:
    return graph.parameter_count * 4 * copies / GIB


def structure(graph: Graph, layer: str) -> list[tuple[object, ...]]:
    """The operators of one layer, with its number taken out of every name."""

    def neutral(name: str) -> str:
        return name.replace(layer, "LAYER.")

    return [
        (neutral(op.name), op.kind, tuple(map(neutral, op.inputs)), op.attributes)
        for op in graph.operators
        if op.scope.startswith(layer.rstrip("."))
    ]


def find(graph: Graph, name: str) -> Operator:
    return next(op for op in graph.operators if op.name == name)


def test_gpt2() -> None:
    graph = capture("hf:GPT2Config:n_layer=3", batch=2, seq=16, dtype="bf16")
    # wte + wpe + final norm + 3 layers; the head is tied to wte.
    assert graph.parameter_count == 50257 * 768 + 1024 * 768 + 2 * 768 + 3 * 7_087_872
    assert "lm_head.weight" not in graph.tensors
    assert find(graph, "lm_head.linear").inputs[1] == "transformer.wte.weight"
    assert graph.tensors["input_ids"].shape == (2, 16)
    assert find(graph, "transformer.wte.embedding").inputs == (
        "transformer.wte.weight",
        "input_ids",
    )
    assert graph.tensors["transformer.h.0.attn.c_attn.weight"].dtype == "bfloat16"
    attention = [op for op in graph.operators if "scaled_dot_product_attention" in op.kind]
    assert len(attention) == 3
    # Full sequences need no mask tensor; dropout is the configuration's.
    assert attention[0].attributes["tensor_arguments"] == ["query", "key", "value"]
    assert attention[0].attributes["is_causal"] is True
    assert attention[0].attributes["dropout_p"] == 0.1
    assert structure(graph, "transformer.h.1.") != []
    first = structure(graph, "transformer.h.2.")
    assert [row[:2] for row in structure(graph, "transformer.h.1.")] == [row[:2] for row in first]


def test_the_loss_never_flattens_batch_and_sequence() -> None:
    graph = capture("hf:GPT2Config:n_layer=1", batch=2, seq=16)
    loss = graph.operators[-1]
    assert loss.kind == "aten.cross_entropy_loss.default"
    assert [graph.tensors[n].shape for n in loss.inputs] == [(2, 50257, 16), (2, 16)]
    assert graph.tensors[loss.outputs[0]].role == "output"
    assert [t.name for t in graph.tensors.values() if t.role == "output"] == [loss.outputs[0]]


def test_llama_layers_are_alike() -> None:
    graph = capture(
        "hf:LlamaConfig:hidden_size=64,intermediate_size=96,num_hidden_layers=3,"
        "num_attention_heads=4,num_key_value_heads=2,vocab_size=128",
        batch=2,
        seq=16,
    )
    one, two = structure(graph, "model.layers.1."), structure(graph, "model.layers.2.")
    assert len(one) > 20
    assert [row[:2] for row in one] == [row[:2] for row in two]
    q = find(graph, "model.layers.0.self_attn.q_proj.linear")
    assert q.scope == "model.layers.0.self_attn.q_proj"
    assert graph.tensors["model.layers.0.self_attn.k_proj.weight"].shape == (32, 64)


def test_eager_attention_and_its_mask() -> None:
    graph = capture("hf:GPT2Config:n_layer=1,attn_implementation=eager", batch=2, seq=8)
    assert kinds(graph)["scaled_dot_product_attention"] == 0
    assert kinds(graph)["softmax"] == 1
    # transformers' test for packed sequences is none of training's work.
    assert kinds(graph)["cumsum"] == 0


def test_a_window_has_a_mask_only_beside_that_of_padding() -> None:
    base = "hf:MistralConfig:hidden_size=32,intermediate_size=32,num_hidden_layers=1"
    heads = ",num_attention_heads=2,num_key_value_heads=1,vocab_size=64,sliding_window="
    for window, more, masked in (
        (4, "", False),
        (64, "", False),
        (4, ",attention_mask=true", True),
    ):
        graph = capture(f"{base}{heads}{window}{more}", batch=2, seq=16)
        (op,) = [op for op in graph.operators if "attention" in op.kind]
        assert ("sink_attention" in op.kind) is (window == 4 and not masked)
        assert ("attn_mask" in op.attributes["tensor_arguments"]) is masked


@pytest.mark.parametrize(
    ("source", "inputs"),
    [
        ("hf:T5Config:num_layers=1,d_model=32,d_kv=8,d_ff=64,num_heads=4,vocab_size=64", 3),
        ("hf:ViTConfig:num_hidden_layers=1,hidden_size=32,num_attention_heads=2,image_size=32", 2),
        ("hf:BertConfig:num_hidden_layers=1,hidden_size=32,num_attention_heads=2", 2),
    ],
)
def test_other_families(source: str, inputs: int) -> None:
    graph = capture(source, batch=3, seq=8)
    assert graph.batch_size == 3
    assert sum(t.role == "input" for t in graph.tensors.values()) == inputs
    assert graph.operators[-1].kind == "aten.cross_entropy_loss.default"


@pytest.mark.parametrize(
    ("source", "field", "words"),
    [
        ("hf:GPT2Confg", None, "GPT2Config"),
        ("hf:PreTrainedModel", None, "no configuration class"),
        ("hf:GPT2Config:n_layers=2", "n_layers", "n_layer"),
        ("hf:GPT2Config:n_layer=two", "n_layer", "not of type int"),
        ("hf:GPT2Config:n_layer=1.5", "n_layer", "not of type int"),
        ("hf:GPT2Config:n_layer=-1", "n_layer", "negative"),
        ("hf:GPT2Config:n_layer=true", "n_layer", "not of type int"),
        ("hf:GPT2Config:n_head=7", None, "divisible"),
        ("hf:GPT2Config:attn_implementation=nope", None, "attn_implementation"),
    ],
)
def test_wrong_options_are_named(source: str, field: str | None, words: str) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(source, batch=1, seq=8)
    assert caught.value.field == field
    assert words in str(caught.value)
    assert caught.value.file == source


def test_a_sequence_beyond_the_position_table_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"exceeds the 1024 positions of transformer\.wpe"):
        capture("hf:GPT2Config:n_layer=1", seq=1025)


def test_vgg16() -> None:
    graph = capture("zoo:vgg16", batch=8)
    assert graph.parameter_count == 138_357_544
    assert round(weights_gib(graph), 2) == 0.52  # TensorOpt's Table 1
    assert kinds(graph)["conv2d"] == 13
    assert kinds(graph)["linear"] == 3
    assert graph.tensors["images"].shape == (8, 3, 224, 224)


TOFU_TABLE_2 = {
    (50, 4): 4.2, (50, 6): 9.6, (50, 8): 17.1, (50, 10): 26.7,
    (101, 4): 7.8, (101, 8): 30.6, (152, 4): 10.5, (152, 10): 65.1,
}  # fmt: skip


@pytest.mark.parametrize(("depth", "width"), some(TOFU_TABLE_2, lambda size: size == (50, 4)))
def test_wide_resnets_have_the_weights_of_tofu(depth: int, width: int) -> None:
    graph = capture(f"zoo:wide-resnet-{depth}:width={width},image=64", batch=2)
    printed = TOFU_TABLE_2[depth, width]
    assert weights_gib(graph, copies=3) == pytest.approx(printed, rel=0.03)


def test_a_resnet_of_width_1_is_the_plain_one() -> None:
    graph = capture("zoo:wide-resnet-50:width=1", batch=2)
    assert graph.parameter_count == 25_557_032
    assert kinds(graph)["batch_norm"] == 53
    assert graph.tensors["stages.3.2.relu3.relu"].shape == (2, 2048, 7, 7)


@pytest.mark.full
def test_wrn_28_10_has_the_weights_of_its_paper() -> None:
    """Zagoruyko & Komodakis 2016, Table 4: 36.5M."""
    assert capture("zoo:wrn", batch=2).parameter_count == 36_479_194


def test_lstm_steps_share_their_weights() -> None:
    graph = capture(SMALL_LSTM, batch=4)
    cell = 4 * 8 * (8 + 8) + 4 * 8
    assert graph.parameter_count == 32 * 4 + (cell - 4 * 8 * 4) + cell + 8 * 32 + 32
    linears = [op for op in graph.operators if op.kind == "aten.linear.default"]
    assert len(linears) == 2 * 2 * 3 + 1
    readers = graph.consumers["layers.1.input.weight"]
    assert [op.name for op in readers] == [
        "layers.1.input.linear",
        "layers.1.input@1.linear",
        "layers.1.input@2.linear",
    ]
    assert {op.scope for op in readers} == {"layers.1.input"}
    assert graph.tensors["tokens"].shape == (4, 3)


@pytest.mark.full
def test_lstm_has_the_weights_of_the_papers() -> None:
    tofu = capture("zoo:lstm:vocab=1,steps=1,batch=1")
    assert weights_gib(tofu, copies=3) == pytest.approx(45.3, rel=0.01)  # Table 2, RNN-8-8K
    tensoropt = capture("zoo:lstm:hidden=20480,inputs=20480,vocab=51200,steps=1,batch=1")
    assert weights_gib(tensoropt) == pytest.approx(108, rel=0.005)  # Table 1, RNN


@pytest.mark.full
def test_transformer_has_the_weights_of_tensoropt() -> None:
    large = capture("zoo:transformer", batch=2, seq=4)
    assert round(weights_gib(large), 1) == 9.7  # Table 1
    small = capture("zoo:transformer-s", batch=2, seq=4)
    assert weights_gib(small) == pytest.approx(4.8, rel=0.015)  # §5.3
    assert kinds(large)["matmul"] == 36
    assert kinds(large)["scaled_dot_product_attention"] == 0
    # One embedding serves the source, the target and the output.
    assert len(large.consumers["embedding.weight"]) == 3


def test_a_transformer_may_have_three_tables() -> None:
    shared, own = (
        capture(f"zoo:transformer:layers=1,hidden=8,heads=2,vocab=100,tables={n}", batch=2, seq=4)
        for n in (1, 3)
    )
    assert own.parameter_count - shared.parameter_count == 2 * 100 * 8
    assert [op.kind for op in own.operators] == [op.kind for op in shared.operators]
    for name in ("embedding", "target_embedding", "output_embedding"):
        assert len(own.consumers[f"{name}.weight"]) == 1


@pytest.mark.parametrize(
    ("source", "field", "words"),
    [
        ("zoo:vgg61", None, "vgg16"),
        ("zoo:mlp:width=3", "width", "hidden"),
        ("zoo:mlp:layers=0", "layers", "at least 1"),
        ("zoo:mlp:layers=two", "layers", "whole number"),
        ("zoo:mlp:layers=true", "layers", "whole number"),
        ("zoo:vgg16:dropout=1.5", "dropout", "fraction"),
        ("zoo:transformer:heads=7", "heads", "do not divide"),
        ("zoo:transformer:tables=2", "tables", "cannot share 2"),
        ("zoo:vgg16:image=16", None, "too small"),
    ],
)
def test_wrong_zoo_options_are_named(source: str, field: str | None, words: str) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(source, batch=2)
    assert caught.value.field == field
    assert words in str(caught.value)
    assert caught.value.file == source


def test_sequence_length_of_a_model_without_sequences() -> None:
    with pytest.raises(CaptureError, match="no option 'seq'"):
        capture("zoo:mlp", seq=3)


@pytest.mark.parametrize("source", ["zoo:mlp", SMALL_LSTM, "hf:GPT2Config:n_layer=1"])
def test_two_captures_have_one_id(source: str) -> None:
    assert graph_id(capture(source, batch=2)) == graph_id(capture(source, batch=2))


def test_every_name_says_where_it_is() -> None:
    graph = capture("hf:GPT2Config:n_layer=1", batch=2, seq=8)
    for op in graph.operators:
        assert re.fullmatch(r"[\w.@]+", op.name)
        assert op.name.startswith(op.scope)
    assert set(zoo_names()) >= {"mlp", "vgg16"}


@pytest.mark.parametrize("name", some(RECIPES, lambda name: name == "gpt2"))
def test_shipped_graphs_can_be_regenerated(name: str, tmp_path: object) -> None:
    from pathlib import Path

    from shardwise.capture import shipped_graph
    from tools.ship_graphs import make

    start = time.monotonic()
    captured = read_graph(make(name, Path(str(tmp_path))))
    assert time.monotonic() - start < 90
    shipped = read_graph(shipped_graph(name))
    # Other versions of torch may add attributes; the model is the same.
    assert captured.parameter_count == shipped.parameter_count
    assert kinds(captured)["linear"] == kinds(shipped)["linear"]


@pytest.mark.full
def test_bert_base() -> None:
    transformers = pytest.importorskip("transformers")
    graph = capture("hf:BertConfig", batch=2, seq=32)
    with torch.device("meta"):
        model = transformers.BertForMaskedLM(transformers.BertConfig())
    assert graph.parameter_count == sum(p.numel() for p in model.parameters()) == 109_514_298
