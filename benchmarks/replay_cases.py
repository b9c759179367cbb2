"""Replayed peaks against tracked ones: the models and configurations that are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.answers import Options
from shardwise.capture import capture
from shardwise.cost.pins import parse_pin
from shardwise.cost.step_settings import StepSettings
from shardwise.graph import Graph
from shardwise.hardware import load_hardware
from shardwise.search.search import Search, Subject, search


@dataclass(frozen=True)
class Case:
    """One step. `gpus` data-parallel devices share the batch; items of `blocks` are recomputed."""

    name: str
    source: str
    batch: int
    seq: int | None = None
    dtype: str = "float32"
    optimizer: str = "adam"
    update: str = "for-loop"
    micro_batches: int = 1
    gpus: int = 1
    blocks: str | None = None

    @property
    def label(self) -> str:
        size = f"{self.name} {self.batch}" + (f"x{self.seq}" if self.seq else "")
        parts = [size, self.dtype, self.optimizer]
        parts += [self.update] if self.update != "for-loop" else []
        parts += [f"{self.micro_batches} micro-batches"] if self.micro_batches > 1 else []
        parts += [f"{self.gpus} devices"] if self.gpus > 1 else []
        parts += ["checkpointed"] if self.blocks else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Compared:
    """Bytes of a case: parameters, and peak of the replayed and of the tracked step."""

    case: Case
    predicted_parameters: float
    parameters: int
    predicted: float
    summed: float
    measured: int

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0


MODELS: tuple[Case, ...] = (
    Case("mlp", "zoo:mlp", 64),
    Case("GPT-2", "hf:GPT2Config:n_layer=4,n_embd=128,n_head=4,vocab_size=1000", 8, 64),
    Case(
        "BERT",
        "hf:BertConfig:hidden_size=128,num_hidden_layers=3,num_attention_heads=4,"
        "intermediate_size=512,vocab_size=1000",
        8,
        64,
    ),
    Case(
        "Llama",
        "hf:LlamaConfig:hidden_size=128,num_hidden_layers=3,num_attention_heads=4,"
        "num_key_value_heads=2,intermediate_size=344,vocab_size=1000",
        8,
        64,
    ),
    Case("Transformer", "zoo:transformer:layers=2,hidden=128,heads=4,vocab=1000,seq=32", 8),
    Case("ResNet-18", "timm:resnet18:num_classes=10", 4),
    Case("VGG16", "zoo:vgg16:image=32,classes=10", 4),
    Case("LSTM", "zoo:lstm:layers=2,hidden=128,inputs=64,vocab=500,steps=10", 16),
    Case(
        "ViT",
        "hf:ViTConfig:hidden_size=128,num_hidden_layers=3,num_attention_heads=4,"
        "intermediate_size=512,image_size=64,num_labels=100",
        8,
    ),
)
"""Every choice is tried on these."""

FURTHER: tuple[Case, ...] = (
    # Long sequences and few words: the peak is in the middle of backward, not at the loss.
    Case("deep GPT-2", "hf:GPT2Config:n_layer=6,n_embd=128,n_head=4,vocab_size=64", 8, 128),
    Case(
        "deep GPT-2",
        "hf:GPT2Config:n_layer=6,n_embd=128,n_head=4,vocab_size=64",
        8,
        128,
        blocks="transformer.h",
    ),
    Case(
        "deep Llama",
        "hf:LlamaConfig:hidden_size=128,num_hidden_layers=4,num_attention_heads=4,"
        "num_key_value_heads=1,intermediate_size=344,vocab_size=64",
        8,
        128,
        blocks="model.layers",
    ),
    Case("deep GPT-2", "hf:GPT2Config:n_layer=6,n_embd=128,n_head=4,vocab_size=64", 4, 16),
    Case(
        "deep GPT-2",
        "hf:GPT2Config:n_layer=6,n_embd=128,n_head=4,vocab_size=64",
        4,
        16,
        update="foreach",
    ),
    Case(
        "deep GPT-2",
        "hf:GPT2Config:n_layer=6,n_embd=128,n_head=4,vocab_size=64",
        4,
        16,
        update="fused",
    ),
    Case("U-Net", "zoo:unet:depth=3,channels=16,image=128", 2),
    Case("WideResNet", "zoo:wide-resnet-50:width=1,image=64,classes=10", 4),
    Case(
        "T5",
        "hf:T5Config:d_model=128,d_kv=32,d_ff=512,num_layers=2,num_decoder_layers=2,"
        "num_heads=4,vocab_size=200",
        8,
        64,
    ),
    Case(
        "Whisper",
        "hf:WhisperConfig:d_model=128,encoder_layers=2,decoder_layers=2,"
        "encoder_attention_heads=4,decoder_attention_heads=4,encoder_ffn_dim=512,"
        "decoder_ffn_dim=512,max_source_positions=100,vocab_size=200,pad_token_id=0,"
        "bos_token_id=1,eos_token_id=2,decoder_start_token_id=1",
        2,
        32,
    ),
    Case(
        "CLIP",
        "hf:CLIPConfig:projection_dim=64,text_config.hidden_size=64,"
        "text_config.intermediate_size=256,text_config.num_attention_heads=4,"
        "text_config.num_hidden_layers=2,text_config.vocab_size=100,"
        "vision_config.hidden_size=64,vision_config.intermediate_size=256,"
        "vision_config.num_attention_heads=4,vision_config.num_hidden_layers=2,"
        "vision_config.patch_size=16,vision_config.image_size=64",
        8,
        16,
    ),
    Case("Swin-T", "timm:swin_tiny_patch4_window7_224:drop_path_rate=0.2", 1),
    Case("ConvNeXt", "timm:convnext_atto:drop_path_rate=0.2", 2),
    Case("EfficientNet-B0", "timm:efficientnet_b0", 2),
    Case("DLRM", "zoo:dlrm:rows=1000,columns=16,tables=4,hidden=64", 64),
    Case(
        "Mixtral",
        "hf:MixtralConfig:hidden_size=64,intermediate_size=128,num_hidden_layers=2,"
        "num_attention_heads=4,num_key_value_heads=2,num_local_experts=4,vocab_size=100",
        4,
        32,
    ),
)

BLOCKS = {
    "GPT-2": "transformer.h",
    "BERT": "bert.encoder.layer",
    "Llama": "model.layers",
    "ViT": "vit.layers",
}
"""Lists of layers that may be recomputed, by model."""


def cases() -> tuple[Case, ...]:
    """Every choice on the first models, and the further ones."""
    chosen: list[Case] = []
    for model in MODELS:
        chosen += [replace(model, optimizer=kind) for kind in ("adam", "momentum", "sgd")]
        chosen += [
            replace(model, micro_batches=2),
            replace(model, gpus=2),
            replace(model, dtype="bfloat16"),
        ]
        if model.name in BLOCKS:
            chosen.append(replace(model, blocks=BLOCKS[model.name]))
            chosen.append(
                replace(model, blocks=BLOCKS[model.name], dtype="bfloat16", micro_batches=2)
            )
    return (*chosen, *FURTHER)


def compare(case: Case, track: Callable[..., Any]) -> Compared:
    """Replay the case, and track it for real."""
    graph = capture(case.source, batch=case.batch, seq=case.seq, dtype=case.dtype)
    result = searched(graph, case)
    replayed = result.replayed
    tracked = track(
        case.source,
        batch=case.batch // case.gpus,
        seq=case.seq,
        dtype=case.dtype,
        optimizer=case.optimizer,
        update=case.update,
        micro_batches=case.micro_batches,
        blocks=case.blocks,
    )
    return Compared(
        case,
        sum(t.size_bytes for t in graph.tensors.values() if t.role == "parameter"),
        tracked.parameters,
        float(replayed.peak_bytes[0]),
        float(result.memory_bytes[0]),
        tracked.peak,
    )


def searched(graph: Graph, case: Case) -> Search:
    """The only strategy of the case: data parallel, recomputing what it names."""
    rules = ["inside=batch"] if case.gpus > 1 else []
    if case.blocks:
        rules.append(f"{case.blocks}.*:recompute=yes")
    options = Options(
        overlap=False,
        optimizer=case.optimizer,
        zero=(0,),
        pins=tuple(parse_pin(rule) for rule in rules),
        step=StepSettings(device="cpu", update=case.update, block_bytes=1),
    )
    result = search(
        Subject.of(graph), load_hardware("l4"), case.gpus, options, micro_batches=case.micro_batches
    )
    assert len(result.time_s) == 1, np.shape(result.time_s)
    return result
