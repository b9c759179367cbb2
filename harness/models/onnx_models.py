"""Models with their losses, in plain torch and transformers: captured, and exported to ONNX.

Each builder gives (module, example inputs). Weights are random, not PyTorch's first values: the
exporter merges weights of equal values, as all fresh layer norms have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


class WithLoss(nn.Module):
    """A model and the cross entropy of its logits; `sequence` puts the classes second."""

    def __init__(self, model: nn.Module, sequence: bool = False) -> None:
        super().__init__()
        self.model = model
        self.sequence = sequence

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        *data, labels = inputs
        out: Any = self.model(*data)
        logits = getattr(out, "logits", out)
        if self.sequence:
            logits = logits.transpose(1, 2)
        return functional.cross_entropy(logits.float(), labels)


def _built(model: nn.Module, *inputs: torch.Tensor, sequence: bool = False) -> Built:
    module = WithLoss(model, sequence).train()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return module, inputs


def _labels(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long)


def mlp(batch: int = 64) -> Built:
    layers = [nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
    return _built(
        nn.Sequential(*layers, nn.Linear(1024, 16)), torch.zeros(batch, 256), _labels(batch)
    )


def vgg(batch: int = 64) -> Built:
    def convolutions(before: int, after: int) -> list[nn.Module]:
        return [
            nn.Conv2d(before, after, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2, 2),
        ]

    model = nn.Sequential(
        *convolutions(3, 32),
        *convolutions(32, 64),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(1024, 512),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(512, 16),
    )
    return _built(model, torch.zeros(batch, 3, 32, 32), _labels(batch))


class BasicBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet18(batch: int = 64) -> Built:
    """ResNet-18 with all its layers, a quarter as wide."""
    parts: list[nn.Module] = [
        nn.Conv2d(3, 16, 7, 2, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    width = 16
    for stage, after in enumerate((16, 32, 64, 128)):
        parts += [BasicBlock(width, after, 2 if stage else 1), BasicBlock(after, after, 1)]
        width = after
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 16)]
    return _built(nn.Sequential(*parts), torch.zeros(batch, 3, 64, 64), _labels(batch))


def gpt2(batch: int = 32, seq: int = 256) -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=256, n_head=4, vocab_size=4096, n_positions=512, use_cache=False,
        attn_implementation="sdpa",
    )  # fmt: skip
    tokens = _labels(batch, seq)
    return _built(GPT2LMHeadModel(config), tokens, tokens.clone(), sequence=True)


def bert(batch: int = 64, seq: int = 512) -> Built:
    """With the mask of padded sequences as an input."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=2, hidden_size=256, num_attention_heads=4, intermediate_size=1024,
        vocab_size=4096, attn_implementation="sdpa",
    )  # fmt: skip
    tokens = _labels(batch, seq)
    mask = torch.ones(batch, seq, dtype=torch.long)
    return _built(BertForMaskedLM(config), tokens, mask, tokens.clone(), sequence=True)


def llama(batch: int = 32, seq: int = 256) -> Built:
    """Rotary positions, RMS norms, gated units, grouped queries."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=2, hidden_size=256, num_attention_heads=8, num_key_value_heads=2,
        intermediate_size=704, vocab_size=4096, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    tokens = _labels(batch, seq)
    return _built(LlamaForCausalLM(config), tokens, tokens.clone(), sequence=True)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], hidden: int = 256, vocabulary: int = 1024) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = kind(hidden, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.head(self.layers(self.embedding(tokens))[0])


def lstm(batch: int = 64, seq: int = 32) -> Built:
    tokens = _labels(batch, seq)
    return _built(Recurrent(nn.LSTM), tokens, tokens.clone(), sequence=True)


def gru(batch: int = 64, seq: int = 32) -> Built:
    tokens = _labels(batch, seq)
    return _built(Recurrent(nn.GRU), tokens, tokens.clone(), sequence=True)


class UnrolledCell(nn.Module):
    """One layer's cell, called once per time step."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(hidden, 4 * hidden)
        self.hidden = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
        i, f, g, o = (self.input(x) + self.hidden(h)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class Unrolled(nn.Module):
    def __init__(self, hidden: int, vocabulary: int, steps: int, batch: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.cells = nn.ModuleList(UnrolledCell(hidden) for _ in range(2))
        self.head = nn.Linear(hidden, vocabulary)
        self.steps = steps
        self.register_buffer("zero", torch.zeros(batch, hidden))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(tokens)
        state = [(self.zero, self.zero)] * 2
        outputs = []
        for step in range(self.steps):
            x = embedded[:, step]
            for place, cell in enumerate(self.cells):
                state[place] = cell(x, *state[place])
                x = state[place][0]
            outputs.append(x)
        return self.head(torch.stack(outputs, dim=1))


def unrolled_lstm(batch: int = 64, steps: int = 4) -> Built:
    tokens = _labels(batch, steps)
    model = Unrolled(512, 1024, steps, batch)
    return _built(model, tokens, tokens.clone(), sequence=True)
