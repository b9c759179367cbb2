"""Plans run one after another by one torchrun over several hosts, as JSON lines of their times.

    torchrun … -m harness.execute.on_hosts ASKED OUTPUT

ASKED is a file with `source` (of a model; batch and sequence length may follow), `plans`,
`warm_up`, `steps`, `alone` (steps in which communication is timed) and `within_s`, after which no
more plan begins. Rank 0 writes a line of seconds and bytes for each plan that ran.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist

from harness.execute.trained_rank import Source, TrainedRank
from shardwise.documents import Plan, read
from shardwise.execute.timing import LEAST_TIMED, time_steps
from shardwise.measure.cores import settle_on_cpu
from shardwise.measure.rank import meet
from shardwise.measure.world import find_world


def times_of(
    source: Source, plan: Plan, rank: int, warm_up: int, steps: int, alone: int = LEAST_TIMED
) -> dict[str, float]:
    """Returns seconds and bytes of a plan's steps over all ranks of the default group."""
    trained = TrainedRank(source, plan, rank)
    timed = time_steps(
        trained.step, trained.live_tensors, torch.device("cpu"),
        warm_up=warm_up, steps=steps, least_timed=alone,
    )  # fmt: skip
    return {
        "iteration": median(timed.iterations_s),
        "compute": timed.compute_s,
        "communication": timed.communication_s,
        "peak": float(max(timed.peak_bytes)),
    }


def main(arguments: Sequence[str]) -> None:
    """Runs what is asked on this rank."""
    asked: dict[str, Any] = json.loads(Path(arguments[0]).read_text())
    world = find_world()
    assert world is not None, "torchrun starts this"
    torch.set_num_threads(1)
    settle_on_cpu(world.local_rank, world.ranks_per_node)
    meet(dist, world, "gloo")
    source = (*asked["source"], None, None)[:3]
    began = monotonic()
    how = [asked[name] for name in ("warm_up", "steps", "alone")]
    for known in asked["plans"]:
        late = torch.tensor([float(monotonic() - began > asked["within_s"])])
        dist.broadcast(late, 0)
        if late[0]:
            break
        times = times_of(source, read(known, Plan), world.rank, *how)
        if world.rank == 0:
            with Path(arguments[1]).open("a") as output:
                output.write(f"{json.dumps(times)}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
