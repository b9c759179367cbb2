"""Predicted against measured: random pipelines that really run, on gloo ranks of this machine.

Collectives, the device and the calls of all configurations of a micro-batch are measured; random
cuts, schedules, micro-batches and strategies are then predicted with that profile and run. An error
is |measured / predicted - 1|. Noise is the same of one pipeline, run again after every third,
against its median.

    python benchmarks/pipeline_reality.py [--ranks 2] [--groups 2] [--pipelines 20] [-o FILE]
                                           [MODEL…]

`--ranks` processes in `--groups` groups of devices, each with a stage of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.bench_reality import MODELS as OF_PLANS
from benchmarks.bench_reality import OPERATORS_S, measured_profile
from shardwise import documents

MODELS = {
    "mlp": OF_PLANS["mlp"],
    "gpt2": (
        "hf:GPT2Config:n_layer=4,n_embd=256,n_head=4,vocab_size=2048,resid_pdrop=0.0,"
        "embd_pdrop=0.0,attn_pdrop=0.0",
        16,
        128,
    ),
}
SCHEDULES = ("1f1b", "gpipe", "1f1b-eager")
"""Seeds take turns."""
MICRO_BATCHES = (4, 8)
BETWEEN = 3
"""Pipelines from one run of the first to its next."""
WARM_UP, STEPS = 4, 5


def run(
    ranks: int, groups: int, count: int, models: Sequence[str], output: Path | None = None
) -> dict[str, Any]:
    """Prints and returns the table of this benchmark; `output` holds it after every row."""
    from harness.execute.ranks import Ranks

    print(f"{'model':8} {'step':>15} {'signed':>8} {'peak':>7} {'lowest':>8} {'highest':>8}")
    rows: list[dict[str, Any]] = []
    table = {"ranks": ranks, "groups": groups, "pipelines": count, "rows": rows}
    with_ranks = Ranks(ranks)
    for name in models:
        rows.append(_row(name, ranks, groups, count, with_ranks))
        row = rows[-1]
        of_step, of_peak = (_off(row[q]) for q in ("step_s", "peak_bytes"))
        noise = median(abs(s / median(row["again_s"]) - 1.0) for s in row["again_s"])
        print(
            f"{name:8} {median(map(abs, of_step)):>7.1%}{f'({noise:.1%})':>8}"
            f" {median(of_step):>+8.1%} {median(map(abs, of_peak)):>7.1%}"
            f" {min(of_peak):>+8.1%} {max(of_peak):>+8.1%}",
            flush=True,
        )
        if output is not None:
            output.write_text(json.dumps(table, indent=1) + "\n")
    with_ranks.stop()
    return table


def _off(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """Returns measured / predicted - 1 of (predicted, measured)."""
    return [measured / predicted - 1.0 for predicted, measured in pairs]


def _row(name: str, ranks: int, groups: int, count: int, with_ranks: Any) -> dict[str, Any]:
    from harness.execute.drawn_pipelines import DrawnPipelines
    from harness.execute.sources import captured_source

    graph = captured_source(*MODELS[name]).graph
    profile = measured_profile(ranks)
    drawn = DrawnPipelines(graph, profile, ranks, groups, MICRO_BATCHES, OPERATORS_S, ranks)
    row: dict[str, Any] = {"model": name, "step_s": [], "peak_bytes": [], "idle": [], "again_s": []}
    row["drawn"] = []
    first = drawn.of(0, SCHEDULES[0])
    for seed in range(count):
        pipeline = drawn.of(seed, SCHEDULES[seed % len(SCHEDULES)])
        measured = _measured(with_ranks, name, pipeline)
        row["step_s"].append((pipeline.predicted.step_s, measured["step_s"]))
        row["idle"].append((pipeline.predicted.idle, measured["idle"]))
        for stage, peak in zip(pipeline.stages, measured["peaks_bytes"], strict=True):
            row["peak_bytes"].append((stage.peak_bytes, peak))
        row["drawn"].append(
            {
                "schedule": pipeline.schedule,
                "micro_batches": pipeline.micro_batches,
                "units": [stage.units for stage in pipeline.stages],
            }
        )
        if seed % BETWEEN == 0:
            row["again_s"].append(_measured(with_ranks, name, first)["step_s"])
    return row


def _measured(ranks: Any, name: str, pipeline: documents.Pipeline) -> dict[str, Any]:
    """Returns the step's seconds, the share of it that ranks wait, and each stage's peak."""
    of_ranks = ranks(_on_rank, name, pipeline)
    each = len(of_ranks) // len(pipeline.stages)
    peaks = [one["peak_bytes"] for one in of_ranks]
    return {
        "step_s": of_ranks[0]["step_s"],
        "idle": sum(one["waited"] for one in of_ranks) / len(of_ranks),
        "peaks_bytes": [max(peaks[n : n + each]) for n in range(0, len(peaks), each)],
    }


def _on_rank(rank: int, name: str, pipeline: documents.Pipeline) -> dict[str, Any]:
    from harness.execute.trained_rank import TrainedStages

    return TrainedStages(MODELS[name], pipeline).measured(WARM_UP, STEPS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--pipelines", type=int, default=20)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    run(given.ranks, given.groups, given.pipelines, given.models, given.output)
