"""The same source is the same graph in every process, whatever the hashes of words are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("transformers")

from shardwise.capture import capture
from shardwise.graph import graph_id

pytestmark = pytest.mark.torch

SMALL = (
    "hidden_size=64,intermediate_size=96,num_attention_heads=4,num_key_value_heads=2,head_dim=16,"
    "vocab_size=128,sliding_window=8,num_hidden_layers=6"
)
SOURCE = f"hf:Gemma3TextConfig:{SMALL}"
KINDS = ("sliding_attention", "full_attention")
ORDER = f"print(*set({KINDS!r}))"
GRAPH = f"""
from shardwise.capture import capture
from shardwise.graph import graph_id
print(graph_id(capture({SOURCE!r}, batch=2, seq=16)))
"""


def said(program: str, seed: str) -> str:
    """Returns what a process with these hashes prints."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def test_a_graph_does_not_depend_on_the_order_of_a_set() -> None:
    """Gemma 3 has rotations for either kind of layer, and goes through the set of kinds.

    A process with the other order captures it, beside this one.
    """
    ours = " ".join(set(KINDS))
    orders = {said(ORDER, seed): seed for seed in ("0", "1")}
    assert len(orders) == 2 and ours in orders
    (other,) = (seed for order, seed in orders.items() if order != ours)
    assert said(GRAPH, other) == graph_id(capture(SOURCE, batch=2, seq=16))
