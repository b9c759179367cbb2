"""Rebuilds the table of how far published steps were from their predictions.

    python -m tools.expected_errors

writes shardwise/data/expected.csv from the runs of benchmarks/published and their stored
predictions, and prints of each figure which share of the steps of a project lies within the factors
of all other projects: of all steps, and in the mean over projects.
"""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from benchmarks.published.reading import read_published
from benchmarks.published.stored import read_stored
from shardwise.answers.expected import (
    COLUMNS,
    PEAK,
    TABLE,
    TAILS,
    TIME,
    Factors,
    gpu_of,
)
from shardwise.files import write_whole
from shardwise.hardware import load_hardware
from shardwise.sharding.recipes import RECIPES

MEASURED = ("peak", "used")
"""How the kinds of published memory begin that were measured while a step ran."""

Key = tuple[str, bool, str]


class Step(NamedTuple):
    """A published step: its class, whose it is, and measured over predicted."""

    key: Key
    project: str
    factor: float


def steps() -> Iterator[Step]:
    """Returns the figures of all published steps in 16 bits or more that their own sources do not
    contradict; answers in 8 and 4 bits state no range (`comparable`)."""
    published, predictions = read_published(), read_stored()
    for run in published.runs:
        predicted = predictions.get(run.name)
        if run.outlier or predicted is None or run.precision in RECIPES:
            continue
        gpu = gpu_of(load_hardware(run.hardware).devices[0].kind)
        pipeline, project = run.pipeline_parallel > 1, published.project(run)
        yield Step((gpu, pipeline, TIME), project, run.iteration_s / predicted.time_s)
        if run.memory_bytes is not None and run.memory_kind.startswith(MEASURED):
            yield Step((gpu, pipeline, PEAK), project, run.memory_bytes / predicted.peak_bytes)


def factors_of(of: Iterable[Step]) -> dict[Key, Factors]:
    """Returns the factors of each class: of few steps the least and the most (`Factors.few`)."""
    classes: dict[Key, list[Step]] = defaultdict(list)
    for step in of:
        classes[step.key].append(step)
    result = {}
    for key, members in sorted(classes.items()):
        projects = Counter(step.project for step in members)
        members.sort(key=lambda step: step.factor)
        weights = np.array([1.0 / projects[step.project] for step in members])
        shares = weights.cumsum() / weights.sum()
        found = Factors(len(members), len(projects), members[0].factor, members[-1].factor)
        if not found.few:
            tail = TAILS[key[2]]
            low, high = (members[np.searchsorted(shares, at)].factor for at in (tail, 1.0 - tail))
            found = found._replace(low=low, high=high)
        result[key] = found
    return result


def table() -> str:
    """Returns the table's text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for (gpu, pipeline, figure), of in factors_of(steps()).items():
        row = (gpu, "yes" if pipeline else "no", figure, of.steps, of.projects)
        writer.writerow([*row, f"{of.low:.3f}", f"{of.high:.3f}"])
    return text.getvalue()


def held_out(figure: str) -> dict[str, tuple[int, int]]:
    """Returns of each project how many of its steps lie within the factors of the other projects,
    and how many have such."""
    every = [step for step in steps() if step.key[2] == figure]
    result = {}
    for project in sorted({step.project for step in every}):
        others = factors_of(step for step in every if step.project != project)
        enough = {key for key, of in others.items() if not of.few}
        known = [s for s in every if s.project == project and s.key in enough]
        inside = sum(others[s.key].low <= s.factor <= others[s.key].high for s in known)
        if known:
            result[project] = inside, len(known)
    return result


def shares(of: dict[str, tuple[int, int]]) -> tuple[float, float]:
    """Returns the share of all steps inside, and the mean of the projects' shares."""
    inside, known = (sum(counts) for counts in zip(*of.values(), strict=True))
    return inside / known, float(np.mean([i / k for i, k in of.values()]))


if __name__ == "__main__":
    write_whole(TABLE, table().encode())
    print(TABLE.read_text(encoding="utf-8"), end="", file=sys.stderr)
    for name in TAILS:
        of_steps, of_projects = shares(held_out(name))
        print(f"{name}: {of_steps:.0%} of steps, {of_projects:.0%} in the mean over projects")
