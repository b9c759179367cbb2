"""What re-scheduling holds besides the tensor before and after it."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.cost.reschedule import Reschedulers
from shardwise.cost.space import SearchMesh
from shardwise.cost.staging import staged_elements
from shardwise.hardware import Mesh, load_hardware
from shardwise.sharding.layout import PARTIAL, REPLICATE

SIZES = np.array([2, 4])
SHAPE = (8, 16, 4)
ALL = 8 * 16 * 4


@pytest.mark.parametrize(
    ("path", "elements"),
    [
        # Shares of the outermost dimension lie behind each other; of another, blocks are put
        # together: what is gathered is there twice.
        ([(REPLICATE, 0), (REPLICATE, REPLICATE)], 0),
        ([(REPLICATE, 1), (REPLICATE, REPLICATE)], ALL),
        ([(0, 1), (0, REPLICATE)], ALL / 2),
        # Terms are packed before they are scattered.
        ([(PARTIAL, REPLICATE), (0, REPLICATE)], 0),
        ([(PARTIAL, REPLICATE), (2, REPLICATE)], ALL),
        # Of what is sent and what comes only one is there besides at a time.
        ([(0, REPLICATE), (1, REPLICATE)], ALL / 2),
        ([(1, REPLICATE), (0, REPLICATE)], ALL / 2),
        ([(1, REPLICATE), (2, REPLICATE)], ALL / 2),
        ([(PARTIAL, REPLICATE), (REPLICATE, REPLICATE)], 0),
        ([(REPLICATE, REPLICATE), (1, REPLICATE)], 0),
        # The reduced tensor lies between its two ends.
        ([(PARTIAL, REPLICATE), (REPLICATE, REPLICATE), (1, REPLICATE)], ALL / 2 + ALL / 2),
        ([(0, REPLICATE)], 0),
    ],
)
def test_elements_besides_both_ends(path: list[tuple[int, int]], elements: float) -> None:
    assert staged_elements(SHAPE, SIZES, path) == elements


def test_uneven_shares_are_put_together_from_padded_blocks() -> None:
    assert staged_elements((6, 3), SIZES, [(0, REPLICATE), (REPLICATE, REPLICATE)]) == 0
    assert staged_elements((7, 3), SIZES, [(0, REPLICATE), (REPLICATE, REPLICATE)]) == 21
    assert staged_elements((7, 3), SIZES, [(PARTIAL, REPLICATE), (0, REPLICATE)]) == 21


def test_extents_of_one_do_not_count_as_outer_dimensions() -> None:
    assert staged_elements((1, 8, 3), SIZES, [(1, REPLICATE), (REPLICATE, REPLICATE)]) == 0


def test_a_rescheduler_knows_the_order_in_memory_of_its_own_shape() -> None:
    hardware = load_hardware("dgx-a100-80gb")
    mesh = SearchMesh.build(Mesh.build(hardware, 4), 512)
    known = Reschedulers(hardware, mesh)
    axes = len(mesh.axes)
    for shape in ((64, 8), (8, 64)):
        paths = known.of(shape, 4)
        layouts = np.full((3, axes), REPLICATE, dtype=np.int8)
        layouts[0, 0], layouts[1, 0] = 0, 1
        first, second, whole = paths.register(layouts)
        staged = paths.staged_bytes(np.array([first, second]), np.array([whole, whole]))
        assert staged.tolist() == [0.0, 64 * 8 * 4]
