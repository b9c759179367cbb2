"""Five hundred uploads that are wrong, each in its own way; the same ones every time."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterator
from functools import cache

from harness.service.malformed_documents import (
    ASK,
    GRAPHS,
    PROFILES,
    TEXT,
    Upload,
    deep,
    huge_numbers,
    missing_fields,
    wrong_graphs,
    wrong_types,
)

COUNT = 500


def corpus() -> list[Upload]:
    """Returns all uploads; truncated texts fill up to the count."""
    uploads = [upload for kind in KINDS for upload in kind()]
    names = {upload.name for upload in uploads}
    assert len(names) == len(uploads), "two have one name"
    cuts = random.Random(6).sample(range(1, len(TEXT)), COUNT - len(uploads))
    return uploads + [Upload(f"cut at {at}", TEXT[:at]) for at in sorted(cuts)]


def broken_text() -> Iterator[Upload]:
    text = TEXT.decode()
    for name, bad in (
        ("overlong", b"\xc0\xaf"),
        ("surrogate", b"\xed\xa0\x80"),
        ("beyond Unicode", b"\xf5\x80\x80\x80"),
        ("alone", b"\x80"),
        ("cut", b"\xe2\x82"),
        ("Latin-1", b"\xe9"),
        ("FF", b"\xff"),
    ):
        for where in (b'"name":"', b'"kind":"', b'"scope":"'):
            yield Upload(f"{name} bytes in {where!r}", TEXT.replace(where, where + bad, 1))
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "utf-7"):
        body = text.encode(encoding)
        yield Upload(encoding, body if encoding != "utf-7" else b"+AHs-" + body)
    for escape in (
        "\\ud800",
        "\\udfff",
        "\\udc00\\ud800",
        "\\u0000",
        "\\x41",
        "\\u12",
        "\\",
        "\\u{41}",
    ):
        body = text.replace('"name":"', '"name":"' + escape, 1).encode()
        yield Upload(f"escape {escape}", body)
    for control in ("\x00", "\x01", "\x1f", "\n", "\t"):
        body = text.replace('"name":"', '"name":"' + control, 1).encode()
        yield Upload(f"control {ord(control)}", body)
    for name, body in (
        ("empty", b""),
        ("blank", b" \n\t"),
        ("null", b"null"),
        ("true", b"true"),
        ("a number", b"17"),
        ("a text", b'"graph"'),
        ("an array", b"[]"),
        ("an object", b"{}"),
        ("two documents", TEXT + TEXT),
        ("a trailing comma", TEXT[:-1] + b",}"),
        ("a comment", b"/* */" + TEXT),
        ("quotes", TEXT.replace(b'"', b"'")),
        ("YAML", b"schema: shardwise.graph/1\n"),
        ("XML", b"<graph/>"),
        ("HTML", b"<!doctype html>"),
        ("a pickle", b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00."),
        ("a zip", b"PK\x03\x04" + b"\x00" * 40),
        ("a form", b"graph=%7B%7D"),
        ("zeros", b"\x00" * 4096),
        ("a trailing NUL", TEXT + b"\x00"),
        ("JSON lines", b"{}\n{}\n"),
        ("noise", random.Random(1).randbytes(4096)),
    ):
        yield Upload(name, body)


def duplicates() -> Iterator[Upload]:
    text = TEXT.decode()
    for where in (
        '"name":',
        '"schema":',
        '"shape":',
        '"dtype":',
        '"role":',
        '"inputs":',
        '"outputs":',
        '"kind":',
        '"attributes":',
        '"scope":',
        '"tensors":',
        '"operators":',
    ):
        yield Upload(f"twice {where}", text.replace(where, f"{where}null,{where}", 1).encode())
    for where in ('"graph":', '"hardware":', '"gpus":'):
        body = json.dumps(ASK).replace(where, f"{where} 1, {where}", 1).encode()
        yield Upload(f"asked twice {where}", body, "/v1/frontiers")


def packed() -> Iterator[Upload]:
    said = {"Content-Encoding": "gzip"}
    good = gzip.compress(TEXT, mtime=0)
    for at in range(1, len(good), max(1, len(good) // 20)):
        yield Upload(f"gzip cut at {at}", good[:at], headers=said)
    for at in range(10, len(good), max(1, len(good) // 20)):
        flipped = bytearray(good)
        flipped[at] ^= 0x55
        yield Upload(f"gzip flipped at {at}", bytes(flipped), headers=said)
    for size in (10**8, 3 * 10**8):
        bomb = _bomb(size)
        yield Upload(f"bomb of {size}", bomb, headers=said)
        yield Upload(f"bomb of {size}, not said", bomb)
        yield Upload(f"bomb of {size} for hardware", bomb, PROFILES, said)
        yield Upload(f"bomb of {size} for a question", bomb, "/v1/plans", said)
    yield Upload("a bomb in a bomb", gzip.compress(_bomb(3 * 10**8)), headers=said)
    yield Upload("a thousand bombs", _bomb(10**6) * 1000, headers=said)
    # Not packed: packed data is bounded by its ratio first.
    yield Upload("many small values", b"[" + b"[]," * 10_000_000 + b"1]")
    yield Upload("as many small values as are read", b"[" + b"[]," * 1_900_000 + b"1]")
    yield Upload("packed twice", gzip.compress(good), headers=said)
    yield Upload("junk after gzip", good + b"junk", headers=said)
    yield Upload("gzip of nothing", gzip.compress(b""), headers=said)


@cache
def _bomb(size: int) -> bytes:
    """Returns a gzip member of `size` blanks, made without holding them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    chunk = b" " * 2**20
    parts = [packer.compress(chunk) for _ in range(size // len(chunk))]
    return b"".join([*parts, packer.flush()])


def lies() -> Iterator[Upload]:
    for encoding in (
        "gzip",
        "x-gzip",
        "deflate",
        "br",
        "zstd",
        "compress",
        "gzip, gzip",
        "identity, br",
        "utf-8",
    ):
        yield Upload(f"said to be {encoding}", TEXT, headers={"Content-Encoding": encoding})
    for kind in (
        "image/png",
        "text/html",
        "application/xml",
        "multipart/form-data; boundary=x",
        "application/yaml",
        "application/pickle",
        "application/x-tar",
        "text/csv",
        "x",
        "application/json5",
    ):
        yield Upload(f"said to be {kind}", TEXT, headers={"Content-Type": kind})
    for kind in ("application/onnx", "application/octet-stream", "application/x-protobuf"):
        yield Upload(f"JSON said to be {kind}", TEXT, headers={"Content-Type": kind})
    onnx = {"Content-Type": "application/onnx"}
    for name, body in (
        ("an empty", b""),
        ("a short", b"\x08"),
        ("a noisy", random.Random(2).randbytes(999)),
        ("a long", b"\x0a\xff\xff\xff\xff\x0f" + b"\x00" * 64),
    ):
        yield Upload(f"{name} ONNX file", body, headers=onnx)
    for query in (
        "batch=0",
        "batch=-1",
        "batch=x",
        "seq=1e3",
        "N=99999999999999999999",
        "batch=%00",
    ):
        yield Upload(f"ONNX with {query}", b"\x08\x07", f"{GRAPHS}?{query}", onnx)
    for key in (b"", b"a b", b"x" * 256, b"\xe9"):
        headers = {"Idempotency-Key": key}
        yield Upload(f"key {key[:3]!r} of {len(key)}", TEXT, headers=headers)


def questions() -> Iterator[Upload]:
    for path, ask in (
        ("/v1/frontiers", ASK),
        ("/v1/plans", ASK),
        ("/v1/curves", {**ASK, "max_gpus": 1}),
    ):
        for name, value in (
            ("gpus", 0),
            ("gpus", 10**30),
            ("gpus", "1"),
            ("graph", 3),
            ("hardware", None),
            ("options", []),
            ("more", 1),
        ):
            yield Upload(
                f"{path} {name} = {value}", json.dumps({**ask, name: value}).encode(), path
            )
    for options in (
        {"epsilon": 1e30},
        {"epsilon": None},
        {"zero": [9]},
        {"pins": ["x"]},
        {"micro_batches": [10**30]},
        {"micro_batches": [0]},
        {"max_configurations": -1},
        {"method": "magic"},
        {"optimizer": ""},
        {"memory_limit_bytes": -5},
        {"threads": 4},
        {"": 1},
        {"memory_headroom": 0},
        {"power_limit_w": 0},
    ):
        body = json.dumps({**ASK, "options": options}).encode()
        yield Upload(f"options {options}", body, "/v1/frontiers")
    for csv in (
        "",
        "\n",
        "a,b\n1,2\n",
        "\x01",
        "InstanceType,AcceleratorName,AcceleratorCount,Price,Region\nx,V100,0,1,r\n",
        "InstanceType,AcceleratorName,AcceleratorCount,Price,Region\nx,V100,1,nan,r\n",
    ):
        body = json.dumps({"graph": "shipped:vgg16", "offers_csv": csv}).encode()
        yield Upload(f"offers {csv!r}", body, "/v1/quotes")
    for jobs in (
        None,
        3,
        {},
        [None],
        [{}],
        [{"curve": {"points": [{"gpus": 0, "time_s": 1.0}]}}],
        [{"curve": {"points": [{"gpus": 1, "time_s": -1.0}]}}],
        [{"curve": {"points": [{"gpus": 1, "time_s": 1e-300}]}}],
        [{"graph": "x", "hardware": "l4"}],
        [{"weight": -1.0, "curve": {"points": [{"gpus": 1, "time_s": 1.0}]}}],
    ):
        body = json.dumps({"gpus": 2, "jobs": jobs}).encode()
        yield Upload(f"jobs {json.dumps(jobs)}", body, "/v1/allocations")


KINDS: tuple[Callable[[], Iterator[Upload]], ...] = (
    wrong_types,
    missing_fields,
    wrong_graphs,
    huge_numbers,
    deep,
    broken_text,
    duplicates,
    packed,
    lies,
    questions,
)
