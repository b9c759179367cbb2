#!/bin/sh
# What Shardwise answers, on graphs that `shardwise capture` made (see tools/ship_graphs.py).
# usage: demo.sh FOLDER
set -eu
out=${1:?usage: demo.sh FOLDER}
mkdir -p "$out"

say() { printf '\n== %s\n' "$*"; }

say "the model: Llama 8B, bf16, batch 64, sequence 4096, captured from its transformers config"
shardwise inspect shipped:llama-8b

say "how fast with n GPUs: the curve, to 12 H100"
shardwise curve shipped:llama-8b --hardware dgx-h100 --max-gpus 12 --plot "$out/curve.png" --quiet

say "how few GPUs, at what price: 1,000 steps"
shardwise quote shipped:llama-8b --steps 1000 --max-instances 1 --quiet

say "everything that is not beaten: the frontier on 8 H100"
shardwise frontier shipped:llama-8b --hardware dgx-h100 --gpus 8 --quiet \
    --plot "$out/frontier.png"
shardwise frontier shipped:vgg16 --hardware dgx-v100-16gb --gpus 16 --quiet \
    --plot "$out/vgg16.html" >/dev/null

say "the chosen strategy, and why"
shardwise plan shipped:llama-8b --hardware dgx-h100 --gpus 64 --quiet -o "$out/plan.json"

say "written: $out/curve.png, $out/frontier.png, $out/vgg16.html, $out/plan.json"
echo "Your own model: pip install 'shardwise[torch]', then"
echo "  shardwise capture hf:LlamaConfig --batch 8 --seq 2048 --dtype bf16 -o graph.json"
