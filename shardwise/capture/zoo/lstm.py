"""The unrolled LSTM language model of Tofu §7.1 and TensorOpt's Table 1 ("RNN").

Tofu: 8 layers of 8192, 20 steps (RNN-8-8K). A layer has 8 · hidden² weights, 6 GiB as weight,
gradient and history. Tofu's Table 2 has 45.3 GB for 8 layers, which is 7.5 times that: its first
layer reads inputs that are much narrower than the hidden state, as here (`inputs`).

TensorOpt gives 108 GB of parameters, batch 256, and 109 GB under data parallelism on 16 GPUs, but
no sizes. Counted in one fp32 copy, like VGG16 in the same table, this is
`lstm:hidden=20480,inputs=20480,vocab=51200` (107.8 GiB); counted in Tofu's three copies, 8 layers
of 12288 (108.0 GiB without vocabulary).
"""

from __future__ import annotations

from typing import Any

from shardwise.capture.model import Model
from shardwise.capture.zoo.blocks import block, with_loss


def lstm(
    layers: int = 8,
    hidden: int = 8192,
    inputs: int = 1024,
    vocab: int = 32768,
    steps: int = 20,
    batch: int = 256,
) -> Model:
    """Returns `layers` LSTM layers unrolled over `steps` steps, with embedding, head and loss.

    Tokens are [batch, steps]. Every step of a layer is a call of the same cell: a linear on the
    input, one on the hidden state, four gates. Names show the step: `layers.0@3.add`.
    """
    import torch
    from torch import nn

    def forward(self: Any, tokens: Any) -> Any:
        embedded = self.embedding(tokens)
        # The first state is zero and enters as a constant, so that all steps are alike.
        state = [(self.zero_hidden, self.zero_cell)] * layers
        outputs = []
        for step in range(steps):
            x = embedded[:, step]
            for position, cell in enumerate(self.layers):
                state[position] = cell(x, *state[position])
                x = state[position][0]
            outputs.append(x)
        return self.head(torch.stack(outputs, dim=1)).transpose(1, 2)

    body = block(
        forward,
        embedding=nn.Embedding(vocab, inputs),
        layers=nn.ModuleList(_cell(inputs if i == 0 else hidden, hidden) for i in range(layers)),
        head=nn.Linear(hidden, vocab),
        zero_hidden=torch.zeros(batch, hidden),
        zero_cell=torch.zeros(batch, hidden),
    )
    tokens = torch.zeros(batch, steps, dtype=torch.long)
    return Model(with_loss(body), (tokens, tokens), input_names=("tokens", "labels"))


def _cell(inputs: int, hidden: int) -> Any:
    import torch
    from torch import nn

    def forward(self: Any, x: Any, h: Any, c: Any) -> Any:
        gates = self.input(x) + self.hidden(h)
        i, f, g, o = gates.chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    return block(
        forward,
        input=nn.Linear(inputs, 4 * hidden),
        hidden=nn.Linear(hidden, 4 * hidden, bias=False),
    )
