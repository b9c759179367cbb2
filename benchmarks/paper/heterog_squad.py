"""BERT-large and XLNet-large with the loss of SQuAD's answers, for `shardwise capture`.

HeteroG's code (github.com/eval-submissions/HeteroG, GAT/prepare_graphdef_input.py) trains
BERT-large so: padded sequences with their mask and segments, one linear layer for the first and the
last token of the answer. It has no XLNet; the same is assumed. Attention is written out (matmul,
softmax, matmul), as TensorFlow ran it in 2020.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers
from torch import nn

BERT: dict[str, Any] = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "attn_implementation": "eager",
}
"""24 layers of these sizes are BERT-large (bert_large/bert_config.json)."""


class Squad(nn.Module):  # type: ignore[misc]
    """The loss of the answer's first and last token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        model.config.use_cache = False
        self.model = model

    def forward(self, ids: Any, mask: Any, segments: Any, first: Any, last: Any) -> Any:
        """`ids`, `mask`, `segments` (batch, seq), `first` and `last` (batch,)."""
        return self.model(
            ids,
            attention_mask=mask,
            token_type_ids=segments,
            start_positions=first,
            end_positions=last,
        ).loss


def _inputs(batch: int, seq: int) -> tuple[Any, ...]:
    ids = torch.zeros(batch, seq, dtype=torch.int64)
    mask = torch.zeros(batch, seq)
    position = torch.zeros(batch, dtype=torch.int64)
    return ids, mask, ids, position, position


def _bert(layers: int, batch: int, seq: int) -> tuple[nn.Module, tuple[Any, ...]]:
    config = transformers.BertConfig(num_hidden_layers=layers, **BERT)
    return Squad(transformers.BertForQuestionAnswering(config)), _inputs(batch, seq)


def _xlnet(layers: int, batch: int, seq: int) -> tuple[nn.Module, tuple[Any, ...]]:
    # The sizes of XLNet-large are XLNetConfig's own.
    config = transformers.XLNetConfig(n_layer=layers)
    return Squad(transformers.XLNetForQuestionAnsweringSimple(config)), _inputs(batch, seq)


bert_24, bert_48 = partial(_bert, 24), partial(_bert, 48)
xlnet_24, xlnet_48 = partial(_xlnet, 24), partial(_xlnet, 48)
