"""Denoisers of diffusers: what they read, what their loss is, a plan, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shardwise
from harness.tiers import some
from shardwise.capture import capture
from shardwise.errors import CaptureError
from shardwise.graph.graph import Graph
from shardwise.tdl import registry

pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytestmark = pytest.mark.torch

_UNET = (
    "diffusers:UNet2DConditionModel:sample_size=8,block_out_channels=8+16,norm_num_groups=4,"
    "down_block_types=DownBlock2D+CrossAttnDownBlock2D,cross_attention_dim=12,"
    "up_block_types=CrossAttnUpBlock2D+UpBlock2D,layers_per_block=1,attention_head_dim=2+4"
)
_BLOCKS = "num_layers=2,num_attention_heads=2,attention_head_dim=8,sample_size=8"
_NOISE = (2, 4, 8, 8)
_DIT = {"hidden_states": _NOISE, "timestep": (2,), "class_labels": (2,), "target": _NOISE}
_TIME = {"timestep": (2,)}
_VIDEO = (2, 4, 3, 8, 8)

INPUTS: dict[str, tuple[str, int | None, dict[str, tuple[int, ...]]]] = {
    "unet": (
        _UNET,
        5,
        {"sample": _NOISE, **_TIME, "encoder_hidden_states": (2, 5, 12), "target": _NOISE},
    ),
    "unet of sdxl": (
        f"{_UNET},addition_embed_type=text_time,addition_time_embed_dim=4,"
        "projection_class_embeddings_input_dim=32",
        None,
        {
            "sample": _NOISE,
            **_TIME,
            "encoder_hidden_states": (2, 77, 12),
            "text_embeds": (2, 8),
            "time_ids": (2, 6),
            "target": _NOISE,
        },
    ),
    "unet with masks of classes": (
        f"{_UNET},in_channels=9,num_class_embeds=10",
        5,
        {
            "sample": (2, 9, 8, 8),
            **_TIME,
            "encoder_hidden_states": (2, 5, 12),
            "class_labels": (2,),
            "target": _NOISE,
        },
    ),
    "dit": (f"diffusers:DiTTransformer2DModel:{_BLOCKS},out_channels=8", None, _DIT),
    "dit under its old name": (
        f"diffusers:Transformer2DModel:{_BLOCKS},in_channels=4,out_channels=8,patch_size=2,"
        "norm_type=ada_norm_zero,num_embeds_ada_norm=10,norm_elementwise_affine=false",
        None,
        _DIT,
    ),
    "pixart": (
        f"diffusers:PixArtTransformer2DModel:{_BLOCKS},caption_channels=12,cross_attention_dim=16",
        5,
        {
            "hidden_states": _NOISE,
            "encoder_hidden_states": (2, 5, 12),
            **_TIME,
            "target": _NOISE,
        },
    ),
    "sd3": (
        f"diffusers:SD3Transformer2DModel:{_BLOCKS},in_channels=4,out_channels=4,"
        "joint_attention_dim=12,caption_projection_dim=16,pooled_projection_dim=6",
        5,
        {
            "hidden_states": _NOISE,
            "encoder_hidden_states": (2, 5, 12),
            "pooled_projections": (2, 6),
            **_TIME,
            "target": _NOISE,
        },
    ),
    "flux": (
        "diffusers:FluxTransformer2DModel:num_layers=1,num_single_layers=2,attention_head_dim=8,"
        "num_attention_heads=2,axes_dims_rope=2+2+4,joint_attention_dim=12,in_channels=8,"
        "pooled_projection_dim=6,guidance_embeds=true,sample_size=8",
        5,
        {
            "hidden_states": (2, 16, 8),
            "encoder_hidden_states": (2, 5, 12),
            "pooled_projections": (2, 6),
            **_TIME,
            "img_ids": (16, 3),
            "txt_ids": (5, 3),
            "guidance": (2,),
            "target": (2, 16, 8),
        },
    ),
    "wan": (
        f"diffusers:WanTransformer3DModel:{_BLOCKS},frames=3,in_channels=4,out_channels=4,"
        "text_dim=12,freq_dim=8,ffn_dim=32",
        5,
        {
            "hidden_states": _VIDEO,
            **_TIME,
            "encoder_hidden_states": (2, 5, 12),
            "target": _VIDEO,
        },
    ),
    "hunyuan video": (
        f"diffusers:HunyuanVideoTransformer3DModel:{_BLOCKS},frames=3,in_channels=4,"
        "out_channels=4,num_single_layers=1,num_refiner_layers=1,text_embed_dim=12,"
        "pooled_projection_dim=6,rope_axes_dim=4+2+2",
        5,
        {
            "hidden_states": _VIDEO,
            **_TIME,
            "encoder_hidden_states": (2, 5, 12),
            "encoder_attention_mask": (2, 5),
            "pooled_projections": (2, 6),
            "guidance": (2,),
            "target": _VIDEO,
        },
    ),
    "ltx": (
        f"diffusers:LTXVideoTransformer3DModel:{_BLOCKS},frames=3,in_channels=4,out_channels=4,"
        "cross_attention_dim=16,caption_channels=12",
        5,
        {
            "hidden_states": (2, 192, 4),
            "encoder_hidden_states": (2, 5, 12),
            **_TIME,
            "encoder_attention_mask": (2, 5),
            "target": (2, 192, 4),
        },
    ),
    "mochi": (
        f"diffusers:MochiTransformer3DModel:{_BLOCKS},frames=3,in_channels=4,text_embed_dim=16,"
        "pooled_projection_dim=8,time_embed_dim=8",
        5,
        {
            "hidden_states": _VIDEO,
            "encoder_hidden_states": (2, 5, 16),
            **_TIME,
            "encoder_attention_mask": (2, 5),
            "target": _VIDEO,
        },
    ),
}


def inputs(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {t.name: t.shape for t in graph.tensors.values() if t.role == "input"}


@pytest.mark.parametrize("name", some(INPUTS, lambda name: name in ("unet", "dit", "flux", "ltx")))
def test_a_denoiser_is_captured_and_planned(name: str) -> None:
    source, seq, wanted = INPUTS[name]
    graph = capture(source, batch=2, seq=seq)
    assert inputs(graph) == wanted
    kinds = {op.kind for op in graph.operators}
    assert {kind for kind in kinds if registry.description(kind) is None} == set()
    assert not {kind for kind in kinds if "rand" in kind}
    (loss,) = (op for op in graph.operators if op.kind == "aten.mse_loss.default")
    assert all(graph.tensors[n].shape == wanted["target"] for n in loss.inputs)
    assert {graph.tensors[n].dtype for n in loss.inputs} == {"float32"}
    answer = shardwise.plan(graph, "dgx-h100", gpus=2, micro_batches=(1,), time_limit_s=20.0)
    assert answer.predicted.replayed_time_s > 0


def test_a_config_json_is_found_in_the_folder_of_a_pipeline(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "_class_name": "DiTTransformer2DModel",
            "_diffusers_version": "0.31.0",
            "num_layers": 2,
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "sample_size": 8,
            "out_channels": 8,
            "a_field_of_earlier_releases": 3,
        }
    )
    folder = tmp_path / "transformer"
    folder.mkdir()
    (folder / "config.json").write_text(text)
    for path in (tmp_path, folder, folder / "config.json"):
        graph = capture(f"diffusers:{path}", batch=2)
        assert inputs(graph) == _DIT
        assert {t.dtype for t in graph.tensors.values() if t.role == "parameter"} == {"bfloat16"}
    smaller = capture(f"diffusers:{tmp_path}:num_layers=1", batch=2)
    assert smaller.parameter_count < graph.parameter_count
    with pytest.raises(CaptureError, match=f"diffusers:{folder}") as refused:
        capture(f"hf:{folder}")
    assert refused.value.file == str(folder / "config.json")


@pytest.mark.parametrize(
    ("source", "asked", "words"),
    [
        ("diffusers:UNet2DConditonModel", {}, "UNet2DConditionModel"),
        ("diffusers:AutoencoderKL", {}, "is trained is not known.*package.module:callable"),
        ("diffusers:Transformer2DModel", {}, "part of other models"),
        ("diffusers:DiTTransformer2DModel", {"seq": 8}, "reads no text"),
        ("sdxl-unet:cross_attention=1", {}, "no option 'cross_attention'.*cross_attention_dim"),
        ("sdxl-unet:sample_size=big", {}, "'big' is not a size of latents"),
        ("sdxl-unet:sample_size=-8", {}, "-8 is not a size of latents"),
        ("sdxl-unet:sample_size=8+8+8", {}, "is not a size of latents"),
        ("sdxl-unet:block_out_channels=32+many", {}, "'many' is not of type int"),
        ("sdxl-unet:block_out_channels=32+-64+64", {}, "-64 is negative"),
        ("sdxl-unet:block_out_channels=32", {}, "cannot be built"),
        ("sdxl-unet:cross_attention_dim=none", {}, "inputs of sdxl-unet cannot be made"),
        ("sdxl-unet:addition_embed_type=image", {}, "a model with 'image' reads is not known"),
        ("sdxl-unet:addition_time_embed_dim=1024", {}, "no room for a text's embedding"),
        ("diffusers:FluxTransformer2DModel:sample_size=7", {}, "no patches of 2 × 2"),
    ],
)
def test_what_is_wrong_is_named(source: str, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(CaptureError, match=words) as refused:
        capture(source, batch=2, **asked)
    assert refused.value.file == source


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"_class_name": None}, "_class_name", "missing"),
        ({"_class_name": 3}, "_class_name", "not a name"),
        ({"num_layers": "2"}, "num_layers", "not of type int"),
        ({"torch_dtype": "int4"}, "torch_dtype", "unknown dtype"),
    ],
)
def test_what_is_wrong_in_a_config_is_named(
    changes: dict[str, Any], field: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"_class_name": "DiTTransformer2DModel", **changes}))
    with pytest.raises(CaptureError, match=words) as refused:
        capture(f"diffusers:{tmp_path}")
    assert (refused.value.file, refused.value.field) == (str(file), field)


def test_mochi_attends_to_full_texts_as_diffusers_does() -> None:
    import diffusers
    import torch

    from shardwise.capture.diffusers_steady import with_full_texts

    torch.manual_seed(0)
    sizes = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4}
    widths = {"text_embed_dim": 16, "pooled_projection_dim": 8, "time_embed_dim": 8}
    model = diffusers.MochiTransformer3DModel(**sizes, **widths).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    given = (
        *(torch.randn(2, 4, 3, 8, 8), torch.randn(2, 5, 16)),
        *(torch.tensor([3, 7]), torch.ones(2, 5)),
    )
    with torch.no_grad():
        (expected,) = model(*given, return_dict=False)
        with_full_texts(model)
        (got,) = model(*given, return_dict=False)
    assert expected.abs().mean() > 0.1
    assert torch.allclose(got, expected, atol=1e-5)


def test_only_videos_have_frames() -> None:
    with pytest.raises(CaptureError, match="frames: the model makes no videos"):
        capture(f"{INPUTS['dit'][0]},frames=2", batch=2)
