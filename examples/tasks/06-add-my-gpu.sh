#!/bin/sh
# My GPU is not among the profiles: make one from its data sheet, and plan with it.
# Needs: the base install.
set -eu

shardwise hardware new --gpu L40S --per-node 4 --nodes 2 --network 200Gb/s-per-node -o mine.json
shardwise plan shipped:gpt2 --hardware mine.json --gpus 8 --quiet
