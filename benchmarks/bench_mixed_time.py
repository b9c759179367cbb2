"""How long plans on devices of several kinds take on one core, all defaults.

    python benchmarks/bench_mixed_time.py [SECONDS]

HeteroG's models on its clusters and Llama 8B on a node of H100 beside one of A100. The target is
what a search has by default, 60 s. `over` is by how much an answer came after its time limit;
`SECONDS` sets another one. Each case runs in a process of its own; on a machine that others use,
`CPU s` is what it took of a core, and the answer is what was found in that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import graphs
from paper.heterog_models import ROWS, heterog_graph, heterog_path
from run import heading, store

HERE = Path(__file__).parent
ONE = HERE / "one_mixed_time.py"
LIMIT_S = 60.0
EIGHT = ("heterog-8", "v100=2,1080ti=4,p100=2")
TWELVE = ("heterog-12", "v100=4,1080ti=4,p100=4")
MODELS = ("vgg-19", "resnet-200", "transformer-6", "bert-large")


@dataclass(frozen=True)
class Case:
    """A question; `batch` is that of a model of HeteroG's, 0 for a shipped graph."""

    graph: str
    batch: int
    hardware: str
    gpus: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The file of the graph, captured where it is not there yet."""
        if not self.batch:
            return str(graphs.path(self.graph))
        heterog_graph(self.graph, self.batch)
        return str(heterog_path(self.graph, self.batch).absolute())


def cases() -> list[Case]:
    """HeteroG's rows of `MODELS` that fit, on 8 and on 12 GPUs, and Llama 8B."""
    rows = [row for row in ROWS if row.fits and row.model in MODELS]
    return [
        *(Case(row.model, row.batch_8, *EIGHT) for row in rows),
        *(Case(row.model, row.batch_12, *TWELVE) for row in rows),
        Case("shipped:llama-8b", 0, "h100-8+a100-8", "h100=8,a100=8", {"precision": "bf16"}),
    ]


def run(limit_s: float | None = None) -> dict[str, Any]:
    """Every case, printed as a table and answered as data."""
    print(
        f"{'graph':18} {'hardware':14} {'wall s':>7} {'CPU s':>7} {'over s':>7} {'step ms':>9} "
        f"{'gap':>7} {'A':>3} status"
    )
    return {"limit_s": limit_s or LIMIT_S, "rows": [_measured(case, limit_s) for case in cases()]}


def _measured(case: Case, limit_s: float | None) -> dict[str, Any]:
    options = case.options if limit_s is None else {**case.options, "time_limit_s": limit_s}
    question = {**asdict(case), "path": case.path, "options": options}
    done = subprocess.run(
        [sys.executable, str(ONE), json.dumps(question)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    row: dict[str, Any] = {**asdict(case), **json.loads(done.stdout)}
    row["over_s"] = max(row["wall_s"] - (limit_s or LIMIT_S), 0.0)
    time_s, gap = row.get("time_s"), row.get("gap")
    print(
        f"{case.graph.removeprefix('shipped:'):18} {case.hardware:14} {row['wall_s']:7.1f} "
        f"{row['cpu_s']:7.1f} {row['over_s']:7.1f} "
        f"{'-' if time_s is None else format(time_s * 1e3, '.1f'):>9} "
        f"{'-' if gap is None else format(gap, '.1%'):>7} {row.get('micro_batches') or '-':>3} "
        f"{row.get('status') or row.get('reason')}",
        flush=True,
    )
    return row


if __name__ == "__main__":
    figures = heading("bench-mixed-time")
    figures["bench_mixed_time"] = run(float(sys.argv[1]) if len(sys.argv) > 1 else None)
    store(figures, Path("out/bench/mixed-time.json"))
