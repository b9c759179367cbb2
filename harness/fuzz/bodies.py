"""Bodies of requests that are nearly right: JSON, YAML in JSON, and messages of MCP, mutated.

`drawn` gives one for a random generator; the same generator gives the same one.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.fuzz.mutations import mutated
from harness.service.malformed_documents import ASK, GRAPH, PROFILE

POLICY, TOOLS = "/v1/skypilot/policy", "/mcp"
MCP_HEADERS = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": "2025-06-18",
}
CURVE = {"points": [{"gpus": 1, "time_s": 1.0}, {"gpus": 2, "time_s": 0.6}]}
ASKED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/graphs", GRAPH),
    ("/v1/hardware", PROFILE),
    ("/v1/frontiers", {**ASK, "options": {"epsilon": 0.02, "pins": ["*:zero=0"]}}),
    ("/v1/plans", {**ASK, "space": "deepspeed", "objective": "mini-time"}),
    ("/v1/plans", {**ASK, "stages": [1], "schedules": ["1f1b"]}),
    ("/v1/curves", {"graph": ASK["graph"], "hardware": ASK["hardware"], "max_gpus": 1}),
    ("/v1/quotes", {"graph": ASK["graph"], "steps": 100, "max_instances": 1}),
    ("/v1/comparisons", {**ASK, "proposals": 10, "seed": 1}),
    ("/v1/allocations", {"gpus": 4, "objective": "max-min", "jobs": [{"curve": CURVE}] * 3}),
    ("/v1/allocations", {"gpus": 2, "objective": "deadlines",
                         "jobs": [{"curve": CURVE, "steps": 10, "deadline_s": 60.0}]}),
    ("/v1/watches", {"name": "w", "graph": ASK["graph"], "hardware": ASK["hardware"],
                     "max_gpus": 1}),
    ("/v1/agents/tokens", {"name": "a", "expires_s": 60.0, "uses": 1}),
    ("/v1/agents", {"token": "x", "name": "a", "inventory": {"slots": 1, "devices": []}}),
    ("/v1/keys", {"name": "k", "scopes": ["read"], "rate_per_s": 1.0}),
    ("/v1/launches", {"plan": {}, "agents": 1, "ranks_per_agent": 1, "arguments": ["a"]}),
    ("/v1/webhooks", {"url": "https://example.org/x", "events": ["job.ended"]}),
)  # fmt: skip
TASK = """\
name: train
envs: {SHARDWISE_GRAPH: shipped:vgg16, SHARDWISE_STEPS: "100"}
resources:
  accelerators: V100:4
  labels: {team: "a"}
run: |
  python train.py --steps 100
"""
CONFIGURATIONS = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 1\nfsdp_config:\n"
    "  fsdp_sharding_strategy: FULL_SHARD\nmixed_precision: bf16\n",
    '{"train_batch_size": 8, "zero_optimization": {"stage": 1}}',
)
LONGEST = 2**21
"""Characters of a changed text: beyond what any reader takes."""

ODD_YAML = (
    "&a [*a, *a, *a]", "!!python/object/apply:os.system ['id']", "<<: *a", "- " * 2000,
    "{a: " * 2000, "? ", "%YAML 9.9\n---\n", "--- b\n--- c\n", "|+9\n", ": ", "'", '"\\x', "\u2028",
    "1:30:00", "0o777", "!!set {a, b}", "!!binary aGk=", "a: 1\na: 2\n", "\t- x", "#", "*", "&",
    "!", "9" * 5000, "1e999", ".nan", "=", "[" * 3000, "x" * 70_000, "\ufeff", "\x85", "null: null",
)  # fmt: skip
CALLS: tuple[dict[str, Any], ...] = (
    {"method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {},
                                        "clientInfo": {"name": "c", "version": "1"}}},
    {"method": "tools/list", "params": {}},
    {"method": "ping"},
    {"method": "tools/call", "params": {"name": "list_graphs", "arguments": {}}},
    {"method": "tools/call", "params": {"name": "plan", "arguments": dict(ASK)}},
    {"method": "tools/call", "params": {"name": "quote", "arguments": {
        "graph": ASK["graph"], "max_instances": 1, "offers_csv": "a,b\n1,2\n"}}},
    {"method": "tools/call", "params": {"name": "price_configuration", "arguments": {
        **ASK, "configuration": CONFIGURATIONS[0]}, "_meta": {"progressToken": 1}}},
    {"method": "notifications/cancelled", "params": {"requestId": 1, "reason": "r"}},
)  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A request to `path`; `kind` is what was mutated."""

    kind: str
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def drawn(draw: random.Random) -> Drawn:
    """Returns one request; of eight one is compressed."""
    request = draw.choice((_json, _json, _yaml, _mcp))(draw)
    if draw.random() < 0.875:
        return request
    headers = {**request.headers, "Content-Encoding": "gzip"}
    return Drawn(request.kind, request.path, gzip.compress(request.body, mtime=0), headers)


def _json(draw: random.Random) -> Drawn:
    path, document = draw.choice(ASKED)
    return Drawn("JSON", path, _mutated(document, draw))


def _yaml(draw: random.Random) -> Drawn:
    """A task of SkyPilot, or a trainer's configuration, as a text in JSON."""
    if draw.random() < 0.5:
        task = {"task": _changed_text(TASK, draw), "request_name": "launch", "skypilot_config": ""}
        # SkyPilot sends JSON as one JSON string.
        return Drawn("YAML", POLICY, json.dumps(json.dumps(task)).encode())
    text = _changed_text(draw.choice(CONFIGURATIONS), draw)
    ask = {**ASK, "configuration": text, "file": draw.choice(("a.yaml", "ds_config.json"))}
    return Drawn("YAML", "/v1/pricings", json.dumps(ask).encode())


def _mcp(draw: random.Random) -> Drawn:
    call = {"jsonrpc": "2.0", "id": draw.randint(0, 9), **draw.choice(CALLS)}
    return Drawn("MCP", TOOLS, _mutated(call, draw), MCP_HEADERS)


def _mutated(document: Any, draw: random.Random) -> bytes:
    """Returns the document, one time of eight as it is."""
    body = json.dumps(document).encode()
    return body if draw.random() < 0.125 else mutated(body, draw)


def _changed_text(text: str, draw: random.Random) -> str:
    """Returns a text with one to three changes, cut where it is longer than any limit."""
    for _ in range(draw.randint(1, 3)):
        text = draw.choice(_CHANGES)(text, draw)[:LONGEST]
    return text


def _inserted(text: str, draw: random.Random) -> str:
    at = draw.randint(0, len(text))
    return text[:at] + draw.choice(ODD_YAML) + text[at:]


def _line_repeated(text: str, draw: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    line = draw.choice(lines)[: LONGEST // 500]
    lines.insert(draw.randint(0, len(lines)), line * draw.choice((1, 2, 500)))
    return "".join(lines)


def _value_replaced(text: str, draw: random.Random) -> str:
    key, colon, _ = draw.choice(text.splitlines() or [""]).partition(":")
    if not key + colon:
        return _inserted(text, draw)
    before, found, after = text.partition(f"{key}{colon}")
    return f"{before}{found} {draw.choice(ODD_YAML)}\n{after}"


def _cut(text: str, draw: random.Random) -> str:
    low, high = sorted(draw.randint(0, len(text)) for _ in range(2))
    return text[:low] + text[high:]


_CHANGES: tuple[Callable[[str, random.Random], str], ...] = (
    _inserted,
    _line_repeated,
    _value_replaced,
    _cut,
)


def what_is_wrong(status: int, text: str) -> str | None:
    """Returns why no request may be answered so; None for an answer that is in order."""
    if status >= 500 and status != 503:
        return f"answered {status}"
    if "a defect of the service" in text or "Traceback" in text:
        return "a defect in the answer"
    return None
