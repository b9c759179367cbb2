"""Rebuilds the table of published steps that plans are set beside.

    python -m tools.published_steps

writes shardwise/data/published.csv from the runs of benchmarks/published whose samples are
sequences of tokens: one row for each model, GPU, number of GPUs, sequence length and width of
products of a project, its fastest. Parameters are those of the models as they were captured for
predictions.
"""

from __future__ import annotations

import csv
import io
import sys

from benchmarks.published.reading import read_published
from benchmarks.published.stored import read_stored
from shardwise.answers.published import COLUMNS, TABLE
from shardwise.files import write_whole
from shardwise.hardware import load_hardware
from shardwise.sharding.recipes import bits_of


def table() -> str:
    """Returns the table's text."""
    published, predictions = read_published(), read_stored()
    fastest: dict[tuple[object, ...], float] = {}
    for run in published.runs:
        known = predictions.get(run.name)
        if not run.seq or run.outlier or known is None:
            continue
        kind = load_hardware(run.hardware).devices[0].kind
        bits, project = bits_of(run.precision), published.project(run)
        key = (project, known.parameters, kind, run.gpus, run.seq, bits)
        rate = run.batch * run.seq / (run.iteration_s * run.gpus)
        fastest[key] = max(fastest.get(key, 0.0), rate)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([*key, f"{rate:.5g}"] for key, rate in sorted(fastest.items(), key=str))
    return text.getvalue()


if __name__ == "__main__":
    write_whole(TABLE, table().encode())
    print(f"{TABLE.name}: {table().count(chr(10)) - 1} rows", file=sys.stderr)
