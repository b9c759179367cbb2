"""The actions that the policy chooses for a unit, and their effect on the places of a cluster.

An action is data parallelism under a proportion, with a kind of gradient sum, a ZeRO stage and
recomputation or not: EV and CP × PS and AllReduce, one kind of device alone, and what lies between
(HeteroG §4.1.2 has M + 4 of them). The policy sees an action only by features relative to
the places' speeds and memories, so it works on other clusters with other numbers of actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.cost.gradient_sums import COLLECTIVE
from shardwise.cost.mixed.assemble import MixedProblem
from shardwise.cost.mixed.sums import ServerSum, UnevenSum
from shardwise.policy.architecture import ACTION_FEATURES, SHARE_FEATURES
from shardwise.search.mixed.incumbents import Wish, strategies, wishes
from shardwise.sharding.layout import Floats

STAGES = 4


@dataclass(frozen=True)
class Actions:
    """The actions of a problem, `rows` (actions, groups) the configuration that each is."""

    wishes: tuple[Wish, ...]
    rows: NDArray[np.uint32]

    @classmethod
    def of(cls, problem: MixedProblem) -> Actions:
        """Returns the actions of a problem; of those that are the same for all groups the first."""
        every = list(wishes(problem))
        rows = strategies(problem, every)
        _, first = np.unique(rows, axis=0, return_index=True)
        kept = np.sort(first)
        return cls(tuple(every[k] for k in kept.tolist()), rows[kept])

    def find(self, wish: Wish) -> int | None:
        """Returns the number of an action; None where another one is the same."""
        return self.wishes.index(wish) if wish in self.wishes else None

    def nearest(self, problem: MixedProblem, choices: NDArray[np.uint32]) -> Floats:
        """Returns how well each action fits a strategy's choices (groups,), (actions, groups).

        The shares of the actions nearest to a choice, in proportion, recomputation, sum and stage,
        add up to 1 for each group.
        """
        shares = np.zeros(self.rows.shape)
        for g, cost in enumerate(problem.costs):
            own, chosen = self.rows[:, g], int(choices[g])
            stage = cost.zero.astype(np.int64)
            distance = (
                8 * (cost.proportion[own] != cost.proportion[chosen])
                + 4 * (cost.recompute[own] != cost.recompute[chosen])
                + 2 * (cost.gradient_sum[own] != cost.gradient_sum[chosen])
                + np.abs(stage[own] - stage[chosen]) / STAGES
            )
            nearest = distance == distance.min()
            shares[:, g] = nearest / nearest.sum()
        return shares


def action_features(
    problem: MixedProblem, actions: Actions, speeds: Floats, limits: Floats
) -> tuple[Floats, Floats]:
    """Returns the features of actions at places (actions, places, …) and alone (actions, …).

    `speeds` and `limits` (places,) are relative to the mean over all blocks.
    """
    known: dict[tuple[int, int], tuple[Floats, list[float]]] = {}
    at_places = np.zeros((len(actions.wishes), len(speeds), SHARE_FEATURES))
    alone = np.zeros((len(actions.wishes), ACTION_FEATURES))
    for number, wish in enumerate(actions.wishes):
        key = wish.proportion, wish.gradient_sum
        if key not in known:
            known[key] = _features(problem, *key, speeds, limits)
        at_places[number], rest = known[key]
        stage = [float(wish.stage == one) for one in range(STAGES)]
        alone[number] = [*stage, float(wish.recompute), *rest]
    return at_places, alone


def _features(
    problem: MixedProblem, proportion: int, gradient_sum: int, speeds: Floats, limits: Floats
) -> tuple[Floats, list[float]]:
    cluster = problem.cluster
    shares = _at_places(problem, cluster.proportions[proportion].weights)
    special = problem.context.mesh.gradient_sums[gradient_sum]
    server = np.zeros(len(speeds))
    state = shares
    if isinstance(special, ServerSum):
        weights = np.zeros(len(cluster.place_of))
        weights[special.server] = 1.0
        server = state = _at_places(problem, weights.tolist())
    elif isinstance(special, UnevenSum):
        state = _at_places(problem, special.shares.weights)
    columns = (
        np.log1p(shares), np.log1p(shares / speeds), np.log1p(shares / limits), shares > 0.0,
        server > 0.0, np.log1p(state), np.log1p(state / limits),
    )  # fmt: skip
    kind = [gradient_sum == COLLECTIVE, isinstance(special, ServerSum)]
    weighed = cluster.proportions[proportion]
    rest = [
        *(float(one) for one in (*kind, not any(kind), weighed.is_even, weighed.is_whole)),
        float(np.log((shares / speeds).max())),
        len(weighed.support) / len(weighed.weights),
    ]
    return np.stack(columns, axis=1).astype(np.float64), rest


def _at_places(problem: MixedProblem, weights: Sequence[float]) -> Floats:
    """Returns the mean share of a block at each place, relative to an even one, (places,)."""
    places = np.array(problem.cluster.place_of)
    relative = np.asarray(weights, dtype=np.float64) * len(places) / sum(weights)
    return np.asarray(np.bincount(places, weights=relative) / np.bincount(places))
