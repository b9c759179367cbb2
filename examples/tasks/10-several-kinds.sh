#!/bin/sh
# Two V100 and two P100 in one job: who gets which share? Needs: the base install.
set -eu

shardwise plan shipped:vgg16 --hardware heterog-8 --gpus v100=2,p100=2 --micro-batches 1 \
    --time-limit 10 --quiet -o plan.json > plan.txt
sed -n '1,4p' plan.txt
