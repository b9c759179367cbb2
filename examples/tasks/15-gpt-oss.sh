#!/bin/sh
# Does full fine-tuning of gpt-oss-20b fit on 8 H100s with FSDP? All its parameters are sharded,
# those of experts too. Needs: the extra models (torch, transformers). No GPU.
set -eu

cat > fsdp.yaml <<'END'
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_activation_checkpointing: true
END
shardwise capture hf:GptOssConfig:num_hidden_layers=24,num_local_experts=32 \
    --batch 8 --seq 4096 --dtype bf16 --quiet -o gpt-oss-20b.json.gz
shardwise explain gpt-oss-20b.json.gz --like fsdp.yaml --hardware dgx-h100 --gpus 8 \
    --micro-batches 1 --quiet
