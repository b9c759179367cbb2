#!/bin/sh
# How fast on 1 to 4 GPUs? The whole curve as CSV, as a picture and as a job for Slurm.
# Needs: the extra plot.
set -eu

shardwise curve shipped:gpt2 --hardware h100 --max-gpus 4 --quiet --plot curve.png > curve.txt
shardwise curve shipped:gpt2 --hardware h100 --max-gpus 4 --quiet --format csv > curve.csv
shardwise curve shipped:gpt2 --hardware h100 --max-gpus 4 --quiet --format sbatch > job.sh

file=$(head -c 4 curve.png | tail -c 3)
echo "curve.png is a $file; job.sh asks for $(sed -n 's/^#SBATCH --gres=gpu://p' job.sh) GPUs"
cut -d , -f 1-3,11 curve.csv
