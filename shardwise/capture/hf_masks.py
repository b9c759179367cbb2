"""Keeps transformers from building masks that training on full sequences never builds.

At run time transformers looks at the data: sequences that are neither padded nor packed need no
mask tensor if attention's own causal flag is enough. During export there is no data to look at, so
it would build a [batch, 1, seq, seq] mask, and the packing test before it, neither of which occurs
in a training step on such sequences.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from shardwise.capture.fused import SINKS, WINDOWS


@contextlib.contextmanager
def full_sequences() -> Iterator[None]:
    """Treats every sequence as full, not padded and not packed, within this context.

    Attention with sinks and causal windows have no mask (`fused.py`). Other windows shorter than
    the sequence and masks of other forms are still built.
    """
    from transformers import masking_utils

    masks = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    detect = "find_packed_sequence_indices"
    original = getattr(masking_utils, detect, None)

    def mask(*args: Any, **kwargs: Any) -> Any:
        return None if _needs_none(kwargs) else masking_utils.sdpa_mask(*args, **kwargs)

    def windowed(*args: Any, **kwargs: Any) -> Any:
        whole = {**kwargs, "local_size": None}
        return None if _needs_none(whole) else masking_utils.sdpa_mask(*args, **kwargs)

    masks["sdpa"] = mask
    masks[SINKS] = lambda *args, **kwargs: None
    masks[WINDOWS] = windowed
    if original is not None:
        setattr(masking_utils, detect, lambda position_ids: None)
    try:
        yield
    finally:
        del masks["sdpa"], masks[SINKS], masks[WINDOWS]
        if original is not None:
            setattr(masking_utils, detect, original)


def _needs_none(request: dict[str, Any]) -> bool:
    """Returns what transformers' own test says at run time when no position is masked."""
    keys, window = request.get("kv_length"), request.get("local_size")
    causal = request.get("allow_is_causal_skip", True)
    return bool(
        (causal or request.get("allow_is_bidirectional_skip"))
        and keys is not None
        and request.get("attention_mask") is None
        and request.get("q_length") in (keys, None)
        and (window is None or keys < window)
    )
