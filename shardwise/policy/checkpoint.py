"""Checkpoints of a training, `shardwise.policy-training/1`: an .npz of numbers, written whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardwise import validation
from shardwise.errors import BadInput
from shardwise.files import write_whole
from shardwise.policy.architecture import Size
from shardwise.policy.learner import AdamState
from shardwise.policy.reinforcing import Standing
from shardwise.policy.teaching import Lesson
from shardwise.policy.weights import checked, described, packed, unpacked

SCHEMA = "shardwise.policy-training/1"
MOST_BYTES = 512 * 2**20
KIND = "a checkpoint of a policy's training (.npz)"
WEIGHTS, MEAN, SQUARE = "weights.", "mean.", "square."


@dataclass
class TaskState:
    """What a training knows of a task; `standing` is None before the first round of REINFORCE."""

    lesson: Lesson
    standing: Standing | None = None


@dataclass(frozen=True)
class Saved:
    """A training after `round` rounds."""

    identity: dict[str, object]
    round: int
    weights: dict[str, NDArray[np.float32]]
    adam: AdamState
    tasks: Mapping[int, TaskState]


class _Task(msgspec.Struct):
    number: int
    scale_s: float
    rounds: int | None = None
    average: float | None = None
    bests: list[float] = []


class _Description(msgspec.Struct):
    schema: str
    identity: dict[str, Any]
    round: int
    steps: int
    tasks: list[_Task]


def write_checkpoint(saved: Saved, path: str) -> None:
    """Writes a checkpoint, whole or not at all. Raises `BadInput` where that cannot be."""
    arrays: dict[str, NDArray[Any]] = {}
    for prefix, some in (
        (WEIGHTS, saved.weights),
        (MEAN, saved.adam.mean),
        (SQUARE, saved.adam.square),
    ):
        arrays |= {prefix + name: array for name, array in some.items()}
    tasks = []
    for number, state in sorted(saved.tasks.items()):
        arrays[f"task.{number}.shares"] = state.lesson.shares
        task = _Task(number, state.lesson.scale_s)
        if (standing := state.standing) is not None:
            arrays[f"task.{number}.good"] = standing.good
            arrays[f"task.{number}.rewards"] = standing.rewards
            average = None if isnan(standing.average) else standing.average
            task = _Task(number, state.lesson.scale_s, standing.rounds, average, standing.bests)
        tasks.append(task)
    description = _Description(SCHEMA, saved.identity, saved.round, saved.adam.steps, tasks)
    write_whole(path, packed(arrays, description))


def read_checkpoint(path: str, size: Size) -> Saved:
    """Reads a checkpoint of a network of this size. Raises `BadInput` for any other file."""
    arrays = unpacked(path, MOST_BYTES, KIND)
    text = described(arrays, path, SCHEMA)
    try:
        found = validation.decode(text, _Description, file=path)
        tasks = {task.number: _state(task, arrays) for task in found.tasks}
    except KeyError as error:
        raise BadInput(f"incomplete: {error}", file=path, expected=KIND) from None

    def network(prefix: str) -> dict[str, NDArray[np.float32]]:
        own = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
        return checked(own, size, path, np.float32)

    adam = AdamState(network(MEAN), network(SQUARE), found.steps)
    return Saved(found.identity, found.round, network(WEIGHTS), adam, tasks)


def _state(task: _Task, arrays: Mapping[str, NDArray[Any]]) -> TaskState:
    lesson = Lesson(arrays[f"task.{task.number}.shares"], task.scale_s)
    if task.rounds is None:
        return TaskState(lesson)
    return TaskState(
        lesson,
        Standing(
            arrays[f"task.{task.number}.good"],
            arrays[f"task.{task.number}.rewards"],
            nan if task.average is None else task.average,
            task.bests,
            task.rounds,
        ),
    )
