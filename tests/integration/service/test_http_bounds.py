"""Attacks on the server before any key is looked at: every one of them is bounded."""

from __future__ import annotations

import gzip
import json
import re
import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.service.fake_agent import inventory, new_token
from harness.service.service_harness import PATIENCE_S, Service, wait_until
from harness.service.steps import check
from service.host.http_protocol import ONCE

HEAD_BYTES = 16 * 2**10
MOST_SENT = 32 * 2**20
"""More than is ever taken from one who is not known: 4 MiB, and what the sockets' buffers hold."""

HERE, THERE = "127.0.0.1", "127.0.0.2"
MEMBERS = gzip.compress(b"") * 52_000
GZIP = {"Content-Encoding": "gzip"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = Service(
        tmp_path_factory.mktemp("bounds"),
        max_head_bytes=str(HEAD_BYTES),
        head_s="2",
        body_silence_s="1",
        max_connections="60",
        max_connections_per_address="30",
        enrol_rate_per_s="0",
    )
    yield started
    assert started.client.get("/healthz").status_code == 200
    assert not started.logged("Fatal error"), "no protocol broke"
    started.stop()


@contextmanager
def connection(service: Service, address: str = HERE) -> Iterator[socket.socket]:
    """A socket from an address of this host."""
    with socket.create_connection(
        ("127.0.0.1", httpx.URL(service.url).port or 0), PATIENCE_S, (address, 0)
    ) as opened:
        yield opened


def head(method: str, path: str, **headers: Any) -> bytes:
    fields = {"Host": "localhost", **{k.replace("_", "-"): v for k, v in headers.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()


def received(client: socket.socket) -> bytes:
    """All that comes until the server ends the connection; the test fails when it does not."""
    data = b""
    with suppress(ConnectionError):
        while part := client.recv(2**16):
            data += part
    return data


def whole_answer(client: socket.socket) -> bytes:
    """One answer to its end, on a connection that stays open."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        part = client.recv(2**16)
        assert part, answer
        answer += part
    start, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?im)^content-length: (\d+)", start)
    assert length, start
    while len(body) < int(length[1]):
        part = client.recv(2**16)
        assert part, answer
        body += part
    return start + b"\r\n\r\n" + body


def flood(client: socket.socket, piece: bytes, most: int = MOST_SENT) -> int:
    """Sends a piece again and again until the server takes no more: how many bytes it took."""
    sent = 0
    with suppress(ConnectionError):
        while sent < most:
            client.sendall(piece)
            sent += len(piece)
    return sent


def problem_in(answer: bytes) -> dict[str, Any]:
    """The problem document of an answer that ends its connection."""
    top, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in top.lower(), answer[:500]
    assert b"connection: close" in top.lower()
    problem: dict[str, Any] = json.loads(body)
    assert top.startswith(b"HTTP/1.1 %d " % problem["status"])
    assert problem["request_id"].encode() in top
    return problem


def refusal(service: Service, sent: bytes) -> tuple[int, str]:
    with connection(service) as client:
        client.sendall(sent)
        problem = problem_in(received(client))
    return problem["status"], problem["type"].rpartition(":")[2]


def refused(service: Service, reason: str) -> float:
    text = service.client.get("/metrics").text
    name = f'shardwise_connections_refused_total{{reason="{reason}"}} '
    return float(next(line for line in text.splitlines() if line.startswith(name)).split()[-1])


def test_heads_that_are_too_long(service: Service) -> None:
    long = "x" * (HEAD_BYTES + 1)
    assert refusal(service, head("GET", f"/{long}")) == (414, "uri-too-long")
    assert refusal(service, head("GET", "/healthz", X=long)) == (431, "headers-too-large")
    many = {f"X-{number}": "1" for number in range(300)}
    assert refusal(service, head("GET", "/healthz", **many)) == (431, "headers-too-large")
    assert refusal(service, b"\x16\x03\x01 hello\r\n\r\n") == (400, "bad-request")
    assert refused(service, "head") >= 3 and refused(service, "malformed") >= 1
    fits = {"X-Long": "x" * (HEAD_BYTES - 500)}
    assert service.client.get("/healthz", headers=fits).status_code == 200


def test_a_request_has_one_host(service: Service) -> None:
    for count, lines in enumerate(("", "Host: localhost\r\n", "Host: a\r\nHost: b\r\n")):
        with connection(service) as client:
            client.sendall(f"GET /healthz HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode())
            answer = whole_answer(client)
        if count == 1:
            assert answer.startswith(b"HTTP/1.1 200 ")
        else:
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert f"this one has {count}" in problem_in(answer)["detail"]
    with connection(service) as client:
        client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert b" 200 " in whole_answer(client).split(b"\r\n")[0]


@pytest.mark.parametrize("name", sorted({*ONCE.values(), "Content-Encoding", "Shardwise-Confirm"}))
def test_a_request_has_no_header_twice_of_which_the_first_would_count(
    service: Service, name: str
) -> None:
    """`Shardwise-Tenant` of one tenant and then of another was read as the first."""
    lines = "Host: localhost\r\n" if name != "Host" else ""
    lines += f"{name}: local\r\n{name.upper()}: other\r\n"
    with connection(service) as client:
        client.sendall(f"GET /v1/me HTTP/1.1\r\n{lines}\r\n".encode())
        answer = whole_answer(client)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert problem_in(answer)["detail"] == f"a request has one {name} header, this one has 2"


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /", b"x" * 2**16),
        (b"GET /healthz HTTP/1.1\r\nX: ", b"x" * 2**16),
        (b"GET /healthz HTTP/1.1\r\n", b"X: y\r\n" * 10_000),
        (head("POST", "/v1/graphs", Transfer_Encoding="chunked") + b"1", b";x=y" * 16_000),
    ],
    ids=["url", "one header", "headers", "chunk extensions"],
)
def test_an_endless_head_is_cut_off(service: Service, begin: bytes, piece: bytes) -> None:
    with connection(service) as client:
        client.sendall(begin)
        assert flood(client, piece) < MOST_SENT


def test_many_endless_heads_take_no_memory(service: Service) -> None:
    before = resident(service.pid)

    def attack(number: int) -> int:
        with connection(service) as client:
            client.sendall(b"GET / HTTP/1.1\r\nX: ")
            return flood(client, b"x" * 2**16)

    with ThreadPoolExecutor(4) as pool:
        sent = list(pool.map(attack, range(16)))
    assert max(sent) < MOST_SENT
    assert resident(service.pid) - before < 64 * 2**20


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def test_who_begins_no_request_is_sent_away(service: Service) -> None:
    begun = 8 * [b"", b"GET /heal", head("GET", "/")[:-2]]
    with ExitStack() as stack:
        clients = [stack.enter_context(connection(service)) for _ in begun]
        for client, begin in zip(clients, begun, strict=True):
            client.sendall(begin)
        for client, begin in zip(clients, begun, strict=True):
            answer = received(client)
            assert not begin or problem_in(answer)["status"] == 408, begin


def test_a_head_that_drips_is_late_all_the_same(service: Service) -> None:
    with connection(service) as client:
        client.settimeout(0.2)
        answer = b""

        def dripped() -> bool:
            nonlocal answer
            with suppress(TimeoutError, ConnectionError):
                client.sendall(b"G" if not answer else b"")
                answer += client.recv(2**16)
            return b"}" in answer

        wait_until(dripped, "the server gives up")
        assert problem_in(answer)["status"] in (400, 408)


def test_idle_connections_give_way_within_their_address(service: Service) -> None:
    assert service.client.get("/healthz").status_code == 200
    before = refused(service, "evicted")
    with ExitStack() as stack:
        idle = [stack.enter_context(connection(service, THERE)) for _ in range(50)]
        idle[-1].sendall(head("GET", "/healthz"))
        assert idle[-1].recv(2**16).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: refused(service, "evicted") >= before + 20, "the oldest went")
        assert has_ended(idle[0])
        assert open_connections(service) <= 40, "30 of that address, and this one's"


def has_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def open_connections(service: Service) -> float:
    text = service.client.get("/metrics").text
    line = next(line for line in text.splitlines() if line.startswith("shardwise_connections "))
    return float(line.split()[-1])


def test_a_connection_beyond_the_bound_is_answered_503(service: Service) -> None:
    """Thirty requests that wait for bodies are work: none of them gives way."""
    token = new_token(service.client)
    began = head("POST", "/v1/agents", Authorization=f"Bearer {token}", Content_Length=1000)

    def turned_away() -> bool:
        # Thirty others each time: their bodies may be silent for a second only.
        before = refused(service, "connections")
        with ExitStack() as stack:
            for _ in range(30):
                opened = stack.enter_context(connection(service, THERE))
                with suppress(ConnectionError):
                    opened.sendall(began)
            for _ in range(10):
                with connection(service, THERE) as client:
                    with suppress(ConnectionError):
                        client.sendall(began)
                    if refused(service, "connections") > before:
                        health = service.client.get("/healthz").status_code
                        assert health == 200, "another address has places"
                        return b" 503 " in received(client)
        return False

    wait_until(turned_away, "503 beyond the bound")


def test_pipelined_requests_are_answered_in_turn(service: Service) -> None:
    with connection(service) as client, ThreadPoolExecutor(1) as pool:
        asked = head("GET", "/healthz") * 999 + head("GET", "/healthz", Connection="close")
        sending = pool.submit(client.sendall, asked)
        assert received(client).count(b"HTTP/1.1 200 ") == 1000
        sending.result()


def test_pipelined_bodies_are_bounded(service: Service) -> None:
    one = head("POST", "/v1/graphs", Content_Length=2) + b"{}"
    with connection(service) as client:
        client.sendall(one * 200)
        answers = received(client).count(b"HTTP/1.1 422 ")
    assert 1 <= answers < 200


def test_a_body_that_falls_silent_is_ended(service: Service) -> None:
    began = head("POST", "/v1/graphs", Content_Length=1000) + b'{"schema'
    assert refusal(service, began) == (408, "timeout")
    token = new_token(service.client)
    enrolment = head("POST", "/v1/agents", Authorization=f"Bearer {token}", Content_Length=1000)
    assert refusal(service, enrolment + b"{") == (408, "timeout")


def test_credentials_come_before_any_byte_of_a_body(service: Service) -> None:
    """The body never comes: only a service that has not asked for it can answer."""
    wrong = "Bearer swe_" + "a" * 43
    key = "Bearer sw_abc_" + "a" * 43
    for path, shown in [
        ("/v1/agents", wrong),
        ("/v1/graphs", key),
        ("/v1/frontiers", key),
        ("/v1/hardware", key),
        ("/v1/launches", key),
        ("/v1/agents/tokens", key),
        ("/v1/agents/agt_1/reports", key),
        ("/v1/agents/agt_1/heartbeat", key),
        ("/v1/skypilot/policy", key),
    ]:
        with connection(service) as client:
            client.sendall(head("POST", path, Authorization=shown, Content_Length=1_000_000))
            assert client.recv(2**16).startswith(b"HTTP/1.1 401 "), path


def test_an_answered_request_is_not_read_to_its_end(service: Service) -> None:
    wrong = head("POST", "/v1/graphs", Authorization="Bearer x", Content_Length=2**40)
    with connection(service) as client:
        client.sendall(wrong)
        assert client.recv(2**16).startswith(b"HTTP/1.1 401 ")
        assert flood(client, b"x" * 2**16) < MOST_SENT


def test_a_short_rest_of_an_answered_request_keeps_the_connection(service: Service) -> None:
    with connection(service) as client:
        client.sendall(head("POST", "/v1/graphs", Authorization="Bearer x", Content_Length=9))
        assert whole_answer(client).startswith(b"HTTP/1.1 401 ")
        client.sendall(b"x" * 9 + head("GET", "/healthz"))
        assert whole_answer(client).startswith(b"HTTP/1.1 200 ")


def test_too_many_gzip_members_are_refused(service: Service) -> None:
    post = service.client.post
    check(post("/v1/agents", content=MEMBERS, headers=GZIP), 415, "unsupported-media-type")
    check(post("/v1/agents", content=b" " * 70_000), 413, "too-large")
    known = {"Authorization": f"Bearer {new_token(service.client)}", **GZIP}
    check(post("/v1/agents", content=MEMBERS, headers=known), 400, "bad-encoding")
    check(post("/v1/graphs", content=MEMBERS * 15, headers=GZIP), 400, "bad-encoding")


def test_a_token_in_the_header_enrols_and_repeats(service: Service) -> None:
    token = new_token(service.client)
    body = gzip.compress(json.dumps({"token": token, "inventory": inventory()}).encode())
    shown = {"Authorization": f"Bearer {token}", **GZIP}
    once = {**shown, "Idempotency-Key": str(uuid.uuid4())}
    first = service.client.post("/v1/agents", content=body, headers=once)
    again = service.client.post("/v1/agents", content=body, headers=once)
    assert (first.status_code, again.status_code) == (201, 201), again.text
    assert first.json()["id"] == again.json()["id"]
    check(service.client.post("/v1/agents", content=body, headers=shown), 401, "enrolment-refused")
    # A token that is used up is refused on its head alone.
    with connection(service) as client:
        client.sendall(head("POST", "/v1/agents", **shown, Content_Length=1_000_000))
        assert client.recv(2**16).startswith(b"HTTP/1.1 401 ")


def test_the_log_has_records_alone(service: Service) -> None:
    """Neither the broker nor the worker that it starts writes between them."""
    wait_until(lambda: service.logged("ready"), "the worker runs")
    lines = service.log.read_text().splitlines()
    assert [line for line in lines if not line.startswith("{")] == []
