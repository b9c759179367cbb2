"""Predicted against measured, as TensorOpt's Table 2: random strategies that really run, on gloo.

For 2 and 4 ranks of this machine and each model: collectives, the device and the operators of all
the model's configurations are measured, and then random strategies are predicted with that profile
and run. An error is |measured / predicted - 1|; noise is the same of one strategy, run again after
every third of them, against its median: the machine changes from minute to minute more than from
step to step. With more ranks than cores the noise is large: read it with the errors.

    python benchmarks/bench_reality.py [--ranks 2,4] [--strategies 20] [-o FILE] [MODEL…]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from shardwise.documents import Plan

sys.path.append(str(Path(__file__).parents[1]))

STRATEGIES = 20
BETWEEN = 3
"""Strategies from one run of the first to its next."""

WARM_UP, STEPS = 6, 6
"""After some five steps no step touches memory for the first time any more."""
OPERATORS_S, COLLECTIVES_S = 120.0, 120.0
QUANTITIES = ("iteration", "compute", "communication", "peak")
MODELS = {
    "mlp": ("zoo:mlp:layers=4,inputs=1024,hidden=2048,classes=16,batch=512", None, None),
    "convnet": ("zoo:wrn:depth=10,width=4,image=32,classes=10,batch=64", None, None),
    "gpt2": (
        "hf:GPT2Config:n_layer=2,n_embd=512,n_head=8,vocab_size=4096,resid_pdrop=0.0,"
        "embd_pdrop=0.0,attn_pdrop=0.0",
        8,
        128,
    ),
}


def run(
    worlds: Sequence[int] = (2, 4),
    strategies: int = STRATEGIES,
    models: Sequence[str] = tuple(MODELS),
    output: Path | None = None,
) -> dict[str, Any]:
    """The table of this benchmark, printed and returned; `output` holds it after every row."""
    print(f"{'model':8} {'ranks':>5} " + " ".join(f"{name:>14}" for name in QUANTITIES))
    print(f"{'':14} " + " ".join(f"{'error (noise)':>14}" for _ in QUANTITIES))
    rows: list[dict[str, Any]] = []
    table = {"rows": rows, "strategies": strategies, "steps": STEPS}
    for world in worlds:
        from harness.execute.ranks import Ranks

        with_ranks = Ranks(world)
        for name in models:
            rows.append(_row(name, world, measured_profile(world), with_ranks, strategies))
            cells = " ".join(
                f"{rows[-1]['errors'][q]:>7.1%}{'(' + format(rows[-1]['noise'][q], '.1%') + ')':>7}"
                for q in QUANTITIES
            )
            print(f"{name:8} {world:5} {cells}", flush=True)
            if output is not None:
                output.parent.mkdir(parents=True, exist_ok=True)
                output.write_text(json.dumps(table, indent=1) + "\n")
        with_ranks.stop()
    return table


def measured_profile(world: int) -> dict[str, Any]:
    """Returns what `shardwise measure` writes of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "profile.json"
        subprocess.run(
            [sys.executable, "-m", "shardwise.measure", "--ranks", str(world), "--quiet",
             "--time-limit", str(COLLECTIVES_S), "--max-size", "32MiB", "-o", str(target)],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        document: dict[str, Any] = json.loads(target.read_text())
        return document


def _row(name: str, world: int, profile: dict[str, Any], ranks: Any, count: int) -> dict[str, Any]:
    drawn = _draw(name, world, profile, count)
    runs: list[dict[str, float]] = []
    repeats: list[dict[str, float]] = []
    for number, strategy in enumerate(drawn):
        runs.append(_measured(ranks, name, strategy.plan))
        if number == 0:
            repeats.append(runs[0])
        if number % BETWEEN == BETWEEN - 1:
            repeats.append(_measured(ranks, name, drawn[0].plan))
    off = [
        {q: _off(measured[q], strategy.predicted[q]) for q in QUANTITIES}
        for strategy, measured in zip(drawn, runs, strict=True)
    ]
    typical = {q: median(m[q] for m in repeats) for q in QUANTITIES}
    return {
        "model": name,
        "ranks": world,
        "errors": {q: _median(o[q] for o in off) for q in QUANTITIES},
        "signed": {q: [o[q] for o in off] for q in QUANTITIES},
        "predicted": {q: [strategy.predicted[q] for strategy in drawn] for q in QUANTITIES},
        "measured": {q: [measured[q] for measured in runs] for q in QUANTITIES},
        "again": {q: [measured[q] for measured in repeats] for q in QUANTITIES},
        "noise": {q: _median(_off(m[q], typical[q]) for m in repeats) for q in QUANTITIES},
    }


def _off(measured: float, predicted: float) -> float | None:
    return measured / predicted - 1.0 if predicted > 0 else None


def _median(values: Any) -> float:
    known = [abs(value) for value in values if value is not None]
    return median(known) if known else 0.0


def _measured(ranks: Any, name: str, plan: Plan) -> dict[str, float]:
    quantities: dict[str, float] = ranks(_on_rank, name, plan)[0]
    return quantities


def _draw(name: str, world: int, profile: dict[str, Any], count: int) -> list[Any]:
    from harness.execute.drawn import drawn_strategies
    from harness.execute.sources import captured_source

    graph = captured_source(*MODELS[name]).graph
    return drawn_strategies(graph, profile, world, count, OPERATORS_S)


def _on_rank(rank: int, name: str, plan: Plan) -> dict[str, float]:
    from harness.execute.on_hosts import times_of

    return times_of(MODELS[name], plan, rank, WARM_UP, STEPS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--strategies", type=int, default=STRATEGIES)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    run([int(n) for n in given.ranks.split(",")], given.strategies, given.models, given.output)
