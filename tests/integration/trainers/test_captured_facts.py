"""What graphs of other families show of their models (shardwise/trainers/facts.py)."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from shardwise.capture.capture import capture
from shardwise.trainers.facts import facts_of

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("source", "members"),
    [
        (
            "GPTNeoXConfig:intermediate_size=160",
            {"parallel": True, "rotary_share": 0.25, "activation": "gelu", "gated": False},
        ),
        (
            "Qwen2Config:intermediate_size=160,num_key_value_heads=2",
            {"qkv_bias": True, "bias": False, "key_value_heads": 2, "rotary_share": 1.0},
        ),
        (
            "Qwen3Config:intermediate_size=160,num_key_value_heads=2,head_dim=32",
            {"query_key_norm": True, "head_size": 32, "norm": "RMSNorm", "feed_forward": 160},
        ),
    ],
)
def test_facts_of_other_families(source: str, members: dict[str, Any]) -> None:
    sizes = "hidden_size=64,num_hidden_layers=2,num_attention_heads=4,vocab_size=512"
    facts = facts_of(capture(f"hf:{source},{sizes}", batch=4, seq=16))
    assert facts is not None
    assert {name: getattr(facts, name) for name in members} == members
