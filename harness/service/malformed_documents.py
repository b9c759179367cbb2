"""Documents that are wrong: types, members, references, numbers, depth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.service.steps import HARDWARE, mlp
from shardwise.graph import canonical_json
from shardwise.hardware import hardware_document, load_hardware

GRAPHS, PROFILES = "/v1/graphs", "/v1/hardware"
GRAPH: dict[str, Any] = json.loads(canonical_json(mlp(32)))
TEXT = canonical_json(mlp(32))
PROFILE: dict[str, Any] = json.loads(json.dumps(hardware_document(load_hardware("l4"))))
ASK = {"graph": "shipped:vgg16", "hardware": HARDWARE, "gpus": 1}
WRONG: tuple[Any, ...] = (None, True, -1, 1.5, "x", {})


@dataclass(frozen=True)
class Upload:
    """One wrong request."""

    name: str
    body: bytes
    path: str = GRAPHS
    headers: dict[str, Any] = field(default_factory=dict)


def changed(document: Any, path: tuple[str | int, ...], value: Any) -> bytes:
    """The document as JSON with another value at a path."""
    copy = json.loads(json.dumps(document))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return json.dumps(copy).encode()


def _right(path: tuple[str | int, ...], value: Any) -> bool:
    """Values that a field may have after all."""
    if path[-1] in ("name", "scope", "kind"):
        return bool(isinstance(value, str))
    return (path, value) in (
        (("tensors", 0, "batch_dim"), None),
        (("operators", 0, "inputs", 0), "x"),
        (("devices", 0, "memory_bytes"), 1.5),
        (("sources",), {}),
        (("nodes",), None),
    )


GRAPH_FIELDS: tuple[tuple[str | int, ...], ...] = (
    ("schema",),
    ("name",),
    ("tensors",),
    ("operators",),
    ("tensors", 0),
    ("tensors", 0, "name"),
    ("tensors", 0, "shape"),
    ("tensors", 0, "shape", 0),
    ("tensors", 0, "dtype"),
    ("tensors", 0, "role"),
    ("tensors", 0, "batch_dim"),
    ("operators", 0),
    ("operators", 0, "name"),
    ("operators", 0, "kind"),
    ("operators", 0, "inputs"),
    ("operators", 0, "inputs", 0),
    ("operators", 0, "outputs"),
    ("operators", 0, "scope"),
)
PROFILE_FIELDS: tuple[tuple[str | int, ...], ...] = (
    ("schema",),
    ("devices",),
    ("levels",),
    ("devices", 0),
    ("devices", 0, "count"),
    ("devices", 0, "memory_bytes"),
    ("levels", 0, "size"),
    ("sources",),
    ("nodes",),
)


def wrong_types() -> Iterator[Upload]:
    for document, fields, where in (
        (GRAPH, GRAPH_FIELDS, GRAPHS),
        (PROFILE, PROFILE_FIELDS, PROFILES),
    ):
        for path in fields:
            for value in WRONG:
                if not _right(path, value):
                    name = f"{where} {'.'.join(map(str, path))} = {json.dumps(value)}"
                    yield Upload(name, changed(document, path, value), where)


def missing_fields() -> Iterator[Upload]:
    for path in (("schema",), ("name",), ("tensors",), ("operators",)):
        document = {name: value for name, value in GRAPH.items() if name not in path}
        yield Upload(f"no {path[0]}", json.dumps(document).encode())
    for collection in ("tensors", "operators"):
        for name in GRAPH[collection][0]:
            if name not in ("batch_dim", "attributes", "scope"):
                rest = {k: v for k, v in GRAPH[collection][0].items() if k != name}
                body = changed(GRAPH, (collection, 0), rest)
                yield Upload(f"no {collection}[0].{name}", body)
    for name in ("schema", "name", "provenance", "devices", "levels"):
        document = {k: v for k, v in PROFILE.items() if k != name}
        yield Upload(f"profile without {name}", json.dumps(document).encode(), PROFILES)


def wrong_graphs() -> Iterator[Upload]:
    tensor, operator = GRAPH["tensors"][0], GRAPH["operators"][0]
    for name, path, value in (
        ("tensor twice", ("tensors",), [*GRAPH["tensors"], tensor]),
        ("operator twice", ("operators",), [*GRAPH["operators"], operator]),
        ("unknown input", ("operators", 0, "inputs", 0), "nowhere"),
        ("unknown output", ("operators", 0, "outputs", 0), "nowhere"),
        ("made twice", ("operators", 1, "outputs", 0), "h"),
        ("a loop", ("operators", 0, "inputs", 0), "y"),
        ("unknown dtype", ("tensors", 0, "dtype"), "float33"),
        ("unknown role", ("tensors", 0, "role"), "weight"),
        ("shape does not fit", ("tensors", 1, "shape"), [5, 7]),
        ("shape of 0", ("tensors", 0, "shape"), [0, 32]),
        ("shape below 0", ("tensors", 0, "shape"), [-8, 32]),
        ("shape of a float", ("tensors", 0, "shape"), [8.5, 32]),
        ("shape beyond 64 bits", ("tensors", 0, "shape"), [2**64, 32]),
        ("batch beyond the shape", ("tensors", 0, "batch_dim"), 2),
        ("batch below 0", ("tensors", 0, "batch_dim"), -1),
        ("another schema", ("schema",), "shardwise.plan/1"),
        ("another version", ("schema",), "shardwise.graph/3"),
        ("an empty name", ("tensors", 0, "name"), ""),
        ("a long name", ("tensors", 0, "name"), "x" * 100_000),
    ):
        yield Upload(name, changed(GRAPH, path, value))


def huge_numbers() -> Iterator[Upload]:
    for text in ("1e400", "-1e400", "9" * 5000, "9" * 400, "1" + "0" * 39, "-" + "9" * 5000):
        for where in ('"shape": [8', '"batch_dim": 0'):
            body = json.dumps(GRAPH).replace(
                where,
                where.rpartition(" ")[0] + " " + text if "dim" in where else f'"shape": [{text}',
                1,
            )
            yield Upload(f"{text[:8]}… of {len(text)} in {where}", body.encode())
    for text in (
        "NaN",
        "Infinity",
        "-Infinity",
        "nan",
        "inf",
        "0x10",
        "01",
        "+1",
        "1.",
        ".5",
        "1e",
    ):
        yield Upload(f"number {text}", json.dumps(GRAPH).replace("[8", f"[{text}", 1).encode())
        body = json.dumps({**ASK, "options": {"epsilon": "@"}}).replace('"@"', text)
        yield Upload(f"epsilon {text}", body.encode(), "/v1/frontiers")


def deep() -> Iterator[Upload]:
    for depth in (65, 100, 1000, 5000, 100_000, 1_000_000):
        yield Upload(f"arrays, {depth} deep", b"[" * depth + b"]" * depth)
        yield Upload(f"arrays left open, {depth} deep", b"[" * depth)
        yield Upload(f"objects, {depth} deep", b'{"a":' * depth + b"1" + b"}" * depth)
        inner = b"[" * depth + b"]" * depth
        body = (
            json.dumps(GRAPH)
            .encode()
            .replace(b'"attributes": {', b'"attributes": {"a": ' + inner + b", ", 1)
        )
        yield Upload(f"attributes, {depth} deep", body)
    yield Upload(
        "options, 100 deep",
        changed({**ASK, "options": {}}, ("options", "x"), 0).replace(
            b'"x": 0', b'"x": ' + b"[" * 100 + b"]" * 100
        ),
        "/v1/frontiers",
    )
