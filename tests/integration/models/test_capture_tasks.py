"""Every task of transformers at toy size: what it reads, what its loss is, and a plan for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwise
from harness.commands import succeed
from harness.tiers import some
from shardwise.capture import capture
from shardwise.capture.hf_example import UnknownTask
from shardwise.errors import CaptureError
from shardwise.graph.graph import Graph
from shardwise.tdl import registry

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

_ONE = "num_hidden_layers=1,hidden_size=32,num_attention_heads=2,intermediate_size=64"
_BERT = f"hf:BertConfig:{_ONE},vocab_size=64"
_WAVES = f"{_ONE},num_conv_pos_embeddings=16,num_conv_pos_embedding_groups=2"
_LLAVA = (
    "hf:LlavaConfig:text_config.num_hidden_layers=1,text_config.hidden_size=64,"
    "text_config.num_attention_heads=2,text_config.num_key_value_heads=2,"
    "text_config.intermediate_size=64,vision_config.num_hidden_layers=12,"
    "vision_config.hidden_size=32,vision_config.num_attention_heads=2,"
    "vision_config.intermediate_size=64,vision_config.image_size=56,vision_config.patch_size=14"
)
_LOSS = {"aten.cross_entropy_loss.default"}

TASKS = {
    "tokens": (f"{_BERT},task=token-classification", 16, _LOSS),
    "texts": (f"{_BERT},task=sequence-classification", 16, _LOSS),
    "wav2vec 2": (f"hf:Wav2Vec2Config:{_WAVES}", 8000, {"aten.ctc_loss.IntList"}),
    "hubert": (f"hf:HubertConfig:{_WAVES}", 8000, {"aten.ctc_loss.IntList"}),
    "wavlm": (f"hf:WavLMConfig:{_WAVES}", 8000, {"aten.ctc_loss.IntList"}),
    "sounds": (f"hf:Wav2Vec2Config:{_WAVES},task=audio-classification", 8000, _LOSS),
    "spectrograms": (f"hf:ASTConfig:{_ONE}", None, _LOSS),
    "llava": (_LLAVA, 64, _LOSS),
    "segformer": ("hf:SegformerConfig", None, _LOSS),
    "dpt": (
        "hf:DPTConfig:num_hidden_layers=12,hidden_size=32,num_attention_heads=2,"
        "intermediate_size=64,image_size=64,fusion_hidden_size=32",
        None,
        {"aten.l1_loss.default"},
    ),
    "detr": (
        "hf:DetrConfig:encoder_layers=1,decoder_layers=1,d_model=32,encoder_attention_heads=2,"
        "decoder_attention_heads=2,encoder_ffn_dim=64,decoder_ffn_dim=64,num_queries=10",
        None,
        {*_LOSS, "aten.l1_loss.default"},
    ),
    "videos": (f"hf:VideoMAEConfig:{_ONE},image_size=32,num_frames=4", None, _LOSS),
}


def _captured(name: str) -> Graph:
    source, seq, _ = TASKS[name]
    return capture(source, batch=8, seq=seq, dtype="float32")


ALWAYS = ("tokens", "wav2vec 2", "detr")
"""Tasks that `make test` captures: of text, of sound and of images."""


@pytest.mark.parametrize("name", some(TASKS, lambda name: name in ALWAYS))
def test_a_task_is_captured_and_planned(name: str) -> None:
    graph = _captured(name)
    kinds = {op.kind for op in graph.operators}
    assert TASKS[name][2] <= kinds
    assert {kind for kind in kinds if registry.description(kind) is None} == set()
    answer = shardwise.plan(graph, "dgx-h100", gpus=8, micro_batches=(1,), time_limit_s=20.0)
    assert answer.predicted.replayed_time_s > 0


def test_the_image_comes_first_and_the_last_layer_but_one_is_read() -> None:
    """LLaVA reads the features of a layer that hooks record; layers are traced in three parts."""
    graph = _captured("llava")
    kinds = {op.kind for op in graph.operators}
    assert not kinds & {"aten.masked_scatter.default", "aten.unbind.int"}
    read = next(op for op in graph.operators if op.name.endswith("projector.linear_1.linear"))
    cut = next(op for op in graph.operators if read.inputs[0] in op.outputs)
    made = next(op for op in graph.operators if cut.inputs[0] in op.outputs)
    # Of layers 0 to 11 the configuration asks for all but the last.
    assert made.scope.startswith("model.vision_tower.encoder.layers.10") or ".10." in made.name


def test_an_image_needs_room_in_the_sequence() -> None:
    with pytest.raises(CaptureError, match="no room for text after the 16 of its image"):
        capture(_LLAVA, batch=2, seq=16)


def test_architectures_of_a_file_choose_the_task(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    config = {"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 32, "vocab_size": 64}
    config |= {"num_attention_heads": 2, "num_labels": 5}
    for architecture, classes in (("BertForTokenClassification", 5), ("BertForMaskedLM", 64)):
        file.write_text(json.dumps({**config, "architectures": [architecture]}))
        graph = capture(f"hf:{file}", batch=2, seq=8)
        (loss,) = (op for op in graph.operators if op.kind.startswith("aten.cross_entropy"))
        assert graph.tensors[loss.inputs[0]].shape == (2, classes, 8)


def test_a_task_that_a_model_has_no_head_for_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"BertConfig has no model for 'ctc'.*masked-lm"):
        capture("hf:BertConfig:task=ctc")
    with pytest.raises(CaptureError, match=r"named 'token-clasification'.*token-classification"):
        capture("hf:BertConfig:task=token-clasification")


def test_an_unknown_task_comes_with_a_file_that_captures_it(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    architecture = "BertForQuestionAnswering"
    file.write_text(json.dumps({"model_type": "bert", "architectures": [architecture]}))
    with pytest.raises(UnknownTask, match=f"the task of {architecture} is not known") as refused:
        capture(f"hf:{file}")
    text = refused.value.example
    assert f"transformers.{architecture}(transformers.BertConfig())" in text
    # With one layer: the file is captured alike.
    one = text.replace("transformers.BertConfig()", "transformers.BertConfig(num_hidden_layers=1)")
    assert one != text
    (tmp_path / "mymodel.py").write_text(one)
    succeed("capture", "mymodel:build", "--batch", "2", "-o", "graph.json", cwd=tmp_path)
    assert (tmp_path / "graph.json").stat().st_size > 0
