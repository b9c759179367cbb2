"""Our strategies and AllReduce on 8 GPUs in several orders of execution (HeteroG §4.2, Table 7).

    python -m paper.heterog_orders FOLDER

Strategies are those that `heterog_runs.py` has put in FOLDER; nothing is searched.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from paper.heterog_runs import KEPT, OPTIONS, Figures, Question, questions
from shardwise.cost.options import quiet
from shardwise.peers.mixed.data_parallel import even_collective
from shardwise.peers.mixed.space import Space
from shardwise.replay.owner_costs import Choices
from shardwise.replay.scheduling import DEPTH, FIFO, PROGRAM, RANK, Kind, scheduled
from shardwise.search.mixed.search import MixedDraft, limits_of

GPUS = 8
ORDERS: tuple[Kind, ...] = (PROGRAM, RANK, FIFO, DEPTH)
PATH = KEPT / "orders.json"


def order_figures(question: Question, folder: Path) -> Figures:
    """Returns the seconds of our strategy over all devices, and of EV-AR, in every order."""
    stored = np.load(folder / f"{question.gpus}-{question.key}-ours.npz")
    draft = MixedDraft.of(question.subject, question.hardware, question.bundle, OPTIONS, quiet, 1)
    space = Space.of(draft.joined(quiet))
    problem = space.problem
    limits = limits_of(problem, OPTIONS)

    def seconds(choices: Choices, edge_choices: Choices) -> Figures:
        found = {
            kind: scheduled(problem, OPTIONS.step, choices, edge_choices, kind, limits).time_s
            for kind in ORDERS
        }
        return {kind: float(f"{time_s:.5g}") for kind, time_s in found.items()}

    even = even_collective(problem)[None]
    return {
        "model": question.row.model,
        "batch": question.batch,
        "ours": seconds(stored["choices"], stored["edge_choices"]),
        "ev-ar": seconds(even[0], space.edge_choices(even)[0]),
    }


def kept_orders() -> list[Figures]:
    """Returns the rows that were kept."""
    rows: list[Figures] = json.loads(PATH.read_text())
    return rows


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    for question in questions(GPUS):
        path = folder / f"{question.gpus}-{question.key}-orders.json"
        if not question.row.fits or question.seq is not None or path.exists():
            continue
        path.write_text(json.dumps(order_figures(question, folder)) + "\n")
        print(path.read_text(), flush=True)
    rows = [
        path.read_text().strip()
        for question in questions(GPUS)
        if (path := folder / f"{question.gpus}-{question.key}-orders.json").exists()
    ]
    PATH.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
