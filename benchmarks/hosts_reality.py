"""Random strategies on two hosts with a shaped network between them, predicted and measured.

Two containers, two ranks each. `shardwise measure` runs on both; then random strategies of a model
are predicted with that profile and run across them. An error is |measured / predicted - 1|; noise
is the same of the first strategy, run again after every tenth, against its median.

    python benchmarks/hosts_reality.py [--card MBIT] [--strategies 20] [--operators SECONDS]
        [-o FILE]

Needs root, a Docker engine and tc.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

PER_HOST = 2
BETWEEN = 10
WARM_UP, STEPS, ALONE = 1, 2, 3
MEASURE_S, RUN_S = 100.0, 300.0
MAX_SIZE, SIZE_STEP = "256KiB", "4"
CARD = 20.0
SOURCE = ("zoo:mlp:layers=2,inputs=256,hidden=256,classes=16,batch=256",)
QUANTITIES = ("iteration", "compute", "communication", "peak")
RESULTS = Path("out/bench/hosts.json")


def run(
    card: float = CARD,
    strategies: int = 20,
    operators_s: float = 0.0,
    output: Path = RESULTS,
) -> dict[str, Any]:
    """Returns the table of this benchmark, printed and written to `output`."""
    from harness.containers.host_runs import measured_profile, plan_times
    from harness.containers.shaped import Bandwidths, shaped_hosts
    from harness.execute.drawn import drawn_strategies
    from harness.execute.sources import captured_source

    graph = captured_source(*SOURCE).graph
    with tempfile.TemporaryDirectory() as name, shaped_hosts(Path(name), ("a", "b")) as hosts:
        folder = Path(name)
        hosts.shape(Bandwidths(card))
        load = os.getloadavg()
        profile = measured_profile(
            hosts, folder, per_host=PER_HOST, time_limit_s=MEASURE_S, max_size=MAX_SIZE,
            arguments=["--step", SIZE_STEP],
        )  # fmt: skip
        drawn = drawn_strategies(graph, profile, 2 * PER_HOST, strategies, operators_s)
        order = [0]
        for number in range(1, strategies):
            order += [number] if number % BETWEEN else [number, 0]
        times = plan_times(
            hosts, folder, SOURCE, [drawn[number].plan for number in order],
            per_host=PER_HOST, warm_up=WARM_UP, steps=STEPS, alone=ALONE, within_s=RUN_S,
        )  # fmt: skip
    order = order[: len(times)]
    drawn = drawn[: max(order) + 1]
    measured = [times[order.index(number)] for number in range(len(drawn))]
    again = [known for number, known in zip(order, times, strict=True) if number == 0]
    signed = {
        q: [_off(m[q], d.predicted[q]) for m, d in zip(measured, drawn, strict=True)]
        for q in QUANTITIES
    }
    typical = {q: median(known[q] for known in again) for q in QUANTITIES}
    table = {
        "card_mbit": card,
        "source": SOURCE[0],
        "operators_s": operators_s,
        "strategies": len(drawn),
        "ranks": 2 * PER_HOST,
        "load": [load, os.getloadavg()],
        "errors": {q: _median(signed[q]) for q in QUANTITIES},
        "worst": {q: max(abs(v) for v in signed[q] if v is not None) for q in QUANTITIES},
        "noise": {q: _median(_off(m[q], typical[q]) for m in again) for q in QUANTITIES},
        "signed": signed,
        "predicted": {q: [d.predicted[q] for d in drawn] for q in QUANTITIES},
        "measured": {q: [m[q] for m in measured] for q in QUANTITIES},
        "between_bytes_per_s": profile["levels"][1]["bandwidth_bytes_per_s"],
        "profile": profile,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(table, indent=1) + "\n")
    for q in QUANTITIES:
        errors, worst, noise = (table[part][q] for part in ("errors", "worst", "noise"))
        print(f"{q:14} median {errors:6.1%}  worst {worst:6.1%}  noise {noise:6.1%}")
    return table


def _off(measured: float, predicted: float) -> float | None:
    return measured / predicted - 1.0 if predicted > 0 else None


def _median(values: Iterable[float | None]) -> float:
    known = [abs(value) for value in values if value is not None]
    return median(known) if known else 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--card", type=float, default=CARD, help="megabits per second")
    parser.add_argument("--strategies", type=int, default=20)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument(
        "--operators", type=float, default=0.0, help="seconds to measure operators on this machine"
    )
    given = parser.parse_args()
    run(given.card, given.strategies, given.operators, given.output)
