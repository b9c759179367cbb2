"""Predicting runs anew: all, those that changed, or one part of them, over several processes.

Runs of one capture are predicted by one process, one after another, so that the model is captured
and prepared once.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from shardwise.errors import BadInput

from .captures import Captures, Key, capture_key
from .pipelined import predict_pipeline
from .predict import predict, with_clock
from .run import Run
from .stored import SLOWER, Stored

PROCESSES = 2

CAPTURE_COSTS = 4
"""How many predictions take as long as one capture."""

Batch = tuple[tuple[Run, ...], tuple[Run, ...]]
"""Runs of one capture that are wanted, and all runs of it."""


def predicted(run: Run, captures: Captures) -> Stored:
    """A run's prediction, to be stored."""
    if run.pipeline_parallel > 1:
        return _of_pipeline(run, captures)
    subject = captures.subject(run)
    prediction = predict(run, subject)
    device_s = slower_s = prediction.device_s
    # Clocks are fitted, and count in measured products only.
    if run.is_fitted and any(device.products for device in prediction.hardware.devices):
        slower_s = predict(run, subject, with_clock(SLOWER)).device_s
    tensors = subject.graph.tensors.values()
    return Stored(
        run.predicted_as,
        sum(t.elements for t in tensors if t.role == "parameter"),
        prediction.time_s,
        device_s,
        prediction.host_s,
        prediction.point.compute_s,
        prediction.point.communication_s,
        prediction.peak_bytes,
        prediction.point.memory_bytes,
        prediction.operators,
        prediction.collectives,
        slower_s,
    ).rounded()


def _of_pipeline(run: Run, captures: Captures) -> Stored:
    prediction = predict_pipeline(run, captures.staged(run))
    tensors = captures.graph(run).tensors.values()
    return Stored(
        run.predicted_as,
        sum(t.elements for t in tensors if t.role == "parameter"),
        prediction.time_s,
        prediction.device_s,
        prediction.host_s,
        prediction.point.compute_s,
        prediction.point.communication_s,
        prediction.peak_bytes,
        prediction.point.memory_bytes,
        operators=0,
        collectives=0,
        slower_device_s=prediction.device_s,
    ).rounded()


def predict_batch(batch: Batch) -> list[tuple[str, Stored]]:
    """The predictions of the wanted runs of one capture, those of one configuration made once."""
    wanted, all_of_it = batch
    captures = Captures(all_of_it)
    known: dict[str, Stored] = {}
    ordered = sorted(
        wanted, key=lambda run: (run.pipeline_parallel > 1, run.batch, run.micro_batches)
    )
    done = []
    for run in ordered:
        try:
            if run.predicted_as not in known:
                known[run.predicted_as] = predicted(run, captures)
            done.append((run.name, known[run.predicted_as]))
        except BadInput as error:
            raise BadInput(
                error.problem, file=error.file, field=f"run {run.name}", expected=error.expected
            ) from None
    return done


def predict_runs(
    runs: Sequence[Run],
    wanted: Callable[[Run], bool] = lambda run: True,
    processes: int = PROCESSES,
) -> Iterator[list[tuple[str, Stored]]]:
    """Predictions of the wanted runs, those of one capture at a time, as they are ready.

    `runs` are all published ones: captures are shared among them. With one process nothing is
    started.
    """
    batches: list[Batch] = []
    for group in by_capture(runs).values():
        chosen = tuple(run for run in group if wanted(run))
        if chosen:
            batches.append((chosen, group))
    if processes == 1 or len(batches) <= 1:
        yield from map(predict_batch, batches)
        return
    batches.sort(key=lambda batch: len(batch[0]), reverse=True)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(predict_batch, batch) for batch in batches]):
            yield done.result()


def by_capture(runs: Sequence[Run]) -> dict[Key, tuple[Run, ...]]:
    """The runs of each capture."""
    keys = dict.fromkeys(capture_key(run) for run in runs)
    return {key: tuple(run for run in runs if capture_key(run) == key) for key in keys}


def part(runs: Sequence[Run], number: int, parts: int) -> set[str]:
    """The names of the runs of one of `parts` parts, numbered from 0.

    Whole captures go to the part that has had the least work so far, those of most runs first.
    """
    if not 0 <= number < parts:
        raise BadInput(f"part {number} of {parts}", field="part", expected=f"0 to {parts - 1}")
    work = [0] * parts
    names: list[set[str]] = [set() for _ in range(parts)]
    groups = sorted(by_capture(runs).items(), key=lambda item: (-len(item[1]), item[0]))
    for _, group in groups:
        least = work.index(min(work))
        work[least] += len(group) + CAPTURE_COSTS
        names[least].update(run.name for run in group)
    return names[number]
