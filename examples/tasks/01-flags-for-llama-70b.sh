#!/bin/sh
# Which flags for Llama 3 70B on 64 H100s? The torchtitan job, and the command that starts it.
# A step has 64 sequences, one for each GPU: there is nothing to accumulate, so one micro-batch.
# Needs: the extra models (torch, transformers) to build the model's graph. No GPU.
set -eu

shardwise plan llama3-70b --hardware dgx-h100 --gpus 64 --space torchtitan \
    --micro-batches 1 --time-limit 5 --quiet -o plan.json
shardwise export plan.json --to torchtitan -o torchtitan.toml

sed -n '/^\[parallelism\]/,/^\[compile\]/p' torchtitan.toml
sed -n 's/^# torchtitan 0.1 and 0.2: //p' torchtitan.toml
