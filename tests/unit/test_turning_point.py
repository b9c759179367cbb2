"""The turning point is the knee, not an end."""

from __future__ import annotations

import numpy as np

from shardwise.search.turning_point import turning_point


def test_the_knee_of_a_sharp_bend() -> None:
    memory = np.array([1.0, 2.0, 3.0, 10.0, 20.0])
    time = np.array([100.0, 50.0, 12.0, 10.0, 9.0])
    assert turning_point(memory, time) == 2


def test_scaling_does_not_move_it() -> None:
    memory = np.array([1.0, 2.0, 3.0, 10.0, 20.0])
    time = np.array([100.0, 50.0, 12.0, 10.0, 9.0])
    assert turning_point(memory * 1e9, time * 1e-3) == turning_point(memory, time)


def test_small_frontiers() -> None:
    assert turning_point(np.array([]), np.array([])) is None
    assert turning_point(np.array([1.0]), np.array([1.0])) == 0
    assert turning_point(np.array([1.0, 2.0]), np.array([2.0, 1.0])) == 0
