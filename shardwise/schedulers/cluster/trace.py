"""Generated jobs, in the shape of a public trace.

Requests and durations are those by which Gavel (Narayanan et al., OSDI 2020, §7.1) resembles
Microsoft's Philly trace (Jeon et al., USENIX ATC 2019); its generator is scheduler/utils.py of
stanford-futuredata/gavel:

- GPUs asked for: 1 (70 %), 2 (10 %), 4 (15 %), 8 (5 %);
- duration on what is asked for: 10^x minutes with x uniform in [1.5, 3] (80 %) or [3, 4] (20 %);
- arrivals: a Poisson process. Its rate here follows from the load wanted: GPU-seconds asked for
  per second, over the GPUs that there are.

A job's work is what it does in its duration on what it asks for. A request on which its graph does
not fit is raised to the next count that fits: its user would have noticed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from shardwise.errors import BadInput
from shardwise.schedulers.cluster.job import MOST_JOBS, ClusterJob, rates_of, request_at_least
from shardwise.schedulers.counts import Counts

REQUESTS = ((1, 0.70), (2, 0.10), (4, 0.15), (8, 0.05))
LONG = 0.2
SHORT_MINUTES, LONG_MINUTES = (1.5, 3.0), (3.0, 4.0)


def generate(
    curves: Mapping[str, Counts], count: int, gpus: int, *, seed: int, load: float
) -> tuple[list[ClusterJob], list[str]]:
    """Returns `count` jobs and the curve of each, the same for the same seed.

    Raises `BadInput` for numbers out of range, and `NotFound` for a curve that has no count up to
    `gpus`.
    """
    if not 1 <= count <= MOST_JOBS:
        raise BadInput(f"{count} jobs", field="generate", expected=f"1 to {MOST_JOBS}")
    if not 0 < load <= 100:
        raise BadInput(f"got {load}", field="load", expected="above 0, to 100")
    rng = random.Random(seed)
    names = sorted(curves)
    rates = {name: rates_of(curves[name].up_to(gpus)) for name in names}
    drawn = []
    for _ in range(count):
        graph = rng.choice(names)
        asked = rng.choices([n for n, _ in REQUESTS], [p for _, p in REQUESTS])[0]
        low, high = LONG_MINUTES if rng.random() < LONG else SHORT_MINUTES
        seconds = 60 * 10 ** rng.uniform(low, high)
        drawn.append((graph, request_at_least(rates[graph], asked), seconds))
    work = sum(request * seconds for _, request, seconds in drawn)
    mean_s = work / (count * gpus * load)
    jobs, at = [], 0.0
    for number, (graph, request, seconds) in enumerate(drawn):
        rate = dict(rates[graph])[request]
        name = f"{graph} {number}"
        jobs.append(ClusterJob(name, at, seconds * rate, request, rates[graph]))
        at += -math.log(1.0 - rng.random()) * mean_s
    return jobs, [graph for graph, _, _ in drawn]
