"""AdaptDL: the table of goodputs that `shardwise.schedulers.goodput.Goodput` reads.

`min_replicas` and `max_replicas` are what AdaptDL's `JobInfo` takes: the fewest GPUs on which the
job fits and the count beyond which it is not faster.
"""

from __future__ import annotations

from typing import Any

from shardwise.schedulers.counts import Counts
from shardwise.schedulers.goodput import GOODPUT_SCHEMA


def adaptdl(counts: Counts) -> dict[str, Any]:
    """Returns `shardwise.goodput/1`: samples per second of every count that fits."""
    return {
        "schema": GOODPUT_SCHEMA,
        "name": counts.name,
        "hardware": counts.hardware,
        "gpu_type": counts.gpu_type,
        "batch_size": counts.samples if counts.batch_known else None,
        "min_replicas": counts.smallest.gpus,
        "max_replicas": counts.best().gpus,
        "goodputs": [
            {"nodes": c.nodes, "replicas": c.gpus, "samples_per_s": counts.rate(c)}
            for c in counts.counts
        ],
    }
