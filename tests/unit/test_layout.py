"""Layouts: sizes of shards, and that shards cover a tensor exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.sharding.layout import (
    PARTIAL,
    REPLICATE,
    describe,
    encode,
    local_elements,
    shard_fits,
)


def test_local_elements_counts_the_largest_shard() -> None:
    layouts = np.array([[0, 1], [0, 0], [REPLICATE, PARTIAL], [1, REPLICATE]], dtype=np.int8)
    sizes = np.array([2, 4])
    assert local_elements((6, 10), layouts, sizes).tolist() == [3 * 3, 1 * 10, 60, 6 * 5]


def test_codes_tell_layouts_apart() -> None:
    layouts = np.array([[0, 1], [1, 0], [REPLICATE, 0], [PARTIAL, 0], [0, 1]], dtype=np.int8)
    codes = encode(layouts)
    assert len(set(codes.tolist())) == 4
    assert codes[0] == codes[4]


@given(st.integers(1, 500), st.integers(1, 64))
def test_fitting_shards_cover_the_dimension_and_none_is_empty(extent: int, parts: int) -> None:
    size = -(-extent // parts)
    shards = [range(min(i * size, extent), min((i + 1) * size, extent)) for i in range(parts)]
    assert [i for shard in shards for i in shard] == list(range(extent))
    assert shard_fits(extent, parts) == all(len(shard) > 0 for shard in shards)


def test_describe_names_states() -> None:
    assert describe((0, REPLICATE, PARTIAL, 3), ()) == [
        "shard(0)",
        "replicate",
        "partial",
        "shard(3)",
    ]


@pytest.mark.parametrize(("extent", "parts", "fits"), [(8, 8, True), (9, 8, False), (7, 8, False)])
def test_shard_fits_examples(extent: int, parts: int, fits: bool) -> None:
    assert shard_fits(extent, parts) is fits
