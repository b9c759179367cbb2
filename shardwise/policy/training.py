"""Training a policy: imitation of the search's best strategies, then REINFORCE (HeteroG §4.1.3).

Tasks are families in turns, each on a random cluster; each round is about the next task. Everything
follows from the seed and the number of rounds: a time limit only says after which round to end. A
checkpoint has all that later rounds depend on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from shardwise.cost.options import Progress, quiet
from shardwise.errors import BadInput
from shardwise.graph import graph_id
from shardwise.policy.architecture import Size, initial
from shardwise.policy.checkpoint import Saved, TaskState, read_checkpoint, write_checkpoint
from shardwise.policy.learner import Learner
from shardwise.policy.reinforcing import Standing
from shardwise.policy.task import Task
from shardwise.policy.teaching import OPTIONS, Family, bare_task, joined_of, lesson_of
from shardwise.policy.weights import SCHEMA, Description, Policy

IMITATING, REINFORCING = 1e-3, 1e-4
"""Rates of Adam."""
EVERY_S = 60.0
"""Seconds between checkpoints."""


@dataclass(frozen=True)
class Settings:
    """What a training depends on besides its families: `rounds` in all, the first `imitation` of
    them imitate; `samples` strategies are replayed in each of the others."""

    size: Size
    seed: int = 0
    tasks: int = 20
    imitation: int = 1000
    rounds: int = 20000
    samples: int = 16


class Training:
    """A training that goes on from where it is. Raises `BadInput` without torch."""

    def __init__(self, families: Sequence[Family], settings: Settings, saved: Saved | None) -> None:
        self._families, self._settings = families, settings
        self._tasks: dict[int, Task] = {}
        if saved is None:
            weights = initial(settings.size, settings.seed)
            self._states: dict[int, TaskState] = {}
            self.round, adam = 0, None
        else:
            weights, adam = saved.weights, saved.adam
            self._states = dict(saved.tasks)
            self.round = saved.round
        self._learner = Learner(weights, settings.size, IMITATING, adam)

    @property
    def saved(self) -> Saved:
        """Where the training stands."""
        learner = self._learner
        return Saved(self.identity, self.round, learner.weights, learner.state, self._states)

    @property
    def identity(self) -> dict[str, object]:
        """What a checkpoint must be of to be gone on from: settings (without the number of rounds)
        and families."""
        settings = self._settings
        return {
            "size": settings.size.name,
            "seed": settings.seed,
            "tasks": settings.tasks,
            "imitation": settings.imitation,
            "samples": settings.samples,
            "families": [[one.name, graph_id(one.graph)] for one in self._families],
        }

    def step(self) -> None:
        """Takes one round."""
        settings = self._settings
        number = self.round % settings.tasks
        task = self._task(number)
        state = self._states[number]
        if self.round < settings.imitation:
            self._learner.rate = IMITATING
            self._learner.imitate(task.inputs, state.lesson.shares)
        else:
            self._learner.rate = REINFORCING
            if state.standing is None:
                taught = state.lesson.shares.argmax(axis=1)[None]
                state.standing = Standing.of(task, np.concatenate([task.seeds(), taught]))
            draw = np.random.default_rng([settings.seed, self.round])
            state.standing.round(self._learner, task, settings.samples, draw)
        self.round += 1

    def _task(self, number: int) -> Task:
        if number not in self._tasks:
            family = self._families[number % len(self._families)]
            joined = joined_of(family, (self._settings.seed, number), OPTIONS)
            task = bare_task(joined, self._settings.size)
            if number not in self._states:
                self._states[number] = TaskState(lesson_of(joined, task))
            scale_s = self._states[number].lesson.scale_s
            self._tasks[number] = replace(task, scale_s=scale_s)
        return self._tasks[number]

    def policy(self, held_out: Sequence[str]) -> Policy:
        """Returns the policy so far; `held_out` are the names of families that it has not seen."""
        settings = self._settings
        description = Description(
            SCHEMA,
            settings.size.name,
            settings.seed,
            self.round,
            [family.name for family in self._families],
            list(held_out),
        )
        return Policy(settings.size, self._learner.weights, description)


def train(
    families: Sequence[Family],
    held_out: Sequence[str],
    settings: Settings,
    *,
    checkpoint: str | None = None,
    resume: bool = False,
    time_limit_s: float | None = None,
    progress: Progress = quiet,
) -> Policy:
    """Trains a policy for `settings.rounds`, or until the time limit or `progress` ends it.

    With `resume` it goes on from the checkpoint. A round that has begun is finished, which may take
    a task's search longer than the limit. Raises `BadInput` without families or torch, and for a
    checkpoint of another training.
    """
    if not families:
        raise BadInput("no family to train on", field="families", expected="at least one")
    until = None if time_limit_s is None else monotonic() + time_limit_s
    training = Training(families, settings, None)
    if resume:
        if checkpoint is None:
            raise BadInput("no checkpoint to resume", field="resume", expected="a checkpoint")
        saved = read_checkpoint(checkpoint, settings.size)
        if saved.identity != training.identity:
            raise BadInput(
                "the checkpoint belongs to another training",
                file=checkpoint,
                field="resume",
                expected="the same size, seed, numbers of tasks and samples, and families",
            )
        training = Training(families, settings, saved)
    written = monotonic()
    while training.round < settings.rounds and (until is None or monotonic() < until):
        if not progress("training", training.round / settings.rounds):
            break
        training.step()
        if checkpoint is not None and monotonic() > written + EVERY_S:
            write_checkpoint(training.saved, checkpoint)
            written = monotonic()
    if checkpoint is not None:
        write_checkpoint(training.saved, checkpoint)
    return training.policy(held_out)
