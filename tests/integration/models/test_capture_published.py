"""Configuration files as models are published with them, at small sizes."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from shardwise.capture import capture
from shardwise.capture.hf_steady import decided
from shardwise.errors import CaptureError, CaptureWarning
from shardwise.graph import Graph

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
PHI3 = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0, **SIZES}
KIMI = {
    **SIZES,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
GEMMA4 = {
    **SIZES,
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "num_hidden_layers": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "vocab_size_per_layer_input": 100,
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention"],
}
LLAMA4 = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "text_config": {
        **SIZES,
        "model_type": "llama4_text",
        "intermediate_size_mlp": 96,
        "head_dim": 16,
        "num_local_experts": 4,
        "pad_token_id": 0,
    },
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
        "pixel_shuffle_ratio": 0.5,
        "projector_input_dim": 64,
        "projector_output_dim": 64,
        "vision_output_dim": 64,
    },
}

QWEN35 = {
    **SIZES,
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}
GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {**SIZES, "model_type": "gemma3_text", "head_dim": 16, "sliding_window": 8},
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    },
    "mm_tokens_per_image": 4,
    "image_token_index": 97,
    "boi_token_index": 98,
    "eoi_token_index": 99,
}
MISTRAL3 = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "model_type": "mistral3",
    "text_config": {**SIZES, "model_type": "mistral", "head_dim": 16},
    "vision_config": {**GEMMA3["vision_config"], "model_type": "pixtral"},
    "image_token_index": 97,
}


def captured(fields: dict[str, Any], folder: Path, options: str = "") -> Graph:
    (folder / "config.json").write_text(json.dumps(fields))
    return capture(f"hf:{folder}/config.json{options}", batch=2, seq=16)


def parameters(graph: Graph) -> int:
    return sum(prod(one.shape) for one in graph.tensors.values() if one.role == "parameter")


def test_operators_without_elements_are_left_out(tmp_path: Path) -> None:
    # All of a head is rotary, so that Phi-3 slices an empty rest and concatenates it again.
    graph = captured(PHI3, tmp_path)
    assert all(0 not in tensor.shape for tensor in graph.tensors.values())
    embedded, attention, feed_forward = 2 * 64 * 100, 64 * (64 + 2 * 32) + 64 * 64, 3 * 64 * 96
    expected = embedded + attention + feed_forward + 3 * 64
    assert parameters(graph) == expected


class Split(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Rotates none or some of the features, as DeepSeek's and MiniMax's attention do."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.sizes = sizes

    def forward(self, given: Any) -> Any:
        first, rest, last = torch.split(self.linear(given), self.sizes, dim=-1)
        return torch.cat((last, rest, first), dim=-1).sum()


@pytest.mark.parametrize(("sizes", "splits"), [((2, 0, 6), 1), ((0, 0, 8), 0)])
def test_parts_without_elements_are_left_out(sizes: tuple[int, ...], splits: int) -> None:
    graph = capture(Split(*sizes), (torch.zeros(4, 8),))
    assert all(0 not in tensor.shape for tensor in graph.tensors.values())
    assert sum("split" in op.kind for op in graph.operators) == splits


def test_millions_of_samples_are_not_gone_through_one_by_one() -> None:
    """Captures of other sizes try a million samples, which took LLaVA longer than ten minutes."""
    with decided():
        assert len(list(torch.zeros(8, 2))) == 8
        with pytest.raises(CaptureError, match="1048576 samples one by one"):
            list(torch.empty(2**20, 1, device="meta"))


def test_fields_have_any_type_that_their_class_allows(tmp_path: Path) -> None:
    """EXAONE 4 is published with a pattern of letters, whose default is a number."""
    fields = {**SIZES, "model_type": "exaone4", "architectures": ["Exaone4ForCausalLM"]}
    kinds = {"sliding_window": 8, "layer_types": ["sliding_attention"]}
    found = captured({**fields, **kinds, "sliding_window_pattern": "LLLG"}, tmp_path)
    assert found.operators == captured({**fields, **kinds}, tmp_path).operators
    with pytest.raises(CaptureError, match="sliding_window: 'LLLG' is not of type int"):
        captured({**fields, "sliding_window": "LLLG"}, tmp_path)


def test_layers_without_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"num_hidden_layers: 99999999 layers .expected at most"):
        captured({**SIZES, "model_type": "llama", "num_hidden_layers": 99999999}, tmp_path)


def test_a_slice_of_nothing_that_is_written_changes_nothing(tmp_path: Path) -> None:
    """Qwen3.5 writes frequencies of images into those of texts: none in heads this small."""
    graph = captured(QWEN35, tmp_path)
    assert all(0 not in tensor.shape for tensor in graph.tensors.values())


def test_patches_without_padding_are_convolutions(tmp_path: Path) -> None:
    graph = captured(GEMMA3, tmp_path)
    [patches] = (op for op in graph.operators if op.attributes.get("padding") == "valid")
    assert graph.tensors[patches.outputs[0]].shape[-2:] == (2, 2)


def test_a_type_of_its_own_is_read_by_its_architecture(tmp_path: Path) -> None:
    with pytest.warns(CaptureWarning, match=r"kimi_k2.*captured as DeepseekV3ForCausalLM"):
        found = captured(KIMI, tmp_path)
    known = captured({**KIMI, "model_type": "deepseek_v3"}, tmp_path)
    assert found.operators == known.operators
    with pytest.raises(CaptureError, match="no model type 'kimi_k2'"):
        captured({**KIMI, "architectures": ["KimiForCausalLM"]}, tmp_path)


def test_code_of_its_own_is_captured_as_the_type_that_is_asked_for(tmp_path: Path) -> None:
    own = {**SIZES, "model_type": "mine", "architectures": ["MineForCausalLM"], "twist": 3}
    with pytest.raises(CaptureError, match=r"no model type 'mine'.*option model_type=llama"):
        captured(own, tmp_path)
    with pytest.warns(CaptureWarning, match=r"captured as llama, .*code of 'mine'; .* no twist"):
        found = captured(own, tmp_path, ":model_type=llama")
    assert found.operators == captured({**SIZES, "model_type": "llama"}, tmp_path).operators
    del own["intermediate_size"]
    with pytest.raises(CaptureError, match="read as llama, it says nothing of intermediate_size"):
        captured(own, tmp_path, ":model_type=llama")
    assert captured(own, tmp_path, ":model_type=llama,intermediate_size=96").operators
    with pytest.raises(CaptureError, match="no model type 'lama'"):
        captured(own, tmp_path, ":model_type=lama")


def test_layers_may_differ_in_their_fields(tmp_path: Path) -> None:
    assert parameters(captured(GEMMA4, tmp_path)) > 64 * 100


def test_what_else_to_capture_is_said(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="expected task=causal-lm, the text model alone"):
        captured(LLAMA4, tmp_path)
    assert captured(LLAMA4, tmp_path, ":task=causal-lm").operators
    with pytest.raises(CaptureError, match="the text model alone: its text_config"):
        captured(MISTRAL3, tmp_path)


def test_numbers_are_read_as_transformers_writes_them(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**PHI3, "initializer_range": float("inf")}))
    assert "Infinity" in file.read_text()
    assert capture(f"hf:{file}", batch=2, seq=8).operators
    for text in ("{", "[" * 100_000, '{"a": ' + "9" * 5000 + "}"):
        file.write_text(text)
        with pytest.raises(CaptureError, match=r"config\.json"):
            capture(f"hf:{file}", batch=2, seq=8)
