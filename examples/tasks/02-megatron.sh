#!/bin/sh
# From a plan to Megatron-LM: a script that starts pretrain_gpt.py. Needs: the base install.
set -eu

shardwise plan shipped:gpt2 --hardware h100 --gpus 8 --space megatron --quiet -o plan.json
shardwise export plan.json --to megatron -o megatron.sh

bash -n megatron.sh
grep '^  --' megatron.sh
