"""What is refused, as problem documents: too large, too deep, malformed, unknown, from afar."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from harness.graph_builder import layers
from harness.service.service_harness import Service
from harness.service.steps import HARDWARE, check, mlp
from shardwise.graph import canonical_json
from shardwise.graph.document import folded_json

GRAPH = json.loads(canonical_json(mlp(32)))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = Service(
        tmp_path_factory.mktemp("limits"), max_body_bytes="100000", max_operators="50"
    )
    yield started
    started.stop()


def with_change(**changes: Any) -> bytes:
    return json.dumps({**GRAPH, **changes}).encode()


BOMB = gzip.compress(b"[" * 20_000_000, 9)
MANY = [{**GRAPH["operators"][0], "name": f"op{i}"} for i in range(51)]
ROW = {"name": "x{0+1k}", "shape": [2], "dtype": "float32", "role": "input"}
LONG = {"schema": "shardwise.graph/2", "tensors": [{"repeat": 10**9, "rows": [ROW]}]}
DEEP = {
    "schema": "shardwise.graph/2",
    "operators": [{"repeat": 51, "rows": [GRAPH["operators"][0]]}],
}
BODIES: list[tuple[str, bytes, dict[str, str], int, str]] = [
    ("empty", b"", {}, 422, "invalid"),
    ("no JSON", b"{", {}, 422, "invalid-json"),
    ("an array", b"[]", {}, 422, "invalid"),
    ("no UTF-8", b'{"a": "\xff"}', {}, 422, "invalid-json"),
    ("NaN", b'{"schema": NaN}', {}, 422, "invalid-json"),
    ("infinite", b'{"schema": 1e999}', {}, 422, "invalid-json"),
    ("long number", b'{"schema": ' + b"9" * 5000 + b"}", {}, 422, "invalid-json"),
    ("twice", b'{"schema": 1, "schema": 2}', {}, 422, "invalid-json"),
    ("half a character", b'{"schema": "\\ud800"}', {}, 422, "invalid-json"),
    ("character 0", b'{"schema": "\\u0000"}', {}, 422, "invalid-json"),
    ("deep", b"[" * 90_000, {}, 422, "invalid-json"),
    ("deep and closed", b"[" * 65 + b"]" * 65, {}, 422, "invalid-json"),
    ("other schema", with_change(schema="shardwise.graph/3"), {}, 422, "invalid"),
    ("no operators", with_change(operators=[]), {}, 422, "invalid"),
    ("wrong type", with_change(tensors={}), {}, 422, "invalid"),
    ("many operators", with_change(operators=MANY), {}, 422, "invalid"),
    ("many tensors, folded", with_change(**LONG), {}, 422, "invalid"),
    ("many operators, folded", with_change(**DEEP), {}, 422, "invalid"),
    ("large", b" " * 100_001, {}, 413, "too-large"),
    ("bomb", BOMB, {"Content-Encoding": "gzip"}, 413, "too-large"),
    ("bomb unannounced", BOMB, {}, 413, "too-large"),
    (
        "half a gzip",
        gzip.compress(b" " * 999)[:-9],
        {"Content-Encoding": "gzip"},
        400,
        "bad-encoding",
    ),
    ("no gzip", b"{}", {"Content-Encoding": "gzip"}, 400, "bad-encoding"),
    ("zlib", zlib.compress(b"{}"), {"Content-Encoding": "deflate"}, 415, "unsupported-media-type"),
    ("an image", b"{}", {"Content-Type": "image/png"}, 415, "unsupported-media-type"),
    ("no ONNX", b"\x08\x07junk", {"Content-Type": "application/onnx"}, 422, "invalid"),
]


@pytest.mark.parametrize(
    ("body", "headers", "status", "slug"), [b[1:] for b in BODIES], ids=[b[0] for b in BODIES]
)
def test_uploads(
    service: Service, body: bytes, headers: dict[str, str], status: int, slug: str
) -> None:
    check(service.client.post("/v1/graphs", content=body, headers=headers), status, slug)


def test_a_folded_graph_is_the_same_graph(service: Service) -> None:
    folded, whole = (
        service.client.post("/v1/graphs", content=write(layers(12, 4, 8))).json()["id"]
        for write in (folded_json, canonical_json)
    )
    assert folded == whole
    stored = service.client.get(f"/v1/graphs/{folded}/document")
    assert stored.content == canonical_json(layers(12, 4, 8))


ASK = {"graph": "shipped:vgg16", "hardware": HARDWARE, "gpus": 1}
QUESTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/frontiers", {**ASK, "gpus": 0}, "gpus"),
    ("/v1/frontiers", {**ASK, "gpus": 5000}, "gpus"),
    ("/v1/frontiers", {**ASK, "gpus": 1.5}, "gpus"),
    ("/v1/frontiers", {**ASK, "gpus": "1"}, "gpus"),
    ("/v1/frontiers", {**ASK, "hardware": "/etc/passwd.json"}, "hardware"),
    ("/v1/frontiers", {**ASK, "hardware": "l4*x"}, "hardware"),
    ("/v1/frontiers", {**ASK, "graph": "shipped:../x"}, "graph"),
    ("/v1/frontiers", {**ASK, "extra": 1}, "extra"),
    ("/v1/frontiers", {"graph": "shipped:vgg16", "gpus": 1}, "hardware"),
    ("/v1/frontiers", {**ASK, "options": {"epsilon": -1}}, "options.epsilon"),
    ("/v1/frontiers", {**ASK, "options": {"epsilon": "x"}}, "options.epsilon"),
    ("/v1/frontiers", {**ASK, "options": {"unknown": 1}}, "options.unknown"),
    ("/v1/frontiers", {**ASK, "options": {"threads": 1}}, "options.threads"),
    ("/v1/frontiers", {**ASK, "options": {"time_limit_s": 0}}, "options.time_limit_s"),
    ("/v1/frontiers", {**ASK, "options": {"memory_limit_bytes": -1}},
     "options.memory_limit_bytes"),
    ("/v1/plans", {**ASK, "objective": "best"}, "objective"),
    ("/v1/quotes", {"graph": "shipped:vgg16", "deadline_s": 5.0}, "steps"),
    ("/v1/quotes", {"graph": "shipped:vgg16", "offers_csv": "a,b\n1,2\n"}, "offers_csv"),
    ("/v1/quotes", {"graph": "shipped:vgg16", "max_instances": 4000}, "max_instances"),
    ("/v1/allocations", {"gpus": 2, "jobs": []}, "jobs"),
    ("/v1/allocations", {"gpus": 2, "jobs": [{}]}, "jobs[0]"),
    ("/v1/allocations", {"gpus": 2, "objective": "x",
                         "jobs": [{"curve": {"points": []}}]}, "objective"),
    ("/v1/allocations", {"gpus": 2, "jobs": [{"graph": "shipped:vgg16", "hardware": "?"}]},
     "jobs[0].hardware"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "field"), QUESTIONS)
def test_questions(service: Service, path: str, body: dict[str, Any], field: str) -> None:
    problem = check(service.client.post(path, json=body), 422, "invalid")
    assert problem["field"].startswith(field), problem


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "graph"),
        ("graph=shipped:vgg16&hardware=l4", "max_gpus"),
        ("graph=shipped:vgg16&hardware=l4&max_gpus=x", "max_gpus"),
        ("graph=shipped:vgg16&hardware=l4&max_gpus=2000", "max_gpus"),
        ("graph=shipped:vgg16&hardware=l4&max_gpus=2&epsilon=x", "options.epsilon"),
        ("graph=shipped:vgg16&hardware=l4&max_gpus=2&color=red", "color"),
    ],
)
def test_curve_queries(service: Service, query: str, field: str) -> None:
    problem = check(service.client.get(f"/v1/curves?{query}"), 422, "invalid")
    assert problem["field"] == field


def test_lists_and_paths(service: Service) -> None:
    check(service.client.get("/v1/graphs?limit=0"), 422, "invalid")
    check(service.client.get("/v1/graphs?limit=201"), 422, "invalid")
    check(service.client.get("/v1/graphs?cursor=abc"), 422, "invalid")
    check(service.client.get("/v1/jobs?state=lost"), 422, "invalid")
    check(service.client.get("/v1/nothing"), 404, "not-found")
    check(service.client.get("/v1/graphs/sha256:0"), 404, "not-found")
    check(service.client.get("/v1/graphs/a%00b"), 404, "not-found")
    check(service.client.get("/v1/jobs/a%00b/events"), 404, "not-found")
    check(service.client.get("/v1/jobs?graph=%00"), 422, "invalid")
    answer = service.client.put("/v1/graphs")
    check(answer, 405, "method-not-allowed")
    assert answer.headers["Allow"] == "GET, POST"


def test_an_open_service_is_this_hosts_own(service: Service) -> None:
    """DNS rebinding and cross-site requests reach a service on loopback through a browser."""
    get = service.client.get
    check(get("/v1/graphs", headers={"Host": "evil.example"}), 403, "foreign-origin")
    assert get("/v1/graphs", headers={"Host": "localhost:1"}).status_code == 200
    origin = {"Origin": "https://evil.example"}
    check(service.client.post("/v1/frontiers", json=ASK, headers=origin), 403, "foreign-origin")
    own = {"Origin": service.url}
    assert service.client.delete("/v1/graphs/sha256:0", headers=own).status_code == 404


def test_a_request_id_that_is_unreadable_is_not_taken(service: Service) -> None:
    answer = service.client.get("/healthz", headers={"X-Request-Id": "a b\tc"})
    assert answer.headers["X-Request-Id"] != "a b\tc"
