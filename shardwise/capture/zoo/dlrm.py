"""DLRM, the recommender of Naumov et al. (2019), at the sizes of MLPerf Training.

13 numbers go through the bottom perceptron (512, 256, 128), 26 categories through embedding tables
of 128 columns; the dot products of all 27 vectors with each other, and the bottom's result itself,
go through the top perceptron (1024, 1024, 512, 256, 1); the loss is the binary cross entropy. The
tables have as many rows as the categories of the Criteo Terabyte click logs take values, at most 40
million each as MLPerf limits them: 187,767,399 rows, 90 GiB in fp32. There is one index per
category, so that a bag of embeddings is one row.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from shardwise.capture.model import Model
from shardwise.capture.zoo.blocks import block

_ROWS = (
    39_884_406, 39_043, 17_289, 7_420, 20_263, 3, 7_120, 1_543, 63, 38_532_951, 2_953_546, 403_346,
    10, 2_208, 11_938, 155, 4, 976, 14, 39_979_771, 25_641_295, 39_664_984, 585_935, 12_972, 108,
    36,
)  # fmt: skip
_NUMBERS = 13


def dlrm(
    rows: int = 40_000_000,
    columns: int = 128,
    tables: int = 26,
    hidden: int = 1024,
    batch: int = 65536,
) -> Model:
    """Returns DLRM with `tables` embeddings of `columns`; `hidden` is the top's width.

    No embedding has more than `rows` rows. Inputs are numbers [batch, 13], categories
    [batch, tables] and clicks [batch].
    """
    import torch
    from torch import nn

    sizes = [min(_ROWS[i % len(_ROWS)], rows) for i in range(tables)]
    vectors = tables + 1
    pairs = vectors * (vectors - 1) // 2

    def forward(self: Any, numbers: Any, categories: Any, clicks: Any) -> Any:
        dense = self.bottom(numbers)
        looked_up = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        rows = torch.stack([dense, *looked_up], dim=1)
        products = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)
        # Each pair once: the elements below the diagonal.
        crossed = torch.index_select(products, 1, self.below)
        logits = self.top(torch.cat((dense, crossed), dim=1)).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(logits.float(), clicks)

    body = block(
        forward,
        bottom=_perceptron(_NUMBERS, 4 * columns, 2 * columns, columns),
        tables=nn.ModuleList(nn.Embedding(size, columns) for size in sizes),
        below=torch.zeros(pairs, dtype=torch.long),
        top=_perceptron(columns + pairs, hidden, hidden, hidden // 2, hidden // 4, 1, last=False),
    )
    numbers = torch.zeros(batch, _NUMBERS)
    categories = torch.zeros(batch, tables, dtype=torch.long)
    clicks = torch.zeros(batch)
    # `with_loss` does not fit clicks; the wrapper makes the names like every other model's.
    module = block(lambda self, *inputs: self.model(*inputs), model=body)
    names = ("numbers", "categories", "clicks")
    return Model(module, (numbers, categories, clicks), input_names=names)


def _perceptron(*widths: int, last: bool = True) -> Any:
    """Returns linear layers with ReLU between them, and after the last one if `last`."""
    from torch import nn

    parts: list[Any] = []
    for inputs, outputs in pairwise(widths):
        parts += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*(parts if last else parts[:-1]))
