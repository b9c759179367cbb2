"""Orders of execution on HeteroG's models (its "FIFO" column): a strategy replayed in each.

    python benchmarks/bench_order.py [GPUS [MODEL…]]

The strategy of a row is the fastest that fits of those that a search of several kinds begins with
(data parallelism under every proportion and gradient sum, each group of devices alone), in the
program's order. `program` is the order of frameworks, `rank` that of the highest upward rank
(HeteroG §4.2), `memory` the same within memory, `depth` what its published code orders by, `fifo`
the operator that became ready first. Seconds of a step, and the peak over the limit in brackets.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from run import heading, store

sys.path.append(str(Path(__file__).parent))

from paper.heterog_models import OPTIMIZER, ROWS, heterog_graph

from shardwise.cost.options import Options, quiet
from shardwise.hardware import Devices, load_hardware
from shardwise.replay.scheduling import KINDS, scheduled
from shardwise.search.mixed.incumbents import incumbents
from shardwise.search.mixed.search import MixedDraft, MixedSearch, limits_of
from shardwise.search.search import Subject

CLUSTERS = {8: "v100=2,1080ti=4,p100=2", 12: "v100=4,1080ti=4,p100=4"}
FEW = ("vgg-19", "mobilenet-v2")
"""The models among all benchmarks."""


def run(gpus: int = 8, models: tuple[str, ...] = FEW) -> dict[str, Any]:
    """Prints and returns a row for each model that fits under data parallelism in the paper."""
    print(f"{'model':16}" + "".join(f"{kind[:18]:>20}" for kind in KINDS) + f"{'s':>8}")
    rows = []
    for row in ROWS:
        if row.model in models and row.fits:
            batch = row.batch_8 if gpus == 8 else row.batch_12
            rows.append(_row(row.model, batch, gpus))
    return {"gpus": gpus, "rows": rows}


def _row(model: str, batch: int, gpus: int) -> dict[str, Any]:
    started = time.monotonic()
    hardware = load_hardware(f"heterog-{gpus}")
    options = Options(
        optimizer=OPTIMIZER, micro_batches=(1,), recompute="never", zero=(0, 1), overlap=True
    )
    subject, bundle = (
        Subject.of(heterog_graph(model, batch)),
        Devices.parse(CLUSTERS[gpus], hardware),
    )
    search = MixedDraft.of(subject, hardware, bundle, options, quiet, 1).joined(quiet)
    choices = _fastest(search)
    edges = np.zeros(len(search.problem.edges), dtype=np.uint32)
    limits = limits_of(search.problem, options)
    times: dict[str, float] = {}
    peaks: dict[str, float] = {}
    for kind in KINDS:
        one = scheduled(search.problem, options.step, choices, edges, kind, limits)
        times[kind], peaks[kind] = one.time_s, one.peak_bytes / search.limit_bytes
    spent = time.monotonic() - started
    cells = "".join(f"{f'{times[k]:.4f} ({peaks[k]:.2f})':>20}" for k in KINDS)
    print(f"{model:16}{cells}{spent:>8.1f}", flush=True)
    return {"model": model, "batch": batch, "time_s": times, "peak": peaks, "seconds": spent}


def _fastest(search: MixedSearch) -> Any:
    choices = incumbents(search.problem)
    edges = np.zeros((len(choices), len(search.problem.edges)), dtype=np.uint32)
    replayed = search.replayer.replay(choices, edges)
    fits = replayed.peak_bytes <= search.limit_bytes
    key = np.where(fits, replayed.time_s, np.inf) if fits.any() else replayed.peak_bytes
    return choices[int(key.argmin())]


if __name__ == "__main__":
    figures = heading("bench-order")
    given = sys.argv[1:]
    everything = tuple(dict.fromkeys(row.model for row in ROWS))
    figures["bench_order"] = run(int(given[0]) if given else 8, tuple(given[1:]) or everything)
    store(figures, Path("out/bench/order.json"))
