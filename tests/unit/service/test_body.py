"""Bodies in gzip: one pass over them, bounds on members, ratio and output."""

from __future__ import annotations

import gzip
import time
import zlib

import pytest

pytest.importorskip("fastapi")

from service.base.problems import Problem
from service.edge.body import MAX_MEMBERS, gunzip

LIMIT = 64 * 2**20
EMPTY = gzip.compress(b"")


def refused(data: bytes, limit: int = LIMIT, ratio: int = 200) -> str:
    with pytest.raises(Problem) as caught:
        gunzip(data, limit, ratio)
    return caught.value.slug


def text(size: int) -> bytes:
    return b"".join(b"%d," % (number * 7919) for number in range(size // 8))


@pytest.mark.parametrize("sizes", [(0,), (5,), (2**20,), (3, 0, 2**17, 5)])
def test_what_was_compressed_comes_back(sizes: tuple[int, ...]) -> None:
    parts = [text(size) for size in sizes]
    assert gunzip(b"".join(map(gzip.compress, parts)), LIMIT, 200) == b"".join(parts)


def test_blocked_gzip_of_the_largest_body_has_few_enough_members() -> None:
    block = b"\0" * 2**16
    many = gzip.compress(block) * (LIMIT // 2**16)
    assert len(gunzip(many, LIMIT, 10_000)) == LIMIT


def test_empty_members_are_counted_and_not_copied_each_time() -> None:
    assert gunzip(EMPTY * MAX_MEMBERS, LIMIT, 200) == b""
    assert refused(EMPTY * (MAX_MEMBERS + 1)) == "bad-encoding"
    # 20 MB: ten minutes when each member copies all that is behind it.
    started = time.process_time()
    assert refused(EMPTY * 1_000_000) == "bad-encoding"
    assert time.process_time() - started < 5.0


def test_members_within_the_bound_cost_no_copy_of_the_rest() -> None:
    """2,000 members before 60 MB: 60 GB of copies when each takes the rest along."""
    deflated = zlib.compressobj(0, wbits=31)
    stored = deflated.compress(b"x" * 60_000_000) + deflated.flush()
    started = time.process_time()
    assert len(gunzip(EMPTY * 2000 + stored, LIMIT, 200)) == 60_000_000
    assert time.process_time() - started < 10.0


def test_output_and_ratio_are_bounded() -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    assert refused(bomb, limit=1_000_000) == "too-large"
    assert refused(bomb) == "too-large", "a thousand times its size"
    assert len(gunzip(bomb, LIMIT, 2000)) == 50_000_000


@pytest.mark.parametrize(
    "data",
    [EMPTY[:-1], gzip.compress(b"abc")[:-9], gzip.compress(b"abc") + b"junk", b"no gzip", b"\x1f"],
    ids=["no end", "no content", "junk behind it", "text", "one byte"],
)
def test_broken_data(data: bytes) -> None:
    assert refused(data) == "bad-encoding"
