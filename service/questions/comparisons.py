"""Comparisons: what practitioners and other systems use, beside our answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.questions.pipelines import arguments_of
from shardwise.advise import Options
from shardwise.cost.named_options import of_request
from shardwise.cost.options import Progress
from shardwise.documents import Comparison
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import Hardware, devices_of
from shardwise.peers import compare
from shardwise.peers.comparison import check_options
from shardwise.search.fitting import of_one_kind


def check_comparison(gpus: int | str, hardware: Hardware, options: Options) -> None:
    """Raises `BadInput` for what cannot be compared, naming the member of the request."""
    try:
        check_options(options)
        if not options.overlap:
            of_one_kind(devices_of(gpus, hardware))
    except BadInput as error:
        raise of_request(error) from None


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
