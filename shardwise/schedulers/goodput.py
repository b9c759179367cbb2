"""Curves as AdaptDL's and Sia's policies ask for them: by (nodes, replicas), for arrays.

AdaptDL (Pollux, Qiao et al., OSDI 2021) maximises goodput = throughput · statistical efficiency
(§3.1); a curve is of one global batch size, at which the efficiency is 1, so goodput is samples
per second. Its policy calls `speedup_fn(num_nodes, num_replicas)` (adaptdl_sched/policy/pollux.py)
with whole numbers or arrays; `Goodput` is such a function. Sia (Jayaram Subramanya et al., SOSP
2023) has one such function per GPU type and asks it for `get_goodput`; its `SpeedupFunction` wraps
a goodput function with `optimize`, which `Goodput` has too.

A replica is one GPU. The result is 0 where the curve has no number: a count that does not fit, a
count beyond its end, or a placement on more nodes than the fewest (there the job fits, but the
curve has no time for it). A speedup of 0 is what those policies never choose.

Only numpy is needed: the module runs in the scheduler's own environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import BadInput

GOODPUT_SCHEMA = "shardwise.goodput/1"
Floats = NDArray[np.float64]


class Goodput:
    """Samples per second by nodes and replicas; called, it gives speedups.

    A speedup is the rate over that of one replica. Where one replica does not fit, the smallest
    count that does, g, counts as a speedup of g, so that its GPUs are as useful as a single one.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        """`document` is `shardwise.goodput/1`. Raises `BadInput` naming the field."""
        if document.get("schema") != GOODPUT_SCHEMA:
            raise BadInput(
                f"got {str(document.get('schema'))[:60]!r}", field="schema", expected=GOODPUT_SCHEMA
            )
        rates = document.get("goodputs")
        if not isinstance(rates, list) or not rates:
            raise BadInput("no list", field="goodputs", expected="at least one count")
        self.name = str(document.get("name"))
        self.gpu_type = str(document.get("gpu_type"))
        self.batch_size = document.get("batch_size") or 1
        self.min_replicas = int(document["min_replicas"])
        self.max_replicas = int(document["max_replicas"])
        last = max(int(row["replicas"]) for row in rates)
        self._nodes = np.zeros(last + 1, dtype=np.int64)
        self._rates = np.zeros(last + 1)
        for row in rates:
            self._nodes[row["replicas"]] = row["nodes"]
            self._rates[row["replicas"]] = row["samples_per_s"]
        first = int(np.flatnonzero(self._rates)[0])
        self._one = float(self._rates[first]) / first

    def __call__(self, num_nodes: Any, num_replicas: Any) -> Any:
        """Returns speedups; arrays broadcast, two numbers give a number."""
        speedup = self.throughput(num_nodes, num_replicas) / self._one
        scalar = np.isscalar(num_nodes) and np.isscalar(num_replicas)
        return float(speedup) if scalar else speedup

    def throughput(self, num_nodes: Any, num_replicas: Any) -> Floats:
        """Returns samples per second, shape of both arguments broadcast together."""
        nodes, replicas = np.broadcast_arrays(
            np.asarray(num_nodes, dtype=np.int64), np.asarray(num_replicas, dtype=np.int64)
        )
        known = (replicas >= 0) & (replicas < len(self._rates))
        inside = np.where(known, replicas, 0)
        priced = known & (self._nodes[inside] == nodes)
        return np.where(priced, self._rates[inside], 0.0)

    def get_goodput(self, num_nodes: Any, num_replicas: Any) -> Any:
        """Returns samples per second, as Sia's policy asks."""
        return self.optimize(num_nodes, num_replicas)[0]

    def optimize(
        self,
        num_nodes: Any,
        num_replicas: Any,
        max_batch_size: Any = None,
        atomic_bsz_range: Any = None,
        accumulation: bool = False,
    ) -> tuple[Any, Any, Any]:
        """Returns goodput, batch per replica, accumulation steps (`GoodputFunction.optimize`).

        The batch size is the curve's, so arguments that would choose another are ignored.
        """
        rates = self.throughput(num_nodes, num_replicas)
        replicas = np.maximum(np.broadcast_to(np.asarray(num_replicas), rates.shape), 1)
        batch = np.ceil(self.batch_size / replicas).astype(np.int64)
        if np.isscalar(num_nodes) and np.isscalar(num_replicas):
            return float(rates), int(batch), 0
        return rates, batch, np.zeros_like(batch)


def goodputs_of(document: Mapping[str, Any]) -> dict[str, Goodput]:
    """Returns the functions of a Sia document by GPU type: its jobs' `speedup_fn`."""
    return {name: Goodput(table) for name, table in document.items()}
