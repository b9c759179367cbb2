"""Lower bounds on the step of a cluster of several kinds, as sums over groups and edges.

The tasks of one place, with their dependencies, are part of the whole step, so a longest path at
one place is no longer than the replayed step (`replay/bound.py`); means of such paths over places
are weights of the same kind. What is surely held at a place (`replay/moments.py`) is held in the
whole step.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from shardwise.replay.bound import Paths, StepBound
from shardwise.replay.linear import LinearStep
from shardwise.replay.mixed.replay import MixedReplayer
from shardwise.replay.mixed.stays import Stay, WanderingPaths
from shardwise.replay.mixed.wandering import Wanderer
from shardwise.replay.moments import Moments
from shardwise.replay.owner_costs import Choices, OwnerCosts, priced
from shardwise.sharding.layout import Floats


class MixedBound:
    """Longest paths at the places of a cluster, and critical paths that cross device types.

    Durations of P strategies are (P, parts · tasks + 1): those at every place, then those of every
    crossing path (`wandering.py`), the host's time last.
    """

    def __init__(self, replayer: MixedReplayer, wanderers: Sequence[Wanderer] = ()) -> None:
        self._replayer = replayer
        self._bounds = [StepBound(place) for place in replayer.places]
        self._wanderers = wanderers
        self._stays: Sequence[Stay] = ()

    def durations(self, durations_s: Floats, choices: Choices, edge_choices: Choices) -> Floats:
        """Returns the durations at all places (P, places · tasks), and of all crossing paths."""
        wandering = [one.durations(choices, edge_choices) for one in self._wanderers]
        return np.concatenate([durations_s, *wandering], axis=1)

    def within(self, stays: Sequence[Stay]) -> MixedBound:
        """Returns the bound of a part of the strategies, in which crossing paths are at known
        places."""
        part = copy(self)
        part._stays = stays
        return part

    def longest(self, durations_s: Floats) -> Paths:
        """Returns the longest path of each of P strategies, at any place or crossing places."""
        tasks, width = self._replayer.tasks, durations_s.shape[1]
        found = [
            bound.longest(np.column_stack([_of(durations_s, n, tasks), durations_s[:, -1]]))
            for n, bound in enumerate(self._bounds)
        ]
        lengths = np.stack([paths.length_s for paths in found])
        place = lengths.argmax(axis=0)

        def placed(name: str) -> Floats:
            """Returns rows of the chosen places; the last two columns belong to none."""
            result = np.zeros((len(durations_s), width + 1))
            for row, number in enumerate(place.tolist()):
                own = getattr(found[number], name)[row]
                result[row, number * tasks : (number + 1) * tasks] = own[:tasks]
                result[row, -2:] = own[tasks:]
            return result

        once, again = placed("once"), placed("again")
        if self._wanderers:
            wandering = WanderingPaths(self._replayer, self._wanderers, self._stays)
            other_once, other_again = wandering.longest(durations_s)
            weights = self.weights(other_once, other_again)
            other_s = (weights * durations_s).sum(axis=1)
            longer = other_s > lengths.max(axis=0)
            once[longer], again[longer] = other_once[longer], other_again[longer]
        weights = self.weights(once, again)
        length_s = (weights * durations_s).sum(axis=1)
        return Paths(length_s, weights, once, again)

    def weights(self, once: Floats, again: Floats) -> Floats:
        """Returns the weights of paths, or of means of them, (…, parts · tasks + 1)."""
        tasks, slopes = self._replayer.tasks, once[..., -2:]
        total = np.zeros((*once.shape[:-1], once.shape[-1] - 1))
        count = max(len(self._bounds), 1)
        for number, bound in enumerate(self._bounds):
            own = np.concatenate([_of(once, number, tasks), slopes / count], axis=-1)
            repeated = np.concatenate([_of(again, number, tasks), np.zeros_like(slopes)], axis=-1)
            weights = bound.weights(own, repeated)
            total[..., number * tasks : (number + 1) * tasks] = weights[..., :-1]
        rest = slice(len(self._bounds) * tasks, total.shape[-1] - 1)
        repeat, overlap = self._replayer.kit.repeat, self._replayer.places[0].overlap
        wandering = once[..., rest] + (repeat.times * again[..., rest] if repeat else 0.0)
        total[..., rest] = wandering * (overlap.hidden_fraction if overlap else 1.0)
        total[..., -1] = once[..., -1]
        return total

    def sums(self) -> Floats:
        """Returns equal weights for every place's tasks: (parts · tasks + 1,)."""
        count = len(self._bounds)
        own = np.concatenate([b.often / count for b in self._bounds])
        return np.concatenate([own, np.zeros(len(self._wanderers) * self._replayer.tasks + 1)])


def _of(columns: Floats, place: int, tasks: int) -> Floats:
    return columns[..., place * tasks : (place + 1) * tasks]


class MixedLinear:
    """Sums over the tasks of all places, and of all crossing paths."""

    def __init__(self, replayer: MixedReplayer, wanderers: Sequence[Wanderer] = ()) -> None:
        self._replayer = replayer
        self._steps = [LinearStep(place) for place in replayer.places]
        self._wanderers = wanderers

    def weighted(self, weights: Floats) -> OwnerCosts:
        """Returns the durations of all tasks and the host's time, weighted."""
        tasks, count = self._replayer.tasks, len(self._steps)
        # The busiest host's time is at least the mean of all.
        own = [np.append(_of(weights, n, tasks), weights[-1] / count) for n in range(count)]
        at_places = [
            step.weighted(row) for step, row in zip(self._steps, own, strict=True) if row.any()
        ]
        others = [_of(weights, count + n, tasks) for n in range(len(self._wanderers))]
        wandering = [
            one.weighted(row) for one, row in zip(self._wanderers, others, strict=True) if row.any()
        ]
        if not (at_places or wandering):
            at_places = [self._steps[0].weighted(own[0])]
        return priced([(1.0, costs) for costs in (*at_places, *wandering)])


class MixedMoments:
    """Lower bounds on bytes held, scaled as in `MixedReplayer`.

    A moment of a place has the number of its task plus `tasks` times the place.
    """

    def __init__(self, replayer: MixedReplayer) -> None:
        self._replayer = replayer
        self._moments = [Moments(place) for place in replayer.places]
        self._known: dict[int, OwnerCosts] = {}

    @property
    def last_backward(self) -> int:
        """The moment at which the last written backward pass begins at the place with least
        memory."""
        place = int(self._replayer.limits_bytes.argmin())
        return place * self._replayer.tasks + self._moments[place].last_backward

    @property
    def all_last_backward(self) -> list[int]:
        """The same at every place."""
        tasks = self._replayer.tasks
        return [n * tasks + moments.last_backward for n, moments in enumerate(self._moments)]

    def task_of(self, task: int) -> int:
        """Returns the moment of computation that is at a task or the last one before it."""
        place, own = divmod(task, self._replayer.tasks)
        return place * self._replayer.tasks + self._moments[place].task_of(own)

    def held(self, task: int) -> OwnerCosts:
        """Returns a lower bound on the scaled bytes held when a task of computation starts."""
        if task not in self._known:
            place, own = divmod(task, self._replayer.tasks)
            scale = float(self._replayer.scale[place])
            self._known[task] = priced([(scale, self._moments[place].held(own))])
        return self._known[task]
