#!/bin/sh
# From a plan to DeepSpeed: ds_config.json. Needs: the base install.
set -eu

shardwise plan shipped:gpt2 --hardware dgx-a100-40gb --gpus 8 --space deepspeed --quiet -o plan.json
shardwise export plan.json --to deepspeed -o ds_config.json

cat ds_config.json
