"""TensorOpt's setting (§5): its cluster, its cost model's choices, its strategies.

- Memory is one copy of the parameters and what backward keeps: Table 1 has 108 GB of parameters and
  126 GB for the RNN on one GPU, and data parallelism on 16 takes 109 GB (§5.1), which is
  108 + (126 - 108) / 16. Gradients are left out, so they are applied at once here (Listing 1 has
  plain SGD).
- Partial sums are ended by all-reduce: "allreduce is conducted after the matrix multiplication"
  (§4.2), and a tensor map has no partial sums (§2.1).
- 14.5 GB of 16 GB may be used (§5.2): the default of `memory_headroom`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from paper.models import subject

from shardwise.advise import Options
from shardwise.advise.compare import Point, data_parallel, evaluate
from shardwise.advise.options import TOFU
from shardwise.advise.pins import parse_pin
from shardwise.advise.search import Search, search
from shardwise.hardware import Hardware, load_hardware

GIB = 2**30
GPUS = 16
PAPER = Options(
    optimizer="sgd",
    gradients_applied_at_once=True,
    pins=(parse_pin("*:partial=all_reduce"),),
)
NO_LIMIT = 1e15


def cluster() -> Hardware:
    """Machines of 8 V100 on NVLink, one EDR InfiniBand card each."""
    return load_hardware("dgx-v100-16gb")


def network(factor: float) -> Hardware:
    """The cluster with another bandwidth between machines."""
    base = cluster()
    return base.with_network(base.levels[-1].bandwidth_bytes_per_s * factor)


def pcie() -> Hardware:
    """The cluster with PCIe inside a machine (a twentieth of NVLink, §5.1)."""
    return replace(
        cluster(),
        name="dgx-v100-16gb[PCIe]",
        levels=(load_hardware("pcie-v100-8").levels[0], cluster().levels[1]),
    )


@cache
def frontier(model: str, gpus: int = GPUS, hardware: Hardware | None = None) -> Search:
    """The certified frontier (1 %)."""
    return search(subject(model), hardware or cluster(), gpus, PAPER)


def fastest(
    model: str,
    gpus: int = GPUS,
    hardware: Hardware | None = None,
    options: Options = PAPER,
    *,
    limit_bytes: float | None = None,
    batch: int = 0,
) -> Search:
    """A search for the shortest time under the limit (default: what one V100 may use)."""
    if limit_bytes is not None:
        options = replace(options, memory_limit_bytes=limit_bytes)
    return search(subject(model, batch), hardware or cluster(), gpus, options, near_limit=True)


def tofu_point(model: str, gpus: int) -> Point:
    """Tofu's strategy on our cost model."""
    found = search(subject(model), cluster(), gpus, replace(PAPER, method=TOFU))
    return evaluate(found.problem, found.solution.choices[0], smallest=True)


def parallel(found: Search) -> Point:
    """Data parallelism on the mesh of a search."""
    return data_parallel(found)


def computing(found: Search) -> np.ndarray:
    """Compute time of every point, seconds."""
    return np.array([found.compute_s(i) for i in range(len(found.time_s))])
