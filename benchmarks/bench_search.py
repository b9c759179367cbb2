"""Search times on captured graphs, next to the targets that were set for them.

K is the number of configurations of a group of operators. `cold` is the whole answer from a read
graph (coarsening, costs, search), `solve` the solver alone; the target is for `cold`. Medians of
five, of three or one where a run takes over 20 s (`repeats` in the results). Each case runs in a
process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import graphs

HERE = Path(__file__).parent
ONE_SEARCH = HERE / "one_search.py"


@dataclass(frozen=True)
class Case:
    """A question with its target in seconds; `certified` is what must be proven (0: exact)."""

    graph: str
    hardware: str
    gpus: int
    certified: float
    target_s: float | None
    question: str = "frontier"
    options: dict[str, Any] = field(default_factory=dict)
    repeats: int = 5


LLAMA = "shipped:llama-8b"
FULL = {"max_configurations": 1_000_000}
LARGE = {"max_configurations": 3000}
CASES = (
    Case("lstm", "dgx-v100-16gb", 16, 0.0, 0.05),
    Case("shipped:vgg16", "dgx-v100-16gb", 16, 0.0, 2.0),
    Case("gpt-4", "dgx-h100", 8, 0.0, 1.0),
    Case("gpt-24", "dgx-h100", 16, 0.01, 5.0),
    Case("bert-large", "dgx-h100", 16, 0.01, 5.0),
    Case("wide-resnet-152", "dgx-v100-16gb", 16, 0.01, 5.0),
    Case("mixtral-24", "dgx-h100", 16, 0.01, 15.0),
    Case("gpt-96", "dgx-h100", 16, 0.01, 15.0),
    Case("gpt-1024", "dgx-h100", 16, 0.01, 90.0),
    Case("gpt-24", "dgx-h100", 16, 0.001, 60.0),
    Case(LLAMA, "dgx-h100", 64, 0.01, 45.0, options=FULL, repeats=3),
    Case(LLAMA, "dgx-h100", 64, 0.005, 5.0, "mini-time"),
    Case(LLAMA, "dgx-h100", 64, 0.005, None, "mini-time", FULL, 3),
    Case(LLAMA, "dgx-h100*128", 1024, 0.05, 120.0, options=LARGE, repeats=1),
    Case(LLAMA, "dgx-h100", 64, 0.01, 120.0, "curve"),
)


def run() -> dict[str, Any]:
    """Every case, printed as a table and answered as data."""
    print(
        f"{'graph':17} {'GPUs':>4} {'question':9} {'groups':>6} {'K mean':>6} {'K max':>5} "
        f"{'points':>6} {'asked':>6} {'proven':>7} {'solve s':>8} {'cold s':>8} {'target':>7} "
        f"{'GiB':>5}"
    )
    return {"rows": [_measured(case) for case in CASES]}


def _measured(case: Case) -> dict[str, Any]:
    options = {"epsilon": case.certified, **case.options}
    row = {**asdict(case), **measure(case, options)}
    proven = "-" if row["certified_found"] is None else f"{row['certified_found']:.2%}"
    print(
        f"{case.graph.removeprefix('shipped:'):17} {case.gpus:4} {case.question:9} "
        f"{row.get('groups', ''):6} {row.get('choices_mean', 0):6.0f} "
        f"{row.get('choices_max', 0):5} {row['points']:6} {case.certified:6.1%} {proven:>7} "
        f"{row['solve_s']:8.2f} {row['cold_s']:8.2f} {case.target_s or '-':>7} "
        f"{row['peak_gib']:5.2f}",
        flush=True,
    )
    return row


def measure(case: Case, options: dict[str, Any]) -> dict[str, Any]:
    """The figures of a case from a process of its own."""
    question = {
        "path": graphs.path(case.graph),
        "hardware": case.hardware,
        "gpus": case.gpus,
        "question": case.question,
        "options": options,
        "repeats": case.repeats,
    }
    done = subprocess.run(
        [sys.executable, str(ONE_SEARCH), json.dumps(question)],
        check=True,
        capture_output=True,
        text=True,
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    figures["certified_found"] = figures.pop("certified")
    return figures


if __name__ == "__main__":
    run()
