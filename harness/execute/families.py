"""Every family of models at toy size, with weights and data, without anything random.

Sizes leave something to split on eight ranks and some extents that do not divide.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from shardwise.capture.capture import build
from shardwise.capture.model import Model
from shardwise.capture.source import parse_source
from shardwise.execute.adapters import adapt
from shardwise.execute.captured import capture_module
from shardwise.graph.tuning import FULL

_CONFIGURATIONS = Path(__file__).parent / "toys"
"""Of models whose sizes include lists, which options of a source cannot give."""


@dataclass(frozen=True)
class Toy:
    """What `shardwise capture` would be told."""

    source: str
    batch: int = 8
    seq: int | None = None
    highest: int = 8
    tune: str = FULL
    frozen: str = ""
    """A regular expression that the names of frozen parameters match."""


TOYS = {
    "MLP": Toy("zoo:mlp:layers=3,inputs=12,hidden=20,classes=10", 16),
    "GPT-2": Toy("hf:GPT2Config:n_layer=2,n_embd=16,n_head=4,vocab_size=40", 8, 12),
    "Llama": Toy(
        "hf:LlamaConfig:hidden_size=16,intermediate_size=24,num_hidden_layers=2,"
        "num_attention_heads=4,num_key_value_heads=2,vocab_size=40",
        8,
        12,
    ),
    "Llama with adapters": Toy(
        "hf:LlamaConfig:hidden_size=16,intermediate_size=24,num_hidden_layers=2,"
        "num_attention_heads=4,num_key_value_heads=2,vocab_size=40",
        8,
        12,
        tune="lora:4",
    ),
    "GPT-2, half frozen": Toy(
        "hf:GPT2Config:n_layer=2,n_embd=16,n_head=4,vocab_size=40",
        8,
        12,
        frozen=r"wpe|h\.0\.|h\.1\.(ln_2|mlp\.c_fc)",
    ),
    "Mixtral": Toy(
        "hf:MixtralConfig:hidden_size=16,intermediate_size=24,num_hidden_layers=1,"
        "num_attention_heads=4,num_key_value_heads=2,vocab_size=40,num_local_experts=4",
        8,
        8,
    ),
    "gpt-oss": Toy(
        "hf:GptOssConfig:hidden_size=16,intermediate_size=24,num_hidden_layers=2,"
        "num_attention_heads=4,num_key_value_heads=2,head_dim=4,vocab_size=40,"
        "num_local_experts=4,num_experts_per_tok=2,pad_token_id=0",
        8,
        8,
    ),
    "Llama 4": Toy(
        "hf:Llama4TextConfig:hidden_size=16,intermediate_size=24,intermediate_size_mlp=24,"
        "num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,head_dim=4,vocab_size=40,"
        "num_local_experts=4,num_experts_per_tok=1,interleave_moe_layer_step=1,pad_token_id=0",
        8,
        8,
    ),
    "BERT": Toy(
        "hf:BertConfig:num_hidden_layers=1,hidden_size=16,num_attention_heads=4,"
        "intermediate_size=24,vocab_size=40,attention_mask=true",
        8,
        12,
    ),
    "T5": Toy("hf:T5Config:num_layers=1,d_model=16,d_kv=4,d_ff=24,num_heads=4,vocab_size=40", 8, 8),
    "ViT": Toy(
        "hf:ViTConfig:num_hidden_layers=1,hidden_size=16,num_attention_heads=4,"
        "intermediate_size=24,image_size=16,patch_size=4,num_labels=10",
        8,
    ),
    "Whisper": Toy(
        "hf:WhisperConfig:d_model=16,encoder_layers=1,decoder_layers=1,max_source_positions=16,"
        "encoder_attention_heads=4,decoder_attention_heads=4,encoder_ffn_dim=24,"
        "decoder_ffn_dim=24,vocab_size=40,num_mel_bins=8,pad_token_id=0,bos_token_id=1,"
        "eos_token_id=2,decoder_start_token_id=1",
        4,
        8,
    ),
    "CLIP": Toy(
        "hf:CLIPConfig:projection_dim=8,text_config.num_hidden_layers=1,"
        "text_config.hidden_size=16,text_config.num_attention_heads=4,"
        "text_config.intermediate_size=24,text_config.vocab_size=40,text_config.eos_token_id=2,"
        "text_config.projection_dim=8,vision_config.num_hidden_layers=1,"
        "vision_config.hidden_size=16,vision_config.num_attention_heads=4,"
        "vision_config.intermediate_size=24,vision_config.image_size=16,"
        "vision_config.patch_size=4,vision_config.projection_dim=8",
        8,
        8,
        4,
    ),
    "Wav2Vec2-BERT": Toy(
        "hf:Wav2Vec2BertConfig:num_hidden_layers=1,hidden_size=16,num_attention_heads=4,"
        "intermediate_size=24,feature_projection_input_dim=8,conv_depthwise_kernel_size=3,"
        "vocab_size=12",
        8,
        24,
    ),
    "LLaVA": Toy(
        "hf:LlavaConfig:text_config.num_hidden_layers=1,text_config.hidden_size=16,"
        "text_config.num_attention_heads=4,text_config.num_key_value_heads=2,"
        "text_config.intermediate_size=24,text_config.vocab_size=40,"
        "vision_config.num_hidden_layers=2,vision_config.hidden_size=16,"
        "vision_config.num_attention_heads=4,vision_config.intermediate_size=24,"
        "vision_config.image_size=16,vision_config.patch_size=8",
        8,
        12,
    ),
    "Qwen2.5-VL": Toy(f"hf:{_CONFIGURATIONS / 'qwen2.5-vl.json'}", 8, 12),
    "Qwen3-VL": Toy(f"hf:{_CONFIGURATIONS / 'qwen3-vl.json'}", 8, 12),
    "VideoMAE": Toy(
        "hf:VideoMAEConfig:num_hidden_layers=1,hidden_size=16,num_attention_heads=4,"
        "intermediate_size=24,image_size=16,patch_size=8,num_frames=4,num_labels=10",
        8,
    ),
    "Mamba": Toy("hf:MambaConfig:num_hidden_layers=1,hidden_size=16,vocab_size=40", 8, 8),
    "Mamba-2": Toy(
        "hf:Mamba2Config:num_hidden_layers=1,hidden_size=16,num_heads=4,head_dim=8,n_groups=1,"
        "vocab_size=40,chunk_size=8,state_size=8",
        8,
        16,
    ),
    "ResNet": Toy("timm:test_resnet:img_size=64,num_classes=10", 8),
    "ConvNeXt": Toy("timm:test_convnext:img_size=64,num_classes=10,drop_path_rate=0.0", 8),
    "Swin": Toy(
        "timm:swin_tiny_patch4_window7_224:img_size=56,embed_dim=24,num_classes=10,drop_path_rate=0.0",
        4,
    ),
    "EfficientNet": Toy("timm:test_efficientnet:img_size=64,num_classes=10,drop_path_rate=0.0", 16),
    "LSTM": Toy("zoo:lstm:layers=2,hidden=12,inputs=8,vocab=20,steps=3", 8),
    "U-Net": Toy("zoo:unet:depth=2,channels=4,image=16", 8, None, 2),
    "SDXL U-Net": Toy(
        "diffusers:UNet2DConditionModel:sample_size=8,block_out_channels=8+16,"
        "down_block_types=DownBlock2D+CrossAttnDownBlock2D,"
        "up_block_types=CrossAttnUpBlock2D+UpBlock2D,layers_per_block=1,attention_head_dim=2+4,"
        "cross_attention_dim=12,norm_num_groups=4,use_linear_projection=true,"
        "addition_embed_type=text_time,addition_time_embed_dim=4,"
        "projection_class_embeddings_input_dim=32",
        8,
        6,
    ),
    "DiT": Toy(
        "diffusers:DiTTransformer2DModel:num_layers=2,num_attention_heads=4,attention_head_dim=4,"
        "out_channels=8,sample_size=8,num_embeds_ada_norm=10",
        8,
    ),
    "DLRM": Toy("zoo:dlrm:rows=50,columns=8,tables=4,hidden=12", 16, None, 2),
    "VGG": Toy("zoo:vgg16:image=32,classes=10,channels=4,hidden=24,dropout=0.0", 4),
    "WideResNet": Toy("zoo:wrn:depth=10,width=1,image=16,classes=10", 8),
    "transformer": Toy("zoo:transformer:layers=1,hidden=16,heads=4,vocab=40,dropout=0.0", 8, 8),
}


@contextlib.contextmanager
def computing(toy: Toy, dtype: torch.dtype = torch.float32) -> Iterator[None]:
    """The context in which a family's module runs as it was captured, all of it in `dtype`."""
    with _form(toy), _InDouble() if dtype == torch.float64 else contextlib.nullcontext():
        yield


class _InDouble(TorchFunctionMode):
    """Losses, normalisations and scans that ask for float32 get float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args, kwargs = pytree.tree_map(_doubled, (args, kwargs or {}))
        return func(*args, **kwargs)


def _doubled(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


@contextlib.contextmanager
def _form(toy: Toy) -> Iterator[None]:
    if toy.source.startswith("hf:"):
        from shardwise.capture.huggingface import training_form

        with training_form():
            yield
    else:
        yield


def make(name: str, dtype: torch.dtype = torch.float32) -> Model:
    """Returns the family's module with weights and a batch of data."""
    toy = TOYS[name]
    model = build(parse_source(toy.source), toy.batch, toy.seq, str(dtype).removeprefix("torch."))
    random = torch.Generator().manual_seed(7)
    if dtype == torch.float64:
        model.module.double()  # buffers that are always float32, such as rotary frequencies
    if toy.tune != FULL:
        with computing(toy, dtype):
            model = adapt(capture_module(model, name), toy.tune)
    for path, parameter in model.module.named_parameters():
        if toy.frozen and re.search(toy.frozen, path):
            parameter.requires_grad_(False)
    module = _with_values(model.module, random)
    _without_chance(module)
    names = iter(model.input_names)
    args = pytree.tree_map(lambda x: _data(x, next(names, ""), toy.highest, random), model.args)
    return Model(module, args, dict(model.kwargs), model.prefix, model.input_names)


def _with_values(module: Any, random: torch.Generator) -> Any:
    tied = {id(p): [] for p in module.parameters()}
    for path, p in module.named_parameters(remove_duplicate=False):
        tied[id(p)].append(path)
    module.to_empty(device="cpu")
    for paths in tied.values():
        first = _get(module, paths[0])
        for path in paths[1:]:
            owner, _, last = path.rpartition(".")
            setattr(module.get_submodule(owner), last, first)
    with torch.no_grad():
        for name, p in module.named_parameters():
            noise = torch.randn(p.shape, generator=random, dtype=torch.float64)
            if p.dim() < 2:
                p.copy_(noise * 0.1 + float(name.endswith("weight")))
            else:
                p.copy_(noise / math.sqrt(p[0].numel()))
        for b in module.buffers():
            if b.is_floating_point():
                b.copy_(torch.rand(b.shape, generator=random, dtype=torch.float64) * 0.5 + 0.5)
            else:
                b.zero_()
    return module


def _get(module: Any, path: str) -> Any:
    owner, _, last = path.rpartition(".")
    return getattr(module.get_submodule(owner), last)


def _without_chance(module: Any) -> None:
    for child in module.modules():
        for holder in (child, getattr(child, "config", None)):
            for key, value in list(vars(holder).items()) if holder is not None else ():
                if "drop" in key and isinstance(value, float):
                    setattr(holder, key, 0.0)
        if isinstance(child, torch.nn.Dropout):
            child.p = 0.0


def _data(x: Any, name: str, highest: int, random: torch.Generator) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    if "mask" in name:
        mask = torch.ones(x.shape, dtype=x.dtype)
        mask[: x.shape[0] // 2, -3:] = 0
        return mask
    if x.is_floating_point():
        return torch.randn(x.shape, generator=random, dtype=torch.float64).to(x.dtype)
    return torch.randint(0, highest, x.shape, generator=random, dtype=x.dtype)
