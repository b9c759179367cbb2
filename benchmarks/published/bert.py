"""BERT-large as NVIDIA trains it: the head only for masked tokens, attention step by step.

transformers' own pre-training model computes the head for every token; NVIDIA's gathers the
masked ones first (run_pretraining.py, dense sequence output; 20 of 128, 80 of 512 tokens). The
vocabulary is padded to a multiple of 8, as there. The mask of padded tokens is left out.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional

LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 30528,
    "attn_implementation": "eager",
}
MASKED = {128: 20, 512: 80}
"""Masked predictions of a sequence by its length (README: phases 1 and 2)."""


class MaskedPretraining(nn.Module):  # type: ignore[misc]
    """The loss of masked tokens and of the next sentence."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.BertConfig(**LARGE)
        config.use_cache = False
        model = transformers.BertForPreTraining(config)
        self.bert, self.heads = model.bert, model.cls

    def forward(self, ids: Any, types: Any, positions: Any, labels: Any, next_sentence: Any) -> Any:
        """`ids`, `types` (batch, seq), `positions` (batch, masked, hidden).

        `labels` (batch, masked), `next_sentence` (batch,).
        """
        hidden, pooled = self.bert(ids, token_type_ids=types)[:2]
        masked = torch.gather(hidden, 1, positions)
        scores, related = self.heads(masked, pooled)
        loss = functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        return loss + functional.cross_entropy(related, next_sentence)


class Squad(nn.Module):  # type: ignore[misc]
    """The loss of the answer's first and last token."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.BertConfig(**LARGE)
        config.use_cache = False
        self.model = transformers.BertForQuestionAnswering(config)

    def forward(self, ids: Any, types: Any, first: Any, last: Any) -> Any:
        """`ids`, `types` (batch, seq), `first` and `last` (batch,)."""
        outputs = self.model(ids, token_type_ids=types, start_positions=first, end_positions=last)
        return outputs.loss


def pretraining(batch: int, seq: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """The module and its inputs, for `shardwise capture`."""
    masked = MASKED[seq]
    return MaskedPretraining(), (
        torch.zeros(batch, seq, dtype=torch.int64),
        torch.zeros(batch, seq, dtype=torch.int64),
        torch.zeros(batch, masked, LARGE["hidden_size"], dtype=torch.int64),
        torch.zeros(batch, masked, dtype=torch.int64),
        torch.zeros(batch, dtype=torch.int64),
    )


def squad(batch: int, seq: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """The module and its inputs, for `shardwise capture`."""
    return Squad(), (
        torch.zeros(batch, seq, dtype=torch.int64),
        torch.zeros(batch, seq, dtype=torch.int64),
        torch.zeros(batch, dtype=torch.int64),
        torch.zeros(batch, dtype=torch.int64),
    )
