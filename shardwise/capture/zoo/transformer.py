"""The encoder-decoder Transformer (Vaswani et al.) of TensorOpt's Tables 1 and 4.

Table 1 gives 9.7 GB of parameters and 74 GB of memory at batch 256 and no sizes. Counted in one
fp32 copy in GiB, like VGG16 in the same table: 6 + 6 layers have 168 · hidden² weights, which with
a shared vocabulary of 32768 and hidden 3840 is 9.7 GiB. Sequences of 64 tokens come nearest to the
remaining 64 GB: all results of its operators are 81 GiB, of which backward needs a part.
`transformer-s` (Table 4, "4.8 GB") is hidden 2688: 4.85 GiB. Attention is written out (matmul,
softmax, matmul), as TensorFlow ran it in 2020: the score matrices are part of the paper's memory
figure.
"""

from __future__ import annotations

import math
from typing import Any

from shardwise.capture.model import Model
from shardwise.capture.zoo.blocks import block, with_loss
from shardwise.errors import CaptureError


def transformer(
    layers: int = 6,
    hidden: int = 3840,
    heads: int = 32,
    feed_forward: int = 0,
    vocab: int = 32768,
    tables: int = 1,
    seq: int = 64,
    dropout: float = 0.1,
    batch: int = 256,
) -> Model:
    """Returns `layers` encoder and decoder layers each, post-norm.

    Source and target tokens are [batch, seq]; `feed_forward` defaults to 4 · `hidden`. With
    `tables` = 1 source, target and output share one embedding, with 3 each has its own.
    """
    import torch
    from torch import nn

    if hidden % heads:
        raise CaptureError(
            f"{heads} heads do not divide hidden {hidden}", field="heads", expected="a divisor"
        )
    if tables not in (1, 3):
        raise CaptureError(
            f"source, target and output cannot share {tables} tables",
            field="tables",
            expected="1 or 3",
        )
    wide = feed_forward or 4 * hidden
    own = ("target_embedding", "output_embedding") if tables == 3 else ("embedding", "embedding")

    def embed(self: Any, table: Any, tokens: Any) -> Any:
        return self.dropout(table(tokens) * math.sqrt(hidden) + self.positions)

    def forward(self: Any, source: Any, target: Any) -> Any:
        target_table, output_table = (getattr(self, name) for name in own)
        memory = embed(self, self.embedding, source)
        for layer in self.encoder:
            memory = layer(memory)
        y = embed(self, target_table, target)
        for layer in self.decoder:
            y = layer(y, memory, self.future)
        return nn.functional.linear(y, output_table.weight).transpose(1, 2)

    body = block(
        forward,
        **{name: nn.Embedding(vocab, hidden) for name in ("embedding", *own)},
        positions=torch.zeros(seq, hidden),
        future=torch.zeros(seq, seq),
        dropout=nn.Dropout(dropout),
        encoder=nn.ModuleList(_encoder(hidden, heads, wide, dropout) for _ in range(layers)),
        decoder=nn.ModuleList(_decoder(hidden, heads, wide, dropout) for _ in range(layers)),
    )
    tokens = torch.zeros(batch, seq, dtype=torch.long)
    names = ("source", "target", "labels")
    return Model(with_loss(body), (tokens, tokens, tokens), input_names=names)


def _encoder(hidden: int, heads: int, wide: int, dropout: float) -> Any:
    from torch import nn

    def forward(self: Any, x: Any) -> Any:
        x = self.norm1(x + self.dropout(self.attention(x, x)))
        return self.norm2(x + self.dropout(self.feed_forward(x)))

    return block(
        forward,
        attention=_attention(hidden, heads, dropout),
        norm1=nn.LayerNorm(hidden),
        feed_forward=_feed_forward(hidden, wide),
        norm2=nn.LayerNorm(hidden),
        dropout=nn.Dropout(dropout),
    )


def _decoder(hidden: int, heads: int, wide: int, dropout: float) -> Any:
    from torch import nn

    def forward(self: Any, x: Any, memory: Any, future: Any) -> Any:
        x = self.norm1(x + self.dropout(self.attention(x, x, future)))
        x = self.norm2(x + self.dropout(self.cross_attention(x, memory)))
        return self.norm3(x + self.dropout(self.feed_forward(x)))

    return block(
        forward,
        attention=_attention(hidden, heads, dropout),
        norm1=nn.LayerNorm(hidden),
        cross_attention=_attention(hidden, heads, dropout),
        norm2=nn.LayerNorm(hidden),
        feed_forward=_feed_forward(hidden, wide),
        norm3=nn.LayerNorm(hidden),
        dropout=nn.Dropout(dropout),
    )


def _feed_forward(hidden: int, wide: int) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(hidden, wide), nn.ReLU(), nn.Linear(wide, hidden))


def _attention(hidden: int, heads: int, dropout: float) -> Any:
    import torch
    from torch import nn

    width = hidden // heads

    def split(x: Any) -> Any:
        return x.view(x.shape[0], x.shape[1], heads, width).transpose(1, 2)

    def forward(self: Any, x: Any, memory: Any, future: Any = None) -> Any:
        q, k, v = split(self.q(x)), split(self.k(memory)), split(self.v(memory))
        scores = torch.matmul(q, k.transpose(2, 3)) * (1 / math.sqrt(width))
        if future is not None:
            scores = scores + future
        weights = self.dropout(torch.softmax(scores, dim=-1))
        mixed = torch.matmul(weights, v).transpose(1, 2)
        return self.out(mixed.reshape(x.shape[0], x.shape[1], hidden))

    return block(
        forward,
        q=nn.Linear(hidden, hidden),
        k=nn.Linear(hidden, hidden),
        v=nn.Linear(hidden, hidden),
        out=nn.Linear(hidden, hidden),
        dropout=nn.Dropout(dropout),
    )
