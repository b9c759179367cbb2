"""Large bodies of `/mcp`: a process of its own sees that they are one long text and little else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.base.problems import Problem
from service.base.settings import Settings
from service.mcp.endpoint import LONG_TEXTS, MOST_PLAIN_BYTES
from service.mcp.tools import TOOLS
from service.questions.ingest import check_call
from service.questions.ingest_process import Reading


def check(body: bytes) -> None:
    check_call(body, LONG_TEXTS, MOST_PLAIN_BYTES, Settings(), Reading())


def body_of(tool: str, **arguments: Any) -> bytes:
    called = {"name": tool, "arguments": arguments}
    whole = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": called}
    return json.dumps(whole, ensure_ascii=False).encode()


def test_the_long_texts_are_arguments_of_tools() -> None:
    for tool, text in LONG_TEXTS.items():
        assert text in TOOLS[tool].arguments.__struct_fields__


def test_a_long_text_passes() -> None:
    check(body_of("quote", graph="g", offers_csv='"é",\n' * 100_000))


@pytest.mark.parametrize(
    "body",
    [
        body_of("quote", offers_csv="é" * 100_000, graph="g" * MOST_PLAIN_BYTES),
        body_of("quote", offers_csv=[1] * 50_000),
        body_of("plan", offers_csv="x" * 100_000),
        json.dumps([0] * 50_000).encode(),
        json.dumps({"params": {"name": ["quote"], "arguments": "x" * 100_000}}).encode(),
    ],
)
def test_anything_else_is_too_large(body: bytes) -> None:
    with pytest.raises(Problem) as refused:
        check(body)
    assert refused.value.slug == "too-large"


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(Problem) as refused:
        check(b"[" * 100_000)
    assert refused.value.slug == "invalid-json"
