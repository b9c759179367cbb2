"""The same source is the same graph in every process, whatever the hashes of words are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

SMALL = (
    "hidden_size=64,intermediate_size=96,num_attention_heads=4,num_key_value_heads=2,head_dim=16,"
    "vocab_size=128,sliding_window=8,num_hidden_layers=6"
)
PROGRAM = f"""
from shardwise.capture import capture
from shardwise.graph import graph_id
print(*set(("sliding_attention", "full_attention")))
print(graph_id(capture("hf:Gemma3TextConfig:{SMALL}", batch=2, seq=16)))
"""


def test_a_graph_does_not_depend_on_the_order_of_a_set() -> None:
    """Gemma 3 has rotations for either kind of layer, and goes through the set of kinds."""
    said = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.splitlines()
        for seed in ("0", "1")
    ]  # fmt: skip
    (one, first), (other, second) = said
    assert sorted(one.split()) == sorted(other.split()) and one != other
    assert first == second
