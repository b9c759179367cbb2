"""Every family at small sizes: parameters and flops are those that torch itself counts."""

from __future__ import annotations

import pytest

from harness.execute.families import TOYS
from harness.tiers import some
from shardwise.capture import capture
from shardwise.capture.families import FAMILIES
from shardwise.errors import CaptureError
from shardwise.graph.inspect import inspect_graph
from shardwise.tdl import registry

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SMALL_UNET = "sample_size=16,block_out_channels=32+64+64,transformer_layers_per_block=1+1+2"
SMALL_DIT = "num_layers=2,num_attention_heads=2,attention_head_dim=8,out_channels=8,sample_size=8"
SMALL = {
    "GPT-2": ("hf:GPT2Config:n_layer=1,n_embd=64,n_head=2,vocab_size=128", 2, 16),
    "Llama": (
        "hf:LlamaConfig:hidden_size=64,intermediate_size=96,num_hidden_layers=1,"
        "num_attention_heads=4,num_key_value_heads=2,vocab_size=128",
        2,
        16,
    ),
    "Mixtral": (
        "hf:MixtralConfig:hidden_size=64,intermediate_size=96,num_hidden_layers=1,"
        "num_attention_heads=4,num_key_value_heads=2,vocab_size=128,num_local_experts=4",
        2,
        16,
    ),
    "BERT": (
        "hf:BertConfig:num_hidden_layers=1,hidden_size=32,num_attention_heads=2,"
        "attention_mask=true",
        2,
        16,
    ),
    "XLNet": ("hf:XLNetConfig:n_layer=1,d_model=32,n_head=2,d_inner=64,vocab_size=64", 2, 8),
    "T5": ("hf:T5Config:num_layers=1,d_model=32,d_kv=8,d_ff=64,num_heads=4,vocab_size=64", 2, 8),
    "ViT": ("hf:ViTConfig:num_hidden_layers=1,hidden_size=32,num_attention_heads=2", 2, None),
    "Whisper": (
        "hf:WhisperConfig:d_model=32,encoder_layers=1,decoder_layers=1,"
        "encoder_attention_heads=2,decoder_attention_heads=2,vocab_size=50300",
        2,
        8,
    ),
    "CLIP": (
        "hf:CLIPConfig:text_config.num_hidden_layers=1,vision_config.num_hidden_layers=1",
        4,
        12,
    ),
    "Qwen2.5-VL": (TOYS["Qwen2.5-VL"].source, 2, 12),
    "Mamba": ("hf:MambaConfig:num_hidden_layers=1,hidden_size=32,vocab_size=64", 2, 16),
    "Mamba-2": (
        "hf:Mamba2Config:num_hidden_layers=1,hidden_size=64,num_heads=4,head_dim=32,n_groups=1,"
        "vocab_size=64,chunk_size=16",
        2,
        32,
    ),
    "ResNet": ("timm:resnet18:img_size=64", 2, None),
    "ConvNeXt": ("timm:convnext_atto:img_size=64,drop_path_rate=0.1", 2, None),
    "Swin": ("timm:swin_tiny_patch4_window7_224:drop_path_rate=0.1", 2, None),
    "EfficientNet": ("timm:efficientnet_b0:img_size=64,drop_path_rate=0.1", 2, None),
    "LSTM": ("zoo:lstm:layers=2,hidden=32,inputs=16,vocab=64,steps=3", 4, None),
    "U-Net": ("zoo:unet:depth=2,channels=8,image=32", 2, None),
    "SDXL U-Net": (f"sdxl-unet:{SMALL_UNET}", 2, 7),
    "DiT": (f"diffusers:DiTTransformer2DModel:{SMALL_DIT}", 2, None),
    "DLRM": ("zoo:dlrm:rows=1000", 64, None),
}
COUNTED_IN_DESCRIPTIONS = {"Mixtral"}
"""Its experts' operator is described apart from capture; the structure is tested below."""


ALWAYS = ("GPT-2", "T5", "Mixtral", "Mamba-2", "ResNet", "LSTM", "DLRM")
"""Families that `make test` captures."""


@pytest.mark.parametrize("name", some(SMALL, lambda name: name in ALWAYS))
def test_parameters_and_flops_are_those_that_torch_counts(name: str) -> None:
    from shardwise.capture.counted import count

    source, batch, seq = SMALL[name]
    graph = capture(source, batch=batch, seq=seq)
    counted = count(source, batch=batch, seq=seq, dtype=None)
    assert graph.parameter_count == counted.parameters > 0
    inspected = inspect_graph(graph, registry.analyse)
    kinds = {op["kind"] for op in inspected["undescribed_operators"]}
    own = ("expert_linear", "selective_scan", "sink_attention")
    assert kinds <= {f"shardwise.{name}.default" for name in own}
    if name not in COUNTED_IN_DESCRIPTIONS or not kinds:
        assert inspected["matrix_flops"] == pytest.approx(counted.forward_flops, rel=0.01)
    assert graph.batch_size == batch


def test_every_family_of_the_table_has_a_small_one() -> None:
    for family in FAMILIES:
        assert any(family.name.startswith(name) for name in SMALL), family.name


def test_a_padding_mask_is_an_input_that_every_layer_reads() -> None:
    source = SMALL["BERT"][0].replace("num_hidden_layers=1", "num_hidden_layers=3")
    graph = capture(source, batch=2, seq=16)
    assert graph.tensors["attention_mask"].role == "input"
    attention = [op for op in graph.operators if "scaled_dot_product" in op.kind]
    masks = {op.inputs[op.attributes["tensor_arguments"].index("attn_mask")] for op in attention}
    assert len(attention) == 3
    assert len(masks) == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("hf:ViTConfig:attention_mask=true", "takes no attention mask"),
        ("hf:BertConfig:attention_mask=3", "is not a bool"),
        ("hf:CLIPConfig:text_config.hidden=3", "CLIPTextConfig has no option 'hidden'"),
        ("hf:CLIPConfig:text_config=3", "is not a single value"),
        ("timm:resnet5", "resnet50"),
        ("timm:resnet50:pretrained=true", "pretrained cannot be set"),
        ("timm:resnet50:nothing=1", "nothing"),
        ("timm:resnet50:img_size=big", "is not a size"),
        ("zoo:unet:image=100", "cannot be halved 4 times"),
    ],
)
def test_wrong_options_are_named(source: str, words: str) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(source, batch=2)
    assert words in str(caught.value)
    assert caught.value.file == source


def test_what_cannot_be_exported_names_the_line_and_the_way_out() -> None:
    source = SMALL["Mixtral"][0] + ",experts_implementation=eager"
    with pytest.raises(CaptureError) as caught:
        capture(source, batch=2, seq=16)
    message = str(caught.value)
    assert "modeling_mixtral.py:" in message
    assert "experts_implementation=batched_mm" in message


def test_clip_is_trained_on_pairs() -> None:
    graph = capture(SMALL["CLIP"][0], batch=4, seq=12)
    inputs = {t.name: t.shape for t in graph.tensors.values() if t.role == "input"}
    assert inputs == {"input_ids": (4, 12), "pixel_values": (4, 3, 224, 224), "labels": (4,)}
    losses = [op for op in graph.operators if op.kind == "aten.cross_entropy_loss.default"]
    assert [graph.tensors[op.inputs[0]].shape for op in losses] == [(4, 4), (4, 4)]


def test_experts_and_scans_are_one_operator_each() -> None:
    mixtral = capture(SMALL["Mixtral"][0], batch=2, seq=16)
    experts = [op for op in mixtral.operators if op.kind == "shardwise.expert_linear.default"]
    assert [mixtral.tensors[op.outputs[0]].shape for op in experts] == [(32, 2, 192), (32, 2, 64)]
    mamba = capture(SMALL["Mamba"][0], batch=2, seq=16)
    scans = [op for op in mamba.operators if op.kind == "shardwise.selective_scan.default"]
    assert [mamba.tensors[op.outputs[0]].shape for op in scans] == [(2, 64, 16)]


def test_the_u_net_has_the_parameters_of_the_paper() -> None:
    assert capture("zoo:unet", batch=1).parameter_count == 31_030_658


def test_dlrm_has_the_tables_of_mlperf() -> None:
    graph = capture("zoo:dlrm", batch=64)
    rows = sum(t.shape[0] for t in graph.tensors.values() if t.name.startswith("tables."))
    # The embeddings of the batch are called after their tables too.
    tables = [t for t in graph.tensors.values() if t.role == "parameter" and "tables" in t.name]
    assert sum(t.shape[0] for t in tables) == 187_767_399 < rows
