"""Buckets of one process, addresses that are counted, proxies that are believed."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")

from hypothesis import given
from hypothesis import strategies as st
from uvicorn.middleware.proxy_headers import _TrustedHosts

from service.base.addresses import UNKNOWN, counted_address, forwarded_allow_ips
from service.base.settings import Settings, load_settings
from service.edge.rate import MAX_BUCKETS, Buckets
from shardwise.errors import BadInput


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("service.edge.rate.monotonic", lambda: now[0])
    return now


def test_many_names_do_not_give_back_what_was_spent(clock: list[float]) -> None:
    """The 10,001st key made all others' buckets full again."""
    buckets = Buckets(rate_per_s=0.001, burst=3)
    spent = ("first", "second")
    for key in spent * 3:
        assert buckets.take(key) == 0.0
    for number in range(MAX_BUCKETS + 10):
        buckets.take(f"other {number}")
        assert all(buckets.take(key) > 0 for key in spent)
    assert len(buckets) == MAX_BUCKETS


@given(
    st.lists(st.tuples(st.integers(0, 30), st.floats(0, 0.5)), max_size=300),
    st.integers(1, 8),
    st.integers(1, 5),
)
def test_under_however_many_names_no_more_than_the_buckets_hold(
    asked: list[tuple[int, float]], most: int, burst: int
) -> None:
    rate, start = 2.0, 100.0
    with pytest.MonkeyPatch.context() as patch:
        now = [start]
        patch.setattr("service.edge.rate.monotonic", lambda: now[0])
        buckets = Buckets(rate, burst, most)
        taken = 0
        for name, pause_s in asked:
            now[0] += pause_s
            taken += buckets.take(str(name)) == 0.0
            assert len(buckets) <= most
            assert taken <= most * (burst + rate * (now[0] - start)) + 1e-6


def test_a_token_given_back_is_there_and_no_bucket_overflows(clock: list[float]) -> None:
    buckets = Buckets(0.001, 2)
    for _ in range(5):
        assert buckets.take("a") == 0.0
        buckets.give_back("a")
    buckets.give_back("a")
    buckets.give_back("nobody")
    assert [buckets.take("a") > 0 for _ in range(3)] == [False, False, True]


def test_a_key_whose_rate_was_changed_has_it_at_once(clock: list[float]) -> None:
    buckets = Buckets(0.0, 1)
    while buckets.take("a", 0.5) == 0.0:
        pass
    assert buckets.take("a", 100.0) == 0.0


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", UNKNOWN),
        ("not an address", UNKNOWN),
        ("1" * 70_000, UNKNOWN),
    ],
)
def test_addresses(text: str, counted: str) -> None:
    assert counted_address(text) == counted


@pytest.mark.parametrize(
    "text", ["*", "proxy.example", "10.0.0.1/8", "0.0.0.0/0", "::/0", "10.0.0.1;10.0.0.2"]
)
def test_proxies_that_are_refused_when_settings_are_read(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        load_settings({}, {"SHARDWISE_TRUSTED_PROXIES": text})
    assert refused.value.field == "trusted_proxies"


def test_proxies_that_are_believed() -> None:
    assert forwarded_allow_ips(Settings().trusted_proxies) == []
    text = load_settings({}, {"SHARDWISE_TRUSTED_PROXIES": " 10.0.0.1, 10.1.0.0/16,2001:db8::1 ,"})
    hosts = _TrustedHosts(forwarded_allow_ips(text.trusted_proxies))
    for believed in ("10.0.0.1", "::ffff:10.0.0.1", "10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1"):
        assert believed in hosts
    for other in ("10.0.0.2", "::ffff:10.0.0.2", "10.2.0.1", "2001:db8::2", "127.0.0.1", "::1"):
        assert other not in hosts
