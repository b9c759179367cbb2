#!/bin/sh
# My own module: captured, planned for this machine, run on two ranks; predicted and measured.
# Needs: the extra torch.
set -eu

cat > net.py <<'END'
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)
        )

    def forward(self, features, labels):  # the loss belongs to what is captured
        return torch.nn.functional.cross_entropy(self.layers(features), labels)


def example(batch=64):
    return Net(), (torch.randn(batch, 256), torch.randint(10, (batch,)))
END
shardwise measure --ranks 2 --time-limit 10 --quiet -o here.json > measured.txt
shardwise capture net:example --batch 64 --quiet -o net.json
shardwise plan net.json --hardware here.json --gpus 2 --quiet -o plan.json
shardwise run plan.json --source net:example --batch 64 --steps 10
