#!/bin/sh
# Plain torch: parallelize.py for a model of transformers, trained on two ranks of this CPU.
# Needs: the extra models.
set -eu

sizes=num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=4,vocab_size=256
shardwise capture "hf:LlamaConfig:$sizes" --batch 8 --seq 32 --quiet -o graph.json
shardwise plan graph.json --hardware h100 --gpus 2 --space fsdp2 --quiet -o plan.json
shardwise export plan.json --to fsdp2 -o parallelize.py

cat > train.py <<'END'
import torch
import torch.distributed as dist
from parallelize import accumulate, device_mesh, parallelize, share
from transformers import AutoModelForCausalLM, LlamaConfig

torch.manual_seed(0)  # the same weights and samples on all ranks
config = LlamaConfig(
    num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_attention_heads=4,
    num_key_value_heads=4, vocab_size=256,
)
ids = torch.randint(256, (8, 32))
mesh = device_mesh()
model = parallelize(AutoModelForCausalLM.from_config(config), mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(20):
    optimizer.zero_grad()
    loss = accumulate(
        model, {"ids": share(ids, mesh)}, lambda model, ids: model(ids, labels=ids).loss
    )
    optimizer.step()
    if dist.get_rank() == 0 and step in (0, 19):
        print(f"step {step}: loss {float(loss):.2f}")
dist.destroy_process_group()
END
torchrun --nproc-per-node 2 train.py
