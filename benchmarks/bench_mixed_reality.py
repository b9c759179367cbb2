"""Predicted against measured on several kinds of devices: CPU ranks that are slowed on purpose.

Ranks repeat their operators (`shardwise/measure/slowed.py`), so that computing takes 2 or 3 times
as long and communication does not. Collectives, the device and all operators that the strategies
need are measured on ranks of one kind; the slow kind's operators take longer. Then
random strategies with uneven shares, servers and placements are predicted and run.

`1:2` and `1:3` are two ranks with a core each. In `1:1:2:2` four ranks share two cores: a rank that
waits would make the other one on its core faster, which no profile says, so each may have no more
than its quota of a core (control groups; skipped where there are none).

An error is |measured / predicted - 1|, of peaks that of every rank; tau is Kendall's, of predicted
and measured times of one model's strategies; noise that of one strategy that is run again after
every fifth.

    python benchmarks/bench_mixed_reality.py [--kinds 1:2,1:3,1:1:2:2] [--strategies 20] [-o FILE]
        [MODEL…]

Rows of other kinds and models that FILE has already are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

STRATEGIES = 20
BETWEEN = 5
"""Strategies from one run of the first to its next."""
SEED = 7

WARM_UP, STEPS, PARTS = 3, 6, 3
OPERATORS_S, COLLECTIVES_S = 60.0, 30.0
QUOTA = 0.44
"""Of a core, for each of four ranks on two."""
KINDS: dict[str, tuple[tuple[float, ...], float | None]] = {
    "1:2": ((1.0, 2.0), None),
    "1:3": ((1.0, 3.0), None),
    "1:1:2:2": ((1.0, 1.0, 2.0, 2.0), QUOTA),
}
"""How many times as slow each rank is, and its quota."""
MODELS: dict[str, tuple[str, int | None, int | None]] = {
    "mlp": ("zoo:mlp:layers=4,inputs=1024,hidden=1024,classes=16,batch=512", None, None),
    "gpt2": (
        "hf:GPT2Config:n_layer=2,n_embd=256,n_head=8,vocab_size=2048,resid_pdrop=0.0,"
        "embd_pdrop=0.0,attn_pdrop=0.0",
        8,
        128,
    ),
    "wrn": ("zoo:wrn:depth=10,width=2,image=32,classes=10,batch=24", None, None),
}
TARGETS = {"median": 0.08, "worst": 0.25, "tau": 0.8, "peak": 0.05}


def run(
    kinds: Sequence[str] = tuple(KINDS),
    models: Sequence[str] = tuple(MODELS),
    strategies: int = STRATEGIES,
    output: Path | None = None,
) -> dict[str, Any]:
    """The table of this benchmark, printed and returned; `output` holds it after every row."""
    from harness.execute.quotas import missing

    rows = _kept(output, kinds, models)
    print(f"{'model':6} {'kinds':8} {'median':>7} {'worst':>7} {'tau':>5} {'noise':>6} {'peak':>6}")
    for name in kinds:
        if KINDS[name][1] is not None and (reason := missing()):
            print(f"{name} skipped: {reason}")
            continue
        for row in _rows(name, models, strategies):
            rows.append(row)
            _print(row)
            if output is not None:
                output.parent.mkdir(parents=True, exist_ok=True)
                output.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    every = [abs(error) for row in rows for error in row["errors"]]
    if every:
        print(f"all {len(every)}: median {median(every):.1%}, worst {max(every):.1%}")
    return {"rows": rows, "targets": TARGETS}


def _kept(output: Path | None, kinds: Sequence[str], models: Sequence[str]) -> list[dict[str, Any]]:
    if output is None or not output.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(output.read_text())["rows"]
    return [row for row in rows if not (row["kinds"] in kinds and row["model"] in models)]


def _print(row: dict[str, Any]) -> None:
    print(
        f"{row['model']:6} {row['kinds']:8} {row['median']:7.1%} {row['worst']:7.1%} "
        f"{row['tau']:5.2f} {row['noise']:6.1%} {row['peak']:6.1%}  "
        f"steps of {min(row['measured']) * 1e3:.0f} to {max(row['measured']) * 1e3:.0f} ms"
        + "".join(f"; {note}" for note in row["notes"]),
        flush=True,
    )


def _rows(name: str, models: Sequence[str], count: int) -> Any:
    """Yields a row for each model; collectives are measured once."""
    from harness.execute.quotas import Quotas
    from harness.execute.ranks import Ranks
    from harness.execute.slowed_kinds import Kinds
    from shardwise.hardware import hardware_from_document

    kinds = Kinds(*KINDS[name])
    with ExitStack() as stack:
        folders: list[Path] = []
        if kinds.quota is not None:
            quotas = stack.enter_context(Quotas((kinds.quota,) * kinds.world))
            folders = quotas.folders
        one = hardware_from_document(profile_of(kinds.world, folders))
        ranks = Ranks(kinds.world)
        stack.callback(ranks.stop)
        if folders:
            ranks(enter_all, folders)
        for model in models:
            yield {"model": model, "kinds": name, **_row(model, one, kinds, ranks, count)}


def enter_all(rank: int, folders: list[Path]) -> None:
    """Puts this rank into its control group."""
    from harness.execute.quotas import enter

    enter(folders[rank])


def profile_of(
    world: int, folders: Sequence[Path] = (), limit_s: float = COLLECTIVES_S
) -> dict[str, Any]:
    """`shardwise measure` of this machine, each rank in its control group if there are any."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "profile.json"
        measure = [sys.executable, "-m", "shardwise.measure", "--quiet", "--max-size", "16MiB",
                   "--time-limit", str(limit_s), "-o", str(target)]  # fmt: skip
        if not folders:
            subprocess.run([*measure, "--ranks", str(world)], check=True, stdout=subprocess.DEVNULL)
        else:
            _started_in(folders, measure)
        document: dict[str, Any] = json.loads(target.read_text())
        return document


def _started_in(folders: Sequence[Path], command: list[str]) -> None:
    """Runs a command as the ranks of a job, each in its control group."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank, folder in enumerate(folders):
        job = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(folders),
               "LOCAL_WORLD_SIZE": len(folders), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": port}  # fmt: skip
        entering = f'echo $$ > {folder}/cgroup.procs && exec "$@"'
        ranks.append(
            subprocess.Popen(
                ["sh", "-c", entering, "sh", *command],
                env={**os.environ, **{key: str(value) for key, value in job.items()}},
                stdout=subprocess.DEVNULL,
            )
        )
    codes = [process.wait() for process in ranks]
    if any(codes):
        raise SystemExit("measuring with quotas failed")


def _row(model: str, one: Any, kinds: Any, ranks: Any, count: int) -> dict[str, Any]:
    from harness.execute.slowed_kinds import RandomStrategies
    from harness.execute.slowed_run import kendall_tau, measured_step
    from harness.execute.sources import captured_source

    def run_once(strategy: Any) -> Any:
        return measured_step(
            ranks, MODELS[model], strategy.plan, kinds.times, warm_up=WARM_UP, steps=STEPS,
            alone=PARTS,
        )  # fmt: skip

    began = perf_counter()
    random = RandomStrategies(captured_source(*MODELS[model]).graph, one, kinds, count, SEED)
    operators = random.measured(OPERATORS_S)
    drawn = random.predicted(operators.tables)
    prepared = perf_counter()
    measured, again = [], []
    for number, strategy in enumerate(drawn):
        measured.append(run_once(strategy))
        if number % BETWEEN == 0:
            again.append((run_once(drawn[0]) if number else measured[0]).step_s)
    errors = [m.step_s / d.time_s - 1.0 for m, d in zip(measured, drawn, strict=True)]
    peaks = [
        peak / expected - 1.0
        for m, d in zip(measured, drawn, strict=True)
        for peak, expected in zip(m.peaks, d.peaks, strict=True)
    ]
    typical = median(again)
    return {
        "median": median(map(abs, errors)),
        "worst": max(map(abs, errors)),
        "tau": kendall_tau([d.time_s for d in drawn], [m.step_s for m in measured]),
        "noise": median(abs(step / typical - 1.0) for step in again),
        "peak": median(map(abs, peaks)),
        "peak_worst": [min(peaks), max(peaks)],
        "errors": errors,
        "peak_errors": peaks,
        "predicted": [d.time_s for d in drawn],
        "measured": [m.step_s for m in measured],
        "by_rank": [
            [[d.compute_s, m.compute_s], [d.communication_s, m.communication_s]]
            for d, m in zip(drawn, measured, strict=True)
        ],
        "again": again,
        "notes": operators.notes(),
        "seconds": [prepared - began, perf_counter() - prepared],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--strategies", type=int, default=STRATEGIES)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    run(given.kinds.split(","), given.models, given.strategies, given.output)
