"""The learned strategy maker: what it sees, and what it computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.policy import cluster, joined, raw, task, untrained
from shardwise.policy.architecture import PAPER, SIZES, STANDARD, initial, shapes
from shardwise.policy.arithmetic import NumpyArithmetic, Segments
from shardwise.policy.clusters import MOST_BLOCKS, MOST_GROUPS
from shardwise.policy.features import Inputs, inputs_of
from shardwise.policy.grouping import unit_of
from shardwise.policy.network import scores
from shardwise.policy.sampling import probabilities, sampled
from shardwise.policy.task import OUT_OF_MEMORY
from shardwise.search.improve import Pool
from shardwise.search.mixed.search import limits_of

# What units are.


def test_like_layers_are_one_unit() -> None:
    assert unit_of([3, 7, 3, 7, 9], [1.0] * 5, [], 10).tolist() == [0, 1, 0, 1, 2]


def test_without_classes_every_group_is_a_unit() -> None:
    assert unit_of([3, 3, 3], [1.0] * 3, [], 10, by_class=False).tolist() == [0, 1, 2]


def test_groups_join_the_centre_with_the_fewest_hops() -> None:
    edges = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    seconds = [9.0, 1.0, 1.0, 1.0, 1.0, 8.0]
    units = unit_of(range(6), seconds, edges, 2, by_class=False)
    assert units.tolist() == [0, 0, 0, 1, 1, 1]


def test_of_equally_near_centres_the_longer_one_wins() -> None:
    units = unit_of(range(3), [1.0, 0.1, 2.0], [(0, 1), (1, 2)], 2, by_class=False)
    assert units.tolist() == [0, 1, 1]


def test_groups_apart_from_all_centres_join_the_longest() -> None:
    assert unit_of(range(3), [1.0, 0.1, 2.0], [], 1, by_class=False).tolist() == [0, 0, 0]


@given(st.integers(1, 30), st.integers(1, 12), st.randoms(use_true_random=False))
def test_units_are_numbered_without_gaps(count: int, most: int, random: Any) -> None:
    edges = [(random.randrange(i), i) for i in range(1, count)]
    seconds = [random.random() for _ in range(count)]
    units = unit_of(range(count), seconds, edges, most, by_class=False)
    assert set(units.tolist()) == set(range(min(count, most)))


# What the network computes.


def scored(arguments: dict[str, Any]) -> np.ndarray[Any, Any]:
    weights = initial(STANDARD, 3)
    found: np.ndarray[Any, Any] = scores(
        weights, Inputs.of(**arguments), STANDARD, NumpyArithmetic()
    )
    return found


def test_permuting_groups_changes_nothing() -> None:
    draw = np.random.default_rng(1)
    given = raw(draw, 11, 4, 9)
    order = draw.permutation(11)
    where = np.concatenate([np.argsort(order), np.arange(11, 15)])
    moved = given | {
        "groups": given["groups"][order],
        "unit": given["unit"][order],
        "edges": [(int(where[a]), int(where[b]), *rest) for a, b, *rest in given["edges"]],
    }
    assert scored(moved) == pytest.approx(scored(given), abs=1e-5)


def test_permuting_units_and_actions_permutes_scores() -> None:
    draw = np.random.default_rng(2)
    given = raw(draw, 11, 4, 9)
    units, actions = draw.permutation(5), draw.permutation(9)
    moved = given | {
        "unit": np.argsort(units)[given["unit"]],
        "unit_features": given["unit_features"][units],
        "actions": tuple(part[actions] for part in given["actions"]),
    }
    assert scored(moved) == pytest.approx(scored(given)[units][:, actions], abs=1e-5)


def test_permuting_places_changes_nothing() -> None:
    draw = np.random.default_rng(5)
    given = raw(draw, 11, 4, 9)
    order = draw.permutation(4)
    where = np.concatenate([np.arange(11), 11 + np.argsort(order)])
    moved = given | {
        "places": given["places"][order],
        "edges": [(int(where[a]), int(where[b]), *rest) for a, b, *rest in given["edges"]],
        "actions": (given["actions"][0][:, order], given["actions"][1]),
        "place_weights": given["place_weights"][order],
    }
    assert scored(moved) == pytest.approx(scored(given), abs=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("size", SIZES)
def test_numpy_equals_torch(size: str) -> None:
    torch = pytest.importorskip("torch")
    from shardwise.policy.torch_arithmetic import TorchArithmetic

    weights = initial(SIZES[size], 0)
    inputs = Inputs.of(**raw(np.random.default_rng(7), 30, 5, 40))
    ours = scores(weights, inputs, SIZES[size], NumpyArithmetic())
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    theirs = scores(tensors, inputs, SIZES[size], TorchArithmetic()).numpy()
    assert ours.dtype == theirs.dtype == np.float32
    assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-5)
    assert float(np.abs(ours).max()) > 1e-2


@pytest.mark.parametrize("seed", [4, 9, 11])
def test_one_policy_decides_for_any_number_of_devices_and_actions(seed: int) -> None:
    own = task(seed)
    shares = probabilities(untrained(), own.inputs)
    assert shares.shape == (own.units, len(own.actions.wishes))
    assert shares.sum(axis=1) == pytest.approx(1.0)


def test_the_clusters_of_these_tests_differ() -> None:
    assert len({len(task(seed).inputs.places) for seed in (4, 9, 11)}) > 1
    assert len({len(task(seed).actions.wishes) for seed in (4, 9, 11)}) > 1


def test_it_has_about_a_million_weights() -> None:
    assert sum(int(np.prod(shape)) for shape in shapes(STANDARD).values()) == pytest.approx(
        1e6, rel=0.25
    )
    assert (PAPER.attention_layers, PAPER.attention_heads, PAPER.layers) == (12, 8, 8)


def test_segments_must_ascend_and_have_no_gaps() -> None:
    for index in ([0, 2, 2], [1, 0, 2]):
        with pytest.raises(ValueError, match="ascend"):
            Segments.of(np.array(index), 3)


# What units may be told, and what it is worth.


def test_features_are_relative() -> None:
    """Twice the memory on every device changes no feature but what fits."""
    own, search = task(), joined().search
    limits = limits_of(search.problem, search.options)
    inputs, unit = inputs_of(search.problem, own.actions, 2.0 * limits, STANDARD)
    assert unit.tolist() == own.unit.tolist()
    assert inputs.shares == pytest.approx(own.inputs.shares, abs=1e-6)
    assert inputs.actions == pytest.approx(own.inputs.actions, abs=1e-6)
    assert np.isfinite(inputs.groups).all() and np.isfinite(inputs.edges).all()


def test_an_action_fits_its_own_strategy_best() -> None:
    own = task()
    for number in range(0, len(own.actions.wishes), 17):
        decisions = np.full((1, own.units), number)
        shares = own.fitting(own.choices(decisions)[0])
        assert (shares[:, number] == shares.max(axis=1)).all()
        assert shares.sum(axis=1) == pytest.approx(1.0)


def test_what_does_not_fit_is_rewarded_ten_times_worse() -> None:
    own = replace(task(), scale_s=2.0)
    limit = own.search.limit_bytes
    none = np.zeros((2, 0), dtype=np.uint32)
    pool = Pool(none, none, np.array([limit, 1.01 * limit]), np.array([8.0, 8.0]))
    assert own.rewards(pool).tolist() == pytest.approx([-2.0, -2.0 * OUT_OF_MEMORY])


def test_the_first_sample_is_the_likeliest_and_others_follow_the_shares() -> None:
    shares = np.array([[0.1, 0.9, 0.0], [0.5, 0.25, 0.25]])
    found = sampled(shares, 4000, np.random.default_rng(0))
    assert found.shape == (4001, 2) and found[0].tolist() == [1, 0]
    assert np.bincount(found[1:, 0], minlength=3) / 4000 == pytest.approx(shares[0], abs=0.03)
    assert np.bincount(found[1:, 1], minlength=3) / 4000 == pytest.approx(shares[1], abs=0.03)


def test_random_clusters_are_those_of_their_seed() -> None:
    for seed in range(40):
        (hardware, bundle), (other, _) = cluster(seed), cluster(seed)
        assert hardware.id == other.id
        assert 2 <= len(bundle.counts) <= MOST_GROUPS
        assert bundle.gpus <= 2 * MOST_BLOCKS
