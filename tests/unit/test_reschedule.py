"""Tensor re-scheduling: arcs, paths and the laws they obey."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from shardwise.cost.reschedule import Rescheduler, Reschedulers
from shardwise.cost.space import SearchMesh
from shardwise.hardware import Mesh, load_hardware
from shardwise.sharding.layout import PARTIAL, REPLICATE


def _all_layouts(dims: int, axes: int) -> np.ndarray:
    states = [REPLICATE, PARTIAL, *range(dims)]
    return np.array(list(product(states, repeat=axes)), dtype=np.int8)


@pytest.fixture(scope="module", params=["dgx-v100-16gb", "l4"])
def paths(request: pytest.FixtureRequest) -> tuple[Rescheduler, np.ndarray, np.ndarray]:
    hardware = load_hardware(request.param)
    mesh = SearchMesh.build(Mesh.build(hardware, 16), 200)
    rescheduler = Reschedulers(hardware, mesh).of((96, 64, 1024), 4)
    layouts = _all_layouts(3, len(mesh.axes))
    return rescheduler, layouts, rescheduler.register(layouts)


def test_a_layout_to_itself_is_free(paths: tuple[Rescheduler, np.ndarray, np.ndarray]) -> None:
    rescheduler, _, nodes = paths
    assert (rescheduler.distance(nodes, nodes) == 0).all()
    assert rescheduler.path(int(nodes[3]), int(nodes[3])) == []


def test_triangle_inequality(paths: tuple[Rescheduler, np.ndarray, np.ndarray]) -> None:
    rescheduler, layouts, nodes = paths
    whole = np.flatnonzero((layouts != PARTIAL).all(axis=1))
    some = nodes[whole[:: max(len(whole) // 60, 1)]]
    d = rescheduler.distance(some[:, None], some[None, :])
    through = (d[:, :, None] + d[None, :, :]).min(axis=1)
    assert (d <= through * (1 + 1e-9) + 1e-15).all()


def test_a_path_adds_up_and_ends_where_it_should(
    paths: tuple[Rescheduler, np.ndarray, np.ndarray],
) -> None:
    rescheduler, layouts, nodes = paths
    rng = np.random.default_rng(0)
    for a, b in rng.integers(0, len(layouts), size=(200, 2)):
        if (layouts[b] == PARTIAL).any() and not (layouts[a] == layouts[b]).all():
            continue
        steps = rescheduler.path(int(nodes[a]), int(nodes[b]))
        total = sum(step.time_s for step in steps)
        assert total == pytest.approx(float(rescheduler.distance(nodes[a], nodes[b])))
        end = steps[-1].result if steps else tuple(layouts[a])
        assert tuple(end) == tuple(layouts[b])


def test_known_collectives(paths: tuple[Rescheduler, np.ndarray, np.ndarray]) -> None:
    rescheduler, layouts, nodes = paths
    axes = layouts.shape[1]

    def node(state: int) -> int:
        """The innermost axis in one state: across nodes a slice first can be cheaper."""
        row = np.array([*[REPLICATE] * (axes - 1), state], dtype=np.int8)
        return int(nodes[np.flatnonzero((layouts == row).all(axis=1))[0]])

    def names(a: int, b: int) -> list[str]:
        return [step.operation for step in rescheduler.path(a, b)]

    assert names(node(0), node(REPLICATE)) == ["all_gather"]
    assert names(node(REPLICATE), node(0)) == ["slice"]
    assert names(node(PARTIAL), node(REPLICATE)) == ["all_reduce"]
    assert names(node(PARTIAL), node(1)) == ["reduce_scatter"]
    assert names(node(0), node(1)) == ["all_to_all"]


def test_the_outer_axis_of_a_dimension_cannot_be_gathered_alone(
    paths: tuple[Rescheduler, np.ndarray, np.ndarray],
) -> None:
    rescheduler, layouts, nodes = paths
    axes = layouts.shape[1]
    if axes < 2:
        pytest.skip("needs two axes")
    both = np.array([0, 0, *[REPLICATE] * (axes - 2)], dtype=np.int8)
    inner = np.array([REPLICATE, 0, *[REPLICATE] * (axes - 2)], dtype=np.int8)
    find = [int(nodes[np.flatnonzero((layouts == row).all(axis=1))[0]]) for row in (both, inner)]
    steps = rescheduler.path(*find)
    assert [s.operation for s in steps] != ["all_gather"]
    assert tuple(steps[-1].result) == tuple(inner)


def test_what_paths_hold_besides_is_the_same_for_new_layouts() -> None:
    """Layouts may be registered after some paths were asked for; what is known stays."""
    hardware = load_hardware("dgx-v100-16gb")
    mesh = SearchMesh.build(Mesh.build(hardware, 8), 200)
    layouts = _all_layouts(2, len(mesh.axes))
    split = layouts[(layouts >= 0).all(axis=1)]

    def fresh(registered: np.ndarray) -> tuple[Rescheduler, np.ndarray]:
        rescheduler = Reschedulers(hardware, mesh).of((96, 64), 4)
        return rescheduler, rescheduler.register(registered)

    at_once, nodes = fresh(layouts)
    whole = nodes[(layouts == REPLICATE).all(axis=1)]
    ends = nodes[(layouts >= 0).all(axis=1)]
    expected = at_once.staged_bytes(whole, ends)
    assert (expected > 0).any()

    in_turn, some = fresh(split[:1])
    in_turn.staged_bytes(some, some)
    later = in_turn.register(layouts)
    again = in_turn.staged_bytes(
        later[(layouts == REPLICATE).all(axis=1)], later[(layouts >= 0).all(axis=1)]
    )
    assert (again == expected).all()
