"""The shapes of CTC losses: torch runs them on data alone, since lengths may be data.

`aten::_ctc_loss(log_probs [T, B, C], targets, …)` returns a loss for every sequence, [B], and the
log-probabilities of alignments, [B, T, 2S + 1], for targets [B, S].
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any


@cache
def register_shapes() -> None:
    """Tells torch what a CTC loss of padded targets returns, so that it can be exported.

    Where torch takes no shapes beside its own (2.6), which are those of known lengths, they stay.
    """
    import torch

    with suppress(RuntimeError):
        torch.library.register_fake("aten::_ctc_loss", _shapes)


def _shapes(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Any, Any]:
    frames, samples, _ = log_probs.shape
    longest = targets.shape[1] if targets.dim() == 2 else max(target_lengths, default=0)
    return log_probs.new_empty(samples), log_probs.new_empty(samples, frames, 2 * longest + 1)
