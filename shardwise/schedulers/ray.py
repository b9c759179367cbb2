"""Ray: the keywords of Ray Train's `ScalingConfig`, one worker per GPU; a plan's placement group.

`num_workers` is a number, or (fewest, most) for elastic training, where Ray runs with any number
between (ray.train.v2.api.config). So the two are the ends of a run of counts all of which fit; a
single count is a number.

`ScalingConfig` has one accelerator type for all workers, so the hosts of a plan are a placement
group: one bundle for each host, in the order of ranks, on a node of its own (STRICT_SPREAD). Nodes
have one unit of `accelerator_type:NAME`, of which Ray's tasks, and these bundles, take a
thousandth.

A training script imports `keywords` where Ray runs, so this module imports nothing but the
standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwise.schedulers.counts import Counts
    from shardwise.schedulers.plan_hosts import Hosts

ACCELERATOR = "accelerator_type:"
"""What Ray's resource of an accelerator type begins with (ray._private.ray_constants)."""
SOME = 0.001


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


def placement_group(hosts: Hosts) -> dict[str, Any]:
    """Returns the keywords of `ray.util.placement_group`: a bundle for each host of a plan."""
    bundles = [
        {"CPU": group.per_node, "GPU": group.per_node, f"{ACCELERATOR}{name}": SOME}
        for group in hosts.groups
        for name in [group.gpu_type or group.group.upper() or group.kind]
        for _ in range(group.nodes)
    ]
    return {"bundles": bundles, "strategy": "STRICT_SPREAD"}
