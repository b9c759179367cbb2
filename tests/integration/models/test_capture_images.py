"""Qwen's VL models with images of one size: transformers' own numbers, and splits by samples."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from harness.tiers import some
from shardwise.answers import Options
from shardwise.capture import capture
from shardwise.capture.capture import build
from shardwise.capture.huggingface import training_form
from shardwise.capture.source import parse_source
from shardwise.errors import CaptureError
from shardwise.graph.inspect import inspect_graph
from shardwise.hardware import load_hardware
from shardwise.peers.data_parallel import data_parallel_rows
from shardwise.peers.spaces import splits_only
from shardwise.search.search import Subject, search
from shardwise.tdl import registry

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

IMAGE_TOKEN = 60
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]},
}
TOWER = {"num_heads": 4, "patch_size": 4, "hidden_size": 32}
SMALL: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"text_config": TEXT, "vision_config": {**TOWER, "depth": 2, "embed_dim": 32}},
    "qwen2_5_vl": {
        "text_config": TEXT,
        "vision_config": {
            **TOWER,
            "depth": 4,
            "out_hidden_size": 32,
            "intermediate_size": 24,
            "window_size": 16,
            "fullatt_block_indexes": [1, 3],
        },
    },
    "qwen3_vl": {
        "text_config": {**TEXT, "head_dim": 8},
        "vision_config": {
            **TOWER,
            "depth": 4,
            "out_hidden_size": 32,
            "intermediate_size": 24,
            "num_position_embeddings": 36,
            "deepstack_visual_indexes": [0, 2],
        },
    },
}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SMALL["qwen3_vl_moe"] = {
    "text_config": {**SMALL["qwen3_vl"]["text_config"], **MIXTURE},
    "vision_config": SMALL["qwen3_vl"]["vision_config"],
}
SIZES = (32, [40, 24], [8, 56])
"""Whole windows of 16 pixels; smaller ones at both edges; all of them smaller."""

QWEN2_VL_7B = {
    "model_type": "qwen2_vl",
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vision_config": {
        "depth": 32,
        "embed_dim": 1280,
        "hidden_size": 3584,
        "in_chans": 3,
        "mlp_ratio": 4,
        "num_heads": 16,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
    "vocab_size": 152064,
}
"""As published: the fields of the text model are beside the vision model's."""


def written(folder: Path, document: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(document))
    return f"hf:{path}"


def small(folder: Path, kind: str, size: Any = 32) -> str:
    document = {**SMALL[kind], "model_type": kind, "image_token_id": IMAGE_TOKEN}
    document["vision_config"] = {**document["vision_config"], "image_size": size}
    return written(folder, document)


def with_weights(module: Any) -> Any:
    """Returns the module on the CPU with random weights and transformers' own frequencies."""
    module.to_empty(device="cpu")
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.3)
    own = type(module)(module.config)
    for path, buffer in own.named_buffers():
        module.get_buffer(path).copy_(buffer)
    return module


def trained_by_transformers(ours: Any, ids: Any, pixels: Any, sides: Any) -> Any:
    """Returns transformers' logits and gradients with the same weights and inputs."""
    theirs = type(ours)(ours.config).train()
    theirs.load_state_dict(ours.state_dict())
    logits = theirs(
        input_ids=ids,
        pixel_values=pixels.flatten(0, 1),
        image_grid_thw=torch.tensor([[1, *sides]] * len(ids)),
        mm_token_type_ids=(ids == IMAGE_TOKEN).int(),
        use_cache=False,
    ).logits
    logits.square().mean().backward()
    return logits, {name: p.grad for name, p in theirs.named_parameters()}


def inputs(model: Any, tokens: int) -> tuple[Any, Any]:
    random = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 50, model.args[0].shape, generator=random)
    ids[:, :tokens] = IMAGE_TOKEN
    return ids, torch.randn(model.args[1].shape, generator=random)


KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@pytest.mark.parametrize(
    ("kind", "size"),
    some(
        product(KINDS, SIZES),
        lambda case: KINDS.index(case[0]) == SIZES.index(case[1]),
    ),
    ids=str,
)
def test_logits_and_gradients_are_those_of_transformers(
    tmp_path: Path, kind: str, size: Any
) -> None:
    height, width = size if isinstance(size, list) else (size, size)
    tokens = height * width // 64
    model = build(parse_source(small(tmp_path, kind, size)), 3, tokens + 7, "float32")
    ours = with_weights(model.module.model)
    ids, pixels = inputs(model, tokens)
    with training_form():
        logits = ours(input_ids=ids, pixel_values=pixels, use_cache=False).logits
    logits.square().mean().backward()
    expected, gradients = trained_by_transformers(ours, ids, pixels, (height // 4, width // 4))
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    for name, parameter in ours.named_parameters():
        scale = gradients[name].abs().max()
        assert scale > 0, name
        assert (parameter.grad - gradients[name]).abs().max() <= 1e-5 * scale, name


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_a_sample_sees_its_own_image_and_no_other(tmp_path: Path, kind: str) -> None:
    model = build(parse_source(small(tmp_path, kind)), 3, 20, "float32")
    ours = with_weights(model.module.model)
    ids, pixels = inputs(model, 16)
    other = pixels.clone()
    other[1, 5] += 1.0
    with training_form(), torch.no_grad():
        before, after = (ours(input_ids=ids, pixel_values=x).logits for x in (pixels, other))
    changed = (before - after).abs().amax((1, 2))
    assert changed[1] > 1e-3
    assert changed[0] == changed[2] == 0


@pytest.mark.parametrize("kind", some(SMALL, lambda kind: kind == "qwen2_5_vl"))
def test_every_operator_of_data_splits_by_samples(tmp_path: Path, kind: str) -> None:
    graph = capture(small(tmp_path, kind, [40, 24]), batch=8, seq=24)
    assert inspect_graph(graph, registry.analyse)["undescribed_operators"] == []
    machine = replace(load_hardware("dgx-h100"), collectives=())
    options = Options(overlap=False, epsilon=0.5, zero=(0,))
    rows = data_parallel_rows(splits_only(search(Subject.of(graph), machine, 4, options)))
    # No sample runs through a table of positions.
    table = ("model.visual.pos_embed.embedding",) if kind.startswith("qwen3") else ()
    assert rows.whole == table
    assert rows.partly == ()


def test_the_published_file_has_the_published_parameters(tmp_path: Path) -> None:
    source = written(tmp_path, QWEN2_VL_7B)
    module = build(parse_source(source), None, None, None).module
    parameters = list(module.parameters())
    # Of the safetensors of Qwen/Qwen2-VL-7B-Instruct.
    assert sum(p.numel() for p in parameters) == 8_291_375_616
    assert parameters[0].dtype == torch.bfloat16


def test_options_of_the_text_model_keep_the_fields_beside_the_vision_models(
    tmp_path: Path,
) -> None:
    source = written(tmp_path, QWEN2_VL_7B)
    few = "text_config.num_hidden_layers=1,vision_config.depth=1,vision_config.image_size=56"
    graph = capture(f"{source}:{few}", batch=2, seq=16)
    shapes = {t.shape for t in graph.tensors.values() if t.role == "parameter"}
    assert {(152064, 3584), (18944, 3584), (512, 3584), (1280, 3, 2, 14, 14)} <= shapes
    with pytest.raises(CaptureError, match=r"expected text_config\.num_hidden_layers"):
        capture(f"{source}:num_hidden_layers=1")


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("image_size=30", "image_size: 30 is not a size of images .*a multiple of 8 pixels"),
        ("image_size=0", "0 is not a size of images"),
        ("image_size=large", "'large' is not of type int"),
        ("image_size=80000", "at most 65536"),
        ("patch_size=0", r"vision_config\.patch_size: 0 is not a size"),
        ("window_size=4", "a window of 4 pixels holds no token .*at least 8"),
        ("out_hidden_size=16", "features of 16 values take the places of tokens of 32"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tmp_path: Path, option: str, problem: str) -> None:
    with pytest.raises(CaptureError, match=problem):
        capture(f"{small(tmp_path, 'qwen2_5_vl')}:vision_config.{option}", batch=2, seq=32)


def test_an_image_needs_room_in_the_sequence(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no room for text after the 16 of its image"):
        capture(small(tmp_path, "qwen3_vl"), batch=2, seq=16)


def test_other_models_that_pack_images_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"from a tensor, image_grid_thw.*Qwen2\.5-VL"):
        capture("hf:Glm4vConfig:text_config.num_hidden_layers=1,vision_config.depth=1")
