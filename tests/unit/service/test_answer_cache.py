"""The cache of answers: its bound counts everything, and a tenant's flood is its own affair."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

pytest.importorskip("fastapi")

from hypothesis import given
from hypothesis import strategies as st

from service.edge.cache import SHARE, AnswerCache, size_of
from service.edge.curve_key import MOST_BYTES, CurveKeys, digest_of
from service.store.results import Stored

LIMIT = 60_000
TENANTS = "abcdef"
puts = st.tuples(
    st.sampled_from(TENANTS), st.integers(0, 40), st.integers(0, 12_000), st.booleans()
)


def stored(size: int) -> Stored:
    return Stored(bytes(size), '"e"')


@given(st.lists(puts, max_size=120))
def test_whatever_is_put_the_bound_holds_and_is_the_sum_of_what_is_there(
    steps: list[tuple[str, int, int, bool]],
) -> None:
    cache = AnswerCache(LIMIT)
    for tenant, number, size, clears in steps:
        if clears and number == 0:
            cache.clear_tenant(tenant)
        cache.put((tenant, b"%d" % number), stored(size))
        by_tenant = dict(cache._tenants)
        assert cache.size_bytes == sum(one.size for one in by_tenant.values()) <= LIMIT
        for name, one in by_tenant.items():
            entries = sum(size_of(d, e.stored) for d, e in one.entries.items())
            assert one.size == entries + cache._tenant_bytes(name)
        if len(by_tenant) > 1 and tenant in by_tenant:
            assert by_tenant[tenant].size <= LIMIT // SHARE
    for tenant in TENANTS:
        cache.clear_tenant(tenant)
    assert cache.size_bytes == 0


@given(st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 12_000)), max_size=150))
def test_a_flood_evicts_nothing_of_tenants_that_hold_little(flood: list[tuple[str, int]]) -> None:
    cache = AnswerCache(LIMIT)
    small = [(tenant, b"s%d" % number) for tenant in "abc" for number in range(3)]
    for key in small:
        cache.put(key, stored(1000))
    for number, (tenant, size) in enumerate(flood):
        cache.put((tenant, b"f%d" % number), stored(size))
    assert all(cache.get(key) is not None for key in small)


def test_a_tenant_alone_has_the_whole_cache_and_shares_when_others_come() -> None:
    cache = AnswerCache(LIMIT)
    for number in range(100):
        cache.put(("a", b"%d" % number), stored(1000))
    assert cache.size_bytes > LIMIT * 0.9
    cache.put(("b", b"0"), stored(1000))
    cache.put(("a", b"new"), stored(1000))
    assert cache.size_bytes <= LIMIT // SHARE + 5000
    assert cache.get(("b", b"0")) is not None and cache.get(("a", b"new")) is not None


def test_what_is_counted_is_what_memory_takes() -> None:
    """Many small answers: the worst case for what is around them."""
    limit = 2**20
    gc.collect()
    tracemalloc.start()
    try:
        cache, keys = AnswerCache(limit), CurveKeys(limit)
        for number in range(3000):
            query = b"graph=%d&hardware=h&max_gpus=8" % number
            digest = keys.of(query)
            assert digest is not None
            cache.put((f"tenant-{number % 20}", digest), Stored(b"x" * 20, f'"{number:032}"'))
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= cache.size_bytes + keys.size_bytes
    assert cache.size_bytes <= limit and keys.size_bytes <= limit


GOOD = b"graph=shipped:vgg16&hardware=l4&max_gpus=8"


@pytest.mark.parametrize(
    "query",
    [
        b"max_gpus=8&hardware=l4&graph=shipped:vgg16",
        b"graph=shipped%3Avgg16&hardware=l4&max_gpus=8",
        b"&&graph=shipped:vgg16&hardware=%6c4&&max_gpus=8&",
    ],
)
def test_another_spelling_has_the_same_key(query: bytes) -> None:
    assert digest_of(query) == digest_of(GOOD)


def test_bundles_have_one_key_in_any_order() -> None:
    start = b"graph=g&hardware=h&bundles="
    one = digest_of(start + b"v100%3D2,p100%3D1&bundles=v100%3D2")
    assert one is not None
    assert one == digest_of(start + b"v100=2&bundles=p100%3D1,%20v100%3D2")
    assert one == digest_of(start + b"v100=2&bundles=p100=1,v100=2&bundles=v100=2")
    others = (b"v100=2", b"v100=2,p100=1", b"v100=2,p100=1,v100=2", b"v100=2&max_gpus=3")
    assert one not in [digest_of(start + other) for other in others]


@pytest.mark.parametrize(
    "query",
    [
        GOOD + b"&epsilon=0.1",
        GOOD + b"&format=gavel",
        GOOD + b"&format=gavel&efficiency=0.5",
        GOOD + b"&zero=0&zero=3",
        GOOD + b"&pins=a&pins=b",
        GOOD + b"&pins=b&pins=a",
        GOOD.replace(b"8", b"9"),
        b"graph=shipped:vgg16%26hardware=l4&max_gpus=8",
    ],
)
def test_another_question_has_another_key(query: bytes) -> None:
    digest = digest_of(query)
    assert digest is not None and digest != digest_of(GOOD)


@pytest.mark.parametrize(
    "query",
    [
        GOOD + b"&colour=red",
        GOOD + b"&max_gpus=8",
        GOOD + b"&gpu_type=padding",
        GOOD + b"&format=json&efficiency=0.3",
        GOOD + b"&pins=" + b"x" * MOST_BYTES,
        GOOD + b"&pins=x" * 200,
    ],
)
def test_what_is_not_cached(query: bytes) -> None:
    assert digest_of(query) is None


def test_padding_adds_no_keys_and_spellings_are_bounded() -> None:
    """A query of up to 64 KiB was an entry of its own for each way to write it."""
    keys = CurveKeys(20_000)
    digests = {keys.of(GOOD + b"&" * number) for number in range(90)}
    assert digests == {digest_of(GOOD)}
    assert 0 < keys.size_bytes <= 20_000
    assert CurveKeys(0).of(GOOD) == digest_of(GOOD)
