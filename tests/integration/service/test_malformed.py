"""Malformed uploads: each is refused with its reason; the service lives, within its memory."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.service.malformed import COUNT, corpus
from harness.service.malformed_documents import TEXT
from harness.service.service_harness import Service

MAY_GROW_BYTES = 512 * 2**20
"""What the largest text that is read at all (a few million values) takes while it is read."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = Service(tmp_path_factory.mktemp("malformed"))
    yield started
    started.stop()


def peak_bytes(pid: int) -> int:
    """The most memory that the process has held (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024


def test_five_hundred_malformed_uploads(service: Service) -> None:
    before = peak_bytes(service.pid)
    wrong = []
    counted = 0
    for upload in corpus():
        answer = service.client.post(upload.path, content=upload.body, headers={**upload.headers})
        counted += 1
        problem = answer.json() if answer.headers["content-type"].endswith("+json") else {}
        good = (
            400 <= answer.status_code < 500
            and answer.status_code != 429
            and answer.headers["content-type"] == "application/problem+json"
            and problem["status"] == answer.status_code
            and problem["type"].startswith("urn:shardwise:problem:")
            and len(problem["detail"]) > 5
            and "Traceback" not in problem["detail"]
            and len(answer.content) < 4096
        )
        if not good:
            wrong.append((upload.name, answer.status_code, answer.text[:300]))
    assert not wrong, "\n".join(map(str, wrong))
    assert counted == COUNT
    grown = peak_bytes(service.pid) - before
    print(f"{counted} refused; the service's peak memory grew by {grown / 2**20:.0f} MiB")
    assert grown < MAY_GROW_BYTES
    assert service.client.post("/v1/graphs", content=TEXT).status_code == 201
    assert [item["name"] for item in service.client.get("/v1/graphs").json()["items"]] == ["mlp"]
    assert service.client.get("/v1/jobs").json()["items"] == []


HEAD = "POST /v1/graphs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
LIES = {
    "longer than it is": f"{HEAD}Content-Length: 5000\r\n\r\n{{}}",
    "shorter than it is": f"{HEAD}Content-Length: 1\r\n\r\n{{}}",
    "below 0": f"{HEAD}Content-Length: -1\r\n\r\n{{}}",
    "a word": f"{HEAD}Content-Length: many\r\n\r\n{{}}",
    "beyond 64 bits": f"{HEAD}Content-Length: {2**70}\r\n\r\n{{}}",
    "beyond the limit": f"{HEAD}Content-Length: {2**40}\r\n\r\n{{}}",
    "two of them": f"{HEAD}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}",
    "with chunks": f"{HEAD}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{{}}",
    "chunks of no size": f"{HEAD}Transfer-Encoding: chunked\r\n\r\nzz\r\n{{}}\r\n0\r\n\r\n",
    "chunks without end": f"{HEAD}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n",
    "an endless head": HEAD + "X: " + "x" * 200_000 + "\r\n\r\n",
    "no HTTP": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("name", LIES)
def test_a_lying_length_is_refused_or_cut_off(service: Service, name: str) -> None:
    host, _, port = service.url.removeprefix("http://").rpartition(":")
    said = b""
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        try:
            connection.sendall(LIES[name].encode("latin-1"))
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                said += piece
        except ConnectionError:
            pass  # closed in our face, which is an answer too
    assert not said or re.match(rb"HTTP/1.1 4\d\d ", said), said[:300]
    assert service.client.get("/healthz").status_code == 200
