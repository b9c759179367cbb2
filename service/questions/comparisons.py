"""Comparisons: what practitioners and other systems use, beside our answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.questions.pipelines import arguments_of
from shardwise.answers import Options
from shardwise.cost.options import Progress
from shardwise.documents import Comparison
from shardwise.graph import Graph
from shardwise.hardware import Hardware
from shardwise.peers import compare


def compared(
    q: Mapping[str, Any], graph: Graph, hardware: Hardware, options: Options, progress: Progress
) -> Comparison:
    """Returns the comparison of a question."""
    return compare(
        graph,
        hardware,
        q["gpus"],
        options,
        progress,
        proposals=q["proposals"],
        seed=q["seed"],
        **arguments_of(q),
    )
