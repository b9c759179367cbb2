"""TensorOpt's setting (§5): its cluster, its cost model's choices, its strategies.

- Memory is one copy of the parameters and what backward keeps: Table 1 has 108 GB of parameters and
  126 GB for the RNN on one GPU, and data parallelism on 16 takes 109 GB (§5.1), which is
  108 + (126 - 108) / 16. Gradients are left out, so they are applied at once here (Listing 1 has
  plain SGD).
- Partial sums are ended by all-reduce: "allreduce is conducted after the matrix multiplication"
  (§4.2), and a tensor map has no partial sums (§2.1).
- Neither ZeRO nor recomputation.
- 14.5 GB of 16 GB may be used (§5.2): the default of `memory_headroom`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paper.models import subject
from shardwise.answers import Options
from shardwise.cost.assemble import assemble
from shardwise.cost.options import TOFU, quiet
from shardwise.cost.pins import parse_pin
from shardwise.hardware import Hardware, load_hardware
from shardwise.peers.data_parallel import data_parallel_rows
from shardwise.peers.evaluate import Point, evaluate
from shardwise.search.search import Search, search

GIB = 2**30
GPUS = 16
PAPER = Options(
    overlap=False,
    optimizer="sgd",
    zero=(0,),
    gradients_applied_at_once=True,
    pins=(parse_pin("*:partial=all_reduce"),),
)
NO_LIMIT = 1e15
LIMIT_S = 60.0
"""Seconds for one frontier; what was certified by then is in the results."""


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


_FRONTIERS: dict[tuple[str, int, str], Search] = {}


def frontier(model: str, gpus: int = GPUS, hardware: Hardware | None = None) -> Search:
    """The frontier, tracked once for a hardware's name: certified within 1 % but for `LIMIT_S`."""
    hardware = hardware or cluster()
    key = (model, gpus, hardware.name)
    if key not in _FRONTIERS:
        options = replace(PAPER, time_limit_s=LIMIT_S)
        _FRONTIERS[key] = search(subject(model), hardware, gpus, options)
    return _FRONTIERS[key]


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


def tofu_points(model: str, gpus: int) -> tuple[Point, Point]:
    """Tofu's strategy on our cost model: in TensorOpt's space, and with all parameters in shards.

    The second is how TensorOpt simulated it, "splitting all the tensors among all the devices and
    disabling tensor replication" (§5.1): parameters that its splits would leave whole lie in shards
    too and are gathered for use (ZeRO stage 3), which TensorOpt's own space does not have.
    """
    recursion = replace(PAPER, method=TOFU, pins=())
    splits = search(subject(model), cluster(), gpus, recursion)
    whole, sharded = (_priced(splits, replace(PAPER, zero=(stage,))) for stage in (0, 3))
    return whole, sharded


def _priced(splits: Search, options: Options) -> Point:
    """The splits of a search in the space of these options, parameters over the most axes."""
    variant = splits.subject.variant(options, 1)
    problem = assemble(variant, splits.hardware, splits.mesh, options, quiet)
    rows = []
    for ours, theirs, k in zip(
        problem.costs, splits.problem.costs, splits.solution.choices[0], strict=True
    ):
        alike = np.flatnonzero((ours.assignment == theirs.assignment[k]).all(axis=1))
        rows.append(int(alike[np.argmax(ours.zero_axes[alike])]))
    return evaluate(problem, rows, smallest=True)


def parallel(result: Search) -> Point:
    """Data parallelism on the mesh of a search."""
    return evaluate(result.problem, data_parallel_rows(result.problem).choices)


def compute_s(result: Search) -> np.ndarray:
    """Compute time of every point, seconds."""
    return np.array([result.compute_s(i) for i in range(len(result.time_s))])
