"""What diffusers decides by data or by device while it runs, decided beforehand.

Texts are full, without padding. Mochi's attention takes the tokens that a mask leaves of each
sample's text, sample by sample; of full texts that is one attention of all tokens, of the whole
batch. Its positions are computed under `torch.autocast`, which does not know the meta device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


def with_full_texts(body: Any) -> None:
    """Makes a model's attention read whole texts; models that already do are unchanged."""
    for module in body.modules():
        if type(module).__name__ == "MochiAttention":
            module.processor = _joint_attention


@contextlib.contextmanager
def on_meta() -> Iterator[None]:
    """Lets models ask for autocast on the meta device in this context; it changes nothing there."""
    import torch

    original = torch.autocast

    def autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
        if device_type == "meta":
            return contextlib.nullcontext()
        return original(device_type, *args, **kwargs)

    torch.autocast = autocast
    try:
        yield
    finally:
        torch.autocast = original


def _joint_attention(
    attention: Any,
    hidden_states: Any,
    encoder_hidden_states: Any,
    attention_mask: Any,
    image_rotary_emb: Any = None,
) -> tuple[Any, Any]:
    """Attends from all tokens of video and text to all of them."""
    import torch

    video = _projected(attention, hidden_states, ("to_q", "to_k", "to_v"), ("norm_q", "norm_k"))
    text = _projected(
        attention,
        encoder_hidden_states,
        ("add_q_proj", "add_k_proj", "add_v_proj"),
        ("norm_added_q", "norm_added_k"),
    )
    if image_rotary_emb is not None:
        video[:2] = [_rotated(x, *image_rotary_emb) for x in video[:2]]
    query, key, value = (
        torch.cat(pair, dim=1).transpose(1, 2) for pair in zip(video, text, strict=True)
    )
    y = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    y = y.transpose(1, 2).flatten(2, 3)
    of_video, of_text = y.split_with_sizes((hidden_states.shape[1], text[0].shape[1]), dim=1)
    for layer in attention.to_out:
        of_video = layer(of_video)
    return of_video, attention.to_add_out(of_text) if hasattr(attention, "to_add_out") else of_text


def _projected(
    attention: Any, states: Any, projections: tuple[str, ...], norms: tuple[str, ...]
) -> list[Any]:
    """Returns queries, keys and values [batch, token, head, width], the first two normalised."""
    found = [
        getattr(attention, name)(states).unflatten(2, (attention.heads, -1)) for name in projections
    ]
    for place, name in enumerate(norms):
        norm = getattr(attention, name)
        found[place] = found[place] if norm is None else norm(found[place])
    return found


def _rotated(x: Any, cos: Any, sin: Any) -> Any:
    """Rotates neighbouring pairs of channels, in float32."""
    import torch

    first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype)
