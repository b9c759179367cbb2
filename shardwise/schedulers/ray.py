"""Ray Train: the keywords of `ScalingConfig`, one worker per GPU.

`num_workers` is a number, or (fewest, most) for elastic training, where Ray runs with any number
between (ray.train.v2.api.config). So the two are the ends of a run of counts all of which fit; a
single count is a number.

A training script imports `keywords` where Ray runs, so this module imports nothing but the
standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwise.schedulers.counts import Counts


def ray(counts: Counts, efficiency: float = 0.0) -> dict[str, Any]:
    """Returns the keywords of `ScalingConfig`; JSON's bounds are a list, Ray wants a tuple."""
    run = counts.run_below(counts.best(efficiency))
    low, high = run[0].gpus, run[-1].gpus
    return {
        "num_workers": [low, high] if low < high else high,
        "use_gpu": True,
        "resources_per_worker": {"GPU": 1},
        "placement_strategy": "PACK",
    }


def keywords(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the keywords from a document that was JSON."""
    workers = document["num_workers"]
    return {**document, "num_workers": tuple(workers) if isinstance(workers, list) else workers}
