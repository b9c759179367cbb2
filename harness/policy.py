"""A policy, a model and clusters for the tests of the learned strategy maker."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import numpy as np

from harness.graph_builder import GraphBuilder
from shardwise.graph import Graph
from shardwise.hardware import Devices, Hardware
from shardwise.policy.architecture import STANDARD, initial, shapes
from shardwise.policy.clusters import random_cluster
from shardwise.policy.task import Task
from shardwise.policy.teaching import OPTIONS, Family, Joined, bare_task, joined_of
from shardwise.policy.weights import SCHEMA, Description, Policy

NAMES = ["mlp"]


def deep_mlp(layers: int = 3, width: int = 256, batch: int = 48) -> Graph:
    builder = GraphBuilder("mlp")
    data = builder.input("x", batch, width)
    for n in range(layers):
        builder.parameter(f"w{n}", width, width)
        data = builder.linear(f"layers.{n}.linear", data, f"w{n}", f"h{n}")
        data = builder.relu(f"layers.{n}.relu", data, f"a{n}")
    return builder.graph()


FAMILY = Family("mlp", deep_mlp())


@cache
def joined(seed: int = 4) -> Joined:
    return joined_of(FAMILY, (seed,), OPTIONS)


@cache
def task(seed: int = 4) -> Task:
    return bare_task(joined(seed), STANDARD)


def described(rounds: int = 0, **changes: Any) -> Description:
    return msgspec.structs.replace(
        Description(SCHEMA, "standard", 0, rounds, NAMES, ["bert"]), **changes
    )


def untrained(seed: int = 0) -> Policy:
    return Policy(STANDARD, initial(STANDARD, seed), described())


def cluster(seed: int = 4) -> tuple[Hardware, Devices]:
    return random_cluster(np.random.default_rng((seed,)))


def raw(draw: np.random.Generator, groups: int, places: int, actions: int) -> dict[str, Any]:
    """Returns random arguments of `Inputs.of`."""
    policy = shapes(STANDARD)
    units = max(groups // 2, 1)
    nodes = groups + places
    edges = [
        (int(a), int(b), int(draw.integers(1, 6)), float(draw.normal()), float(draw.normal()))
        for a, b in draw.integers(nodes, size=(3 * nodes, 2))
    ]
    weights = draw.random(places)
    return {
        "groups": draw.normal(size=(groups, policy["group.w"][0])),
        "places": draw.normal(size=(places, policy["place.w"][0])),
        "edges": edges,
        "unit": np.concatenate([np.arange(units), draw.integers(units, size=groups - units)]),
        "unit_features": draw.normal(size=(units, policy["unit.features"][0])),
        "actions": (
            draw.normal(size=(actions, places, policy["action.share.w"][0])),
            draw.normal(size=(actions, policy["action.w"][0])),
        ),
        "place_weights": weights / weights.sum(),
    }
