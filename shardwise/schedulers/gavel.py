"""Gavel's throughputs (Narayanan et al., OSDI 2020): JSON by worker type, job type, neighbour.

    {"v100": {"('vgg16 (batch size 256)', 2)": {"null": 1.654}}}

The number is steps per second of the job alone (`null`: no neighbour on the same GPUs) on that many
workers; `read_all_throughputs_json_v2` of Gavel's scheduler/utils.py reads it, and its simulator
multiplies it with seconds to get steps. Packing two jobs on one GPU is not priced here, so
no neighbours are named. Counts that do not fit have no entry: Gavel knows only what is listed.

Gavel's jobs have one fixed number of workers; each count is a job type of its own. Two documents
merge into one by merging their objects (other GPUs, other graphs).
"""

from __future__ import annotations

from typing import Any

from shardwise.schedulers.counts import Counts


def gavel(counts: Counts) -> dict[str, Any]:
    """Returns the throughputs of one graph on one GPU type, steps per second."""
    model = job_type(counts)
    return {
        counts.gpu_type.lower(): {
            f"('{model}', {count.gpus})": {"null": 1.0 / count.step_s} for count in counts.counts
        }
    }


def job_type(counts: Counts) -> str:
    """Returns what Gavel calls the job.

    Gavel reads the text between quotes, so the name has no quotes.
    """
    name = "".join(c if c.isprintable() and c not in "'\"\\" else "_" for c in counts.name)
    return f"{name} (batch size {counts.samples})" if counts.batch_known else name
