"""Webhooks in parts: where they may lead, how they are signed, who is served first, one post."""

from __future__ import annotations

import base64
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address, ip_network
from time import time
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from service.base.lookup import LookupFailed, Lookups
from service.base.public_address import Reach, is_public
from service.base.receiver_url import read_receiver_url
from service.base.receivers import NotReachable, permitted
from service.base.redact import redacted
from service.base.settings import Settings
from service.base.webhook_signing import Keyring, fingerprint_of, signature
from service.store.deliveries import Due
from shardwise.client import verify_webhook
from shardwise.errors import BadInput
from worker.deliverer import chosen_of
from worker.sender_pace import MAX_TENANTS, SenderPace
from worker.webhook_post import MAX_STATUS_LINE, Outcome, Poster

LOOPBACK = Reach(allow=(ip_network("127.0.0.0/8"),))


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "127.255.0.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255",
        "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200", "168.63.129.16",
        "192.0.0.8", "192.88.99.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1",
        "255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "::ffff:7f00:1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
        "2002:7f00:1::", "2001::1", "2001:db8::1", "fe80::1", "fe80::1%eth0", "fc00::1",
        "fd00:ec2::254", "fec0::1", "ff02::1", "100::1", "3fff::1", "5f00::1",
    ],
)  # fmt: skip
def test_no_address_but_a_public_one_is_reached(text: str) -> None:
    assert not is_public(ip_address(text))
    assert not Reach().permits(text)


@pytest.mark.parametrize("text", ["9.9.9.9", "1.1.1.1", "2606:4700::1111", "64:ff9b::101:101"])
def test_public_addresses_are_reached(text: str) -> None:
    assert Reach().permits(text)
    assert not Reach(deny=(ip_network("0.0.0.0/0"), ip_network("::/0"))).permits(text)


def test_one_private_address_among_many_refuses_the_name() -> None:
    url = read_receiver_url("https://example.com/")
    assert permitted(url, ["1.1.1.1"], Reach()) == ["1.1.1.1"]
    with pytest.raises(NotReachable):
        permitted(url, ["1.1.1.1", "::ffff:10.0.0.1"], Reach())
    with pytest.raises(NotReachable):
        permitted(url, [], Reach())


def test_plain_http_is_for_networks_that_are_allowed() -> None:
    url = read_receiver_url("http://example.com/")
    with pytest.raises(NotReachable, match="https"):
        permitted(url, ["1.1.1.1"], LOOPBACK)
    assert permitted(url, ["127.0.0.1"], LOOPBACK) == ["127.0.0.1"]
    with pytest.raises(NotReachable):
        permitted(url, ["127.0.0.1"], Reach())


@pytest.mark.parametrize(
    "text",
    [
        "", "example.com", "//example.com", "ftp://example.com/", "file:///etc/passwd",
        "gopher://example.com/", "https://", "https:///x", "https://2130706433/",
        "https://0x7f000001/", "https://0x7f.1/", "https://0177.0.0.1/", "https://127.1/",
        "https://127.0.0.1.:443/", "https://1.2.3.4.5/", "https://user@example.com/",
        "https://user:password@example.com/", "https://example.com@127.0.0.1/",
        "https://example.com\\@127.0.0.1/", "https://exam\tple.com/",
        "https://example.com/\r\nX: y",
        "https://example.com/a b", "https://example.com/#part", "https://１２７.0.0.1/",
        "https://ⓔxample.com/", "https://%31%32%37.0.0.1/", "https://[::1%25lo]/", "https://[::g]/",
        "https://[1.2.3.4]/", "https://example.com:0/", "https://example.com:22/",
        "https://example.com:65536/", "https://example.com:443:80/", "https://-a.example/",
        "https://a..b/", "https://" + "a" * 64 + ".example/", "https://example.com/" + "a" * 2000,
        "https://example.com/\0", "https://example.com/ü", " https://example.com/",
        "https://example.com/\n",
    ],
)  # fmt: skip
def test_urls_that_are_refused(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_receiver_url(text)
    assert "password" not in str(refused.value).replace("user, password", "")


def test_urls_that_are_taken() -> None:
    url = read_receiver_url("HTTPS://Hooks.Example.com:8443?token=1")
    assert (url.host, url.port, url.target) == ("hooks.example.com", 8443, "/?token=1")
    assert url.authority == "hooks.example.com:8443"
    assert read_receiver_url("https://[2606:4700:0::1111]/a").authority == "[2606:4700::1111]"


def test_the_signature_is_standard_webhooks() -> None:
    """The example of the specification's own libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    signed = signature(
        base64.b64decode(secret.removeprefix("whsec_")), "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330, body,
    )  # fmt: skip
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert redacted(f"made {secret} now") == "made whsec_*** now"


def test_a_receiver_takes_only_what_was_signed_lately() -> None:
    key = bytes(range(32))
    secret = "whsec_" + base64.b64encode(key).decode()
    at = int(time())
    headers = {
        "Webhook-Id": "msg_1",
        "Webhook-Timestamp": str(at),
        "Webhook-Signature": f"v1a,x {signature(key, 'msg_1', at, b'{}')}",
    }
    assert verify_webhook(secret, headers, b"{}") == "msg_1"
    for body, now, changed in (
        (b"{ }", None, {}),
        (b"{}", at + 301, {}),
        (b"{}", at - 301, {}),
        (b"{}", None, {"Webhook-Id": "msg_2"}),
        (b"{}", None, {"Webhook-Timestamp": str(at + 1)}),
        (b"{}", None, {"Webhook-Timestamp": "now"}),
        (b"{}", None, {"Webhook-Signature": "v1,ü"}),
    ):
        with pytest.raises(BadInput):
            verify_webhook(secret, {**headers, **changed}, body, now=now)
    with pytest.raises(BadInput):
        verify_webhook(secret, {}, b"{}")


def test_secrets_differ_by_webhook_and_by_key() -> None:
    one, two = b"k" * 32, b"l" * 32
    keys = Keyring({fingerprint_of(one): one, fingerprint_of(two): two})
    assert keys.newest() == fingerprint_of(one)
    secrets = {keys.secret(f, salt) for f in keys.keys for salt in ("00" * 32, "01" * 32)}
    assert len(secrets) == 4


def due(number: int, tenant: str, host: str) -> Due:
    return Due(f"webhook_{number}", tenant, host, f"msg_{number}")


def paced(quick: Iterable[str] = (), slow: Iterable[str] = ()) -> SenderPace:
    pace = SenderPace(10.0)
    for tenants, seconds in ((quick, 0.1), (slow, 10.0)):
        for tenant in tenants:
            pace.note(tenant, seconds)
    return pace


def test_a_tenant_and_a_host_have_a_fourth_of_the_senders() -> None:
    crowd = [due(n, "many", f"{n}.example") for n in range(40)]
    host = [due(100 + n, f"t{n}", "slow.example") for n in range(40)]
    quiet = [due(200, "quiet", "q.example")]
    pace = paced(quick=("many", "quiet", *(f"t{n}" for n in range(40))))
    chosen = chosen_of([*crowd, *host, *quiet], [], 16, pace)
    assert Counter(one.tenant_id for one in chosen)["many"] == 4
    assert Counter(one.authority for one in chosen)["slow.example"] == 4
    assert quiet[0] in chosen
    assert chosen_of([*crowd, *quiet], chosen, 16, pace) == []  # its only webhook is under way
    assert chosen_of(quiet, [due(n, f"u{n}", f"u{n}") for n in range(16)], 16, pace) == []


def test_slow_tenants_have_one_sender_each_and_half_together() -> None:
    slow = [due(n, f"s{n % 20}", f"{n}.example") for n in range(100)]
    quick = [due(200 + n, "quick", f"q{n}.example") for n in range(9)]
    new = [due(300 + n, "new", f"n{n}.example") for n in range(9)]
    pace = paced(["quick"], [f"s{n}" for n in range(20)])
    chosen = chosen_of([*slow, *quick, *new], [], 16, pace)
    counts = Counter(one.tenant_id for one in chosen)
    assert (counts.pop("quick"), counts.pop("new")) == (4, 1)
    assert len(counts) == 8 and {*counts.values()} == {1}
    assert chosen_of(slow, chosen, 16, pace) == []
    assert [one.tenant_id for one in chosen_of([*slow, *quick], [], 2, pace)] == ["s0", "quick"]
    assert len(chosen_of(slow, [], 1, pace)) == 1  # a single sender serves all


def test_a_tenant_is_quick_once_it_was_and_slow_while_its_attempts_take_long() -> None:
    pace = SenderPace(10.0)
    assert not pace.is_quick("t") and not pace.is_slow("t")
    pace.note("t", 0.1)
    assert pace.is_quick("t")
    pace.note("t", 10.0)
    assert pace.is_slow("t") and not pace.is_quick("t")
    for _ in range(8):
        pace.note("t", 0.1)
    assert pace.is_quick("t") and not pace.is_slow("t")
    # One in ten that hangs is a receiver's trouble, not its tenant's.
    for number in range(100):
        pace.note("t", 10.0 if number % 10 == 0 else 0.1)
    assert pace.is_quick("t")
    for number in range(MAX_TENANTS):
        pace.note(f"other {number}", 0.1)
    assert not pace.is_quick("t"), "forgotten, so that it is as a new one"


@pytest.mark.parametrize(
    "values",
    [
        {"webhook_key": "short"},
        {"webhook_key": "k" * 32 + ",short"},
        {"webhook_allow_networks": "10.0.0.0/33"},
        {"webhook_deny_networks": "example.com"},
        {"webhook_retry_s": ""},
        {"webhook_retry_s": "1,,2"},
        {"webhook_retry_s": "nan"},
        {"webhook_retry_s": ",".join(["1"] * 21)},
    ],
)
def test_settings_that_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as refused:
        Settings(**values)
    assert next(iter(values)) in str(refused.value)
    assert "short" not in str(refused.value).replace("too short", "")


@contextmanager
def receiver(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that treats each connection so; what was connected is waited for."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                try:
                    serve(connection)
                except OSError:
                    continue

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)


def answering(text: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(text)

    return serve


def post(port: int, timeout_s: float = 20.0, host: str = "127.0.0.1") -> Outcome:
    poster = Poster(LOOPBACK, timeout_s)
    return poster.post(f"http://{host}:{port}/x", "w", {"webhook-id": "m"}, b"{}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", Outcome(204, "")),
        (b"HTTP/1.0 200\r\n\r\n" + b"x" * 10**6, Outcome(200, "")),
        (b"HTTP/1.1 503 Busy\r\n\r\n", Outcome(503, "answered 503")),
        (b"SSH-2.0-OpenSSH\r\n", Outcome(None, "its answer is not HTTP")),
        (b"HTTP/1.1 2000 x\r\n", Outcome(200, "")),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 204 x\r\n\r\n",
         Outcome(204, "")),
        (b"HTTP/1.1 100 x\r\n\r\n" * 10**4, Outcome(100, "answered 100")),
        (b"HTTP/1.1 +20\r\n", Outcome(None, "its answer is not HTTP")),
        (b"HTTP/1.1 " + b" " * MAX_STATUS_LINE + b"200\n", Outcome(None, "its answer is not HTTP")),
        (b"", Outcome(None, "its answer is not HTTP")),
    ],
)  # fmt: skip
def test_how_an_answer_is_judged(text: bytes, expected: Outcome) -> None:
    with receiver(answering(text)) as port:
        assert post(port) == expected


def test_a_redirect_is_not_followed() -> None:
    reached = threading.Event()
    with receiver(lambda _: reached.set()) as inner:
        location = f"HTTP/1.1 307 There\r\nLocation: http://127.0.0.1:{inner}/\r\n\r\n".encode()
        with receiver(answering(location)) as port:
            outcome = post(port)
    assert outcome.status == 307
    assert not outcome.taken
    assert not reached.is_set()


def test_a_receiver_that_drips_is_given_up_at_the_deadline() -> None:
    given_up = threading.Event()

    def drip(connection: socket.socket) -> None:
        while not given_up.wait(0.05):
            connection.sendall(b"H")

    with receiver(drip) as port:
        outcome = post(port, 0.5)
        given_up.set()
    assert outcome == Outcome(None, "no answer within 0.5 s")


def test_the_address_that_was_checked_is_the_one_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that is public when checked and private when connected to gains nothing."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: str, *arguments: Any, **keywords: Any) -> Any:
        asked.append(host)
        if host != "rebind.example":
            return real(host, *arguments, **keywords)
        address = "127.0.0.1" if asked.count(host) == 1 else "127.0.0.9"
        return real(address, *arguments, **keywords)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with receiver(answering(b"HTTP/1.1 200 OK\r\n\r\n")) as port:
        assert post(port, host="rebind.example").taken
    assert asked == ["rebind.example", "127.0.0.1"]


def test_what_is_private_is_not_connected_to() -> None:
    reached = threading.Event()
    with receiver(lambda _: reached.set()) as port:
        outcome = Poster(Reach(), 20.0).post(f"http://localhost:{port}/", "w", {}, b"{}")
    assert outcome == Outcome(None, "its name leads to an address that is not public")
    assert not reached.is_set()


def test_slow_names_are_looked_up_in_bounded_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slow(*_: Any, **__: Any) -> list[Any]:
        go_on.wait(60)
        return [(0, 0, 0, "", ("1.1.1.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    lookups = Lookups(most=3, most_each=2)
    started = [lookups.start("a.example", 443, "one") for _ in range(2)]
    with pytest.raises(LookupFailed):
        lookups.start("a.example", 443, "one")
    started.append(lookups.start("b.example", 443, "two"))
    with pytest.raises(LookupFailed):
        lookups.start("c.example", 443, "three")
    go_on.set()
    assert [one.result(60) for one in started] == [["1.1.1.1"]] * 3
    assert lookups.start("a.example", 443, "one").result(60) == ["1.1.1.1"]
