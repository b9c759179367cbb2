#!/bin/sh
# What does the configuration that I have take, and what should I change in it?
# Needs: the base install.
set -eu

cat > torchtitan.toml <<'END'
[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 1
global_batch_size = 64
seq_len = 4096

[parallelism]
data_parallel_shard_degree = 8

[activation_checkpoint]
mode = "full"
END
shardwise explain shipped:llama-8b --like torchtitan.toml --hardware dgx-h100 --gpus 8 --quiet
