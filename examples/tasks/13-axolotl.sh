#!/bin/sh
# What does my axolotl run take, without a graph? Its file names model, batch and length.
# Needs: the extra models (torch, transformers) to build the model's graph. No GPU.
set -eu

cat > axolotl.yaml <<'END'
base_model: meta-llama/Llama-3.1-8B
datasets:
  - path: mine
    type: alpaca
sequence_len: 4096
micro_batch_size: 1
gradient_accumulation_steps: 2
optimizer: adamw_torch_fused
bf16: auto
gradient_checkpointing: true
fsdp_config:
  fsdp_version: 2
  offload_params: false
  reshard_after_forward: true
END
shardwise explain --like axolotl.yaml --hardware dgx-h100 --gpus 8 --micro-batches 1,2 --quiet
