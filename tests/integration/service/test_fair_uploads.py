"""Uploads are read in processes of their own, with a share for each tenant."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.service.service_harness import (
    Service,
    alive,
    command_of,
    descendants,
    state_of,
    wait_until,
)
from harness.service.steps import HARDWARE, keys, mlp
from shardwise.graph import canonical_json, graph_id

MANY = 10
AT_ONCE = 4
NODES = 1500
MOST_BYTES = 600_000
ONNX = {"Content-Type": "application/onnx"}
Header = dict[str, str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uploads")


@pytest.fixture(scope="module")
def tenants(folder: Path) -> tuple[Header, Header]:
    """The headers of one tenant that uploads much, and of another."""
    lines = [
        json.loads(keys(folder, "create", "--json", "--tenant", name))["key"]
        for name in ("crowd", "other")
    ]
    return {"Authorization": f"Bearer {lines[0]}"}, {"Authorization": f"Bearer {lines[1]}"}


@pytest.fixture(scope="module")
def service(folder: Path, tenants: tuple[Header, Header]) -> Iterator[Service]:
    """One upload is read at a time."""
    started = Service(
        folder, ingest_slots="1", uploads_at_once=str(AT_ONCE), max_body_bytes=str(MOST_BYTES)
    )
    yield started
    started.stop()


def long_onnx(nodes: int, name: str = "x") -> bytes:
    """A model of many small nodes: little to send, long to read."""
    from onnx import TensorProto, helper

    chain = [
        helper.make_node("Relu" if i % 2 else "Sigmoid", [f"{name}.{i}"], [f"{name}.{i + 1}"])
        for i in range(nodes)
    ]
    ends = [
        helper.make_tensor_value_info(f"{name}.{i}", TensorProto.FLOAT, [8, 16]) for i in (0, nodes)
    ]
    graph = helper.make_graph(chain, name, ends[:1], ends[1:])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return bytes(model.SerializeToString())


def readers(service: Service) -> list[int]:
    """The processes that read uploads."""
    return [pid for pid in descendants(service.pid) if "ingest_child" in command_of(pid)]


def signal_readers(service: Service, number: signal.Signals) -> list[int]:
    """Signals the processes that read uploads; returns them."""
    pids = readers(service)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return pids


def are_held(service: Service) -> bool:
    """Stops the processes that read uploads: how long they take is then of no concern."""
    return any(state_of(pid) == "T" for pid in signal_readers(service, signal.SIGSTOP))


def test_one_tenants_uploads_delay_no_other_tenant(
    service: Service, tenants: tuple[Header, Header]
) -> None:
    crowd, other = tenants
    graph = service.client.post("/v1/graphs", content=canonical_json(mlp(16)), headers=other)
    curve = f"/v1/curves?graph={graph.json()['id']}&hardware={HARDWARE}&max_gpus=1"
    wait_until(lambda: service.client.get(curve, headers=other).status_code == 200, "its curve")
    bodies = [long_onnx(NODES, f"m{n}") for n in range(MANY)]
    start = threading.Barrier(MANY + 1)
    ended: list[httpx.Response] = []

    def upload(body: bytes) -> None:
        start.wait()
        ended.append(
            httpx.post(
                f"{service.url}/v1/graphs", content=body, headers={**crowd, **ONNX}, timeout=300
            )
        )

    with ThreadPoolExecutor(MANY) as pool:
        uploads = [pool.submit(upload, body) for body in bodies]
        start.wait()
        try:
            wait_until(lambda: are_held(service), "an upload is read")
            for path in ("/v1/graphs", "/readyz", curve):
                answer = service.client.get(path, headers=other)
                assert answer.status_code == 200, answer.text
            pending = [one for one in uploads if not one.done()]
            assert pending, "the others were answered while uploads waited"
            host = service.url.rpartition("/")[2]
            mine = http.client.HTTPConnection(host, timeout=60)
            mine.request("POST", "/v1/graphs", canonical_json(mlp(8)), other)
        finally:
            signal_readers(service, signal.SIGCONT)
        assert mine.getresponse().status == 201
        mine.close()
        assert sum(a.status_code == 201 for a in ended) < AT_ONCE, "it took its turn"
        for one in uploads:
            one.result()
    counts = Counter(answer.status_code for answer in ended)
    assert set(counts) == {201, 429}, counts
    assert counts[201] >= AT_ONCE
    assert all("Retry-After" in a.headers for a in ended if a.status_code == 429)


def start_upload(service: Service, header: Header, body: bytes) -> socket.socket:
    """A connection on which an upload was sent and that waits for its answer."""
    host, _, port = service.url.rpartition("/")[2].partition(":")
    client = socket.create_connection((host, int(port)), 30)
    client.sendall(
        b"POST /v1/graphs HTTP/1.1\r\nHost: " + f"{host}:{port}".encode() + b"\r\n"
        b"Authorization: " + header["Authorization"].encode() + b"\r\n"
        b"Content-Type: application/onnx\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    return client


def test_the_reader_ends_with_its_client(service: Service, tenants: tuple[Header, Header]) -> None:
    wait_until(lambda: not readers(service), "no upload is read")
    client = start_upload(service, tenants[0], long_onnx(4 * NODES))
    [reader] = wait_until(lambda: readers(service), "the upload is read")
    waiting = start_upload(service, tenants[0], long_onnx(4 * NODES, "y"))
    waiting.close()
    client.close()
    wait_until(lambda: not alive(reader), "it ended", 20)
    wait_until(lambda: not readers(service), "the one that waited was never read", 20)
    answer = service.client.post("/v1/graphs", content=long_onnx(3), headers={**tenants[0], **ONNX})
    assert answer.status_code == 201, answer.text


def padded(count: int) -> Any:
    return json.loads(canonical_json(mlp(16, "n" * count)))


def test_a_large_json_graph_is_the_same_graph(
    service: Service, tenants: tuple[Header, Header]
) -> None:
    graph = mlp(16, "n" * 300_000)
    answer = service.client.post("/v1/graphs", content=canonical_json(graph), headers=tenants[1])
    assert answer.status_code == 201, answer.text
    assert answer.json()["id"] == graph_id(graph)
    where = f"/v1/graphs/{graph_id(graph)}/document"
    assert service.client.get(where, headers=tenants[1]).content == canonical_json(graph)


@pytest.mark.parametrize(
    ("body", "slug", "field"),
    [
        (b'{"a": "' + b"x" * 300_000 + b'", "a": 1}', "invalid-json", None),
        (b"[" * 300_000, "invalid-json", None),
        (json.dumps({**padded(300_000), "operators": []}).encode(), "invalid", "operators"),
    ],
    ids=["a name twice", "deep", "no operators"],
)
def test_errors_in_large_uploads_are_reported_as_in_small_ones(
    service: Service, tenants: tuple[Header, Header], body: bytes, slug: str, field: str | None
) -> None:
    answer = service.client.post("/v1/graphs", content=body, headers=tenants[1])
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert problem["type"].endswith(f":{slug}")
    assert problem.get("field") == field


def test_what_a_reader_gives_is_bounded(service: Service, tenants: tuple[Header, Header]) -> None:
    body = long_onnx(3 * NODES)
    assert len(body) < MOST_BYTES
    answer = service.client.post("/v1/graphs", content=body, headers={**tenants[1], **ONNX})
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"].endswith(":too-complex")


def test_the_reader_ends_with_the_service(tmp_path: Any) -> None:
    service = Service(tmp_path)
    body = long_onnx(4 * NODES)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(httpx.post, f"{service.url}/v1/graphs", content=body, headers=ONNX, timeout=60)
        [reader] = wait_until(lambda: readers(service), "the upload is read")
        service.stop(signal.SIGKILL)
        wait_until(lambda: not alive(reader), "it ended", 20)
