"""The model families that are captured at real sizes, for the table in docs/models.md.

Sizes are those the models were published with; the batch is what eight or more GPUs would share.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """`name` is for display; the rest are arguments of `capture`."""

    name: str
    source: str
    batch: int
    seq: int | None = None
    dtype: str = "bfloat16"


FAMILIES: tuple[Family, ...] = (
    Family("GPT-2 XL", "hf:GPT2Config:n_layer=48,n_embd=1600,n_head=25", 64, 1024),
    Family(
        "Llama 3 8B",
        "hf:LlamaConfig:hidden_size=4096,intermediate_size=14336,num_hidden_layers=32,"
        "num_attention_heads=32,num_key_value_heads=8,vocab_size=128256,"
        "max_position_embeddings=8192",
        64,
        4096,
    ),
    Family(
        "Llama 3 70B",
        "hf:LlamaConfig:hidden_size=8192,intermediate_size=28672,num_hidden_layers=80,"
        "num_attention_heads=64,num_key_value_heads=8,vocab_size=128256,"
        "max_position_embeddings=8192",
        64,
        4096,
    ),
    Family("Mixtral 8x7B", "hf:MixtralConfig", 64, 4096),
    Family(
        "BERT-large",
        "hf:BertConfig:hidden_size=1024,num_hidden_layers=24,num_attention_heads=16,"
        "intermediate_size=4096,attention_mask=true",
        256,
        512,
    ),
    Family(
        "T5-large",
        "hf:T5Config:d_model=1024,d_kv=64,d_ff=4096,num_layers=24,num_decoder_layers=24,"
        "num_heads=16",
        128,
        512,
    ),
    Family(
        "ViT-L/16",
        "hf:ViTConfig:hidden_size=1024,num_hidden_layers=24,num_attention_heads=16,"
        "intermediate_size=4096,num_labels=1000",
        256,
    ),
    Family(
        "Whisper large",
        "hf:WhisperConfig:d_model=1280,encoder_layers=32,decoder_layers=32,"
        "encoder_attention_heads=20,decoder_attention_heads=20,encoder_ffn_dim=5120,"
        "decoder_ffn_dim=5120",
        64,
        448,
    ),
    Family(
        "CLIP ViT-L/14",
        "hf:CLIPConfig:projection_dim=768,text_config.hidden_size=768,"
        "text_config.intermediate_size=3072,text_config.num_attention_heads=12,"
        "text_config.projection_dim=768,vision_config.hidden_size=1024,"
        "vision_config.intermediate_size=4096,vision_config.num_hidden_layers=24,"
        "vision_config.num_attention_heads=16,vision_config.patch_size=14,"
        "vision_config.projection_dim=768",
        256,
        77,
    ),
    Family("Qwen2.5-VL 7B", "qwen2.5-vl-7b", 64, 4096),
    Family(
        "Mamba 2.8B",
        "hf:MambaConfig:hidden_size=2560,num_hidden_layers=64,time_step_rank=160",
        64,
        2048,
    ),
    Family(
        "Mamba-2 2.7B",
        "hf:Mamba2Config:hidden_size=2560,num_hidden_layers=64,num_heads=80,n_groups=1,"
        "vocab_size=50288,tie_word_embeddings=true",
        64,
        2048,
    ),
    Family("ResNet-50", "timm:resnet50", 256),
    Family("ConvNeXt-B", "timm:convnext_base:drop_path_rate=0.5", 256),
    Family("Swin-B", "timm:swin_base_patch4_window7_224:drop_path_rate=0.5", 256),
    Family(
        "EfficientNet-B4",
        "timm:efficientnet_b4:img_size=380,drop_rate=0.4,drop_path_rate=0.2",
        256,
    ),
    Family("LSTM", "zoo:lstm", 256, dtype="float32"),
    Family("U-Net", "zoo:unet", 64, dtype="float32"),
    Family("SDXL U-Net", "sdxl-unet", 64, 77),
    Family("DiT-XL/2", "diffusers:DiTTransformer2DModel:out_channels=8", 256),
    Family("DLRM", "zoo:dlrm", 65536, dtype="float32"),
)
