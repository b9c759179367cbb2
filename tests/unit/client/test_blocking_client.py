"""The blocking client is generated: what is committed is current, and has the same methods."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("httpx", reason="needs shardwise[client]")
pytest.importorskip("unasync", reason="needs shardwise[dev]")

from shardwise.client import AsyncClient, Client
from tools.blocking_client import generated, stale


def test_what_is_committed_is_what_is_generated() -> None:
    texts = generated()
    assert stale(texts) == []
    changed = texts | {"client.py": texts["client.py"] + "# changed by hand"}
    assert [path.name for path in stale(changed)] == ["client.py"]
    assert [
        path.name for path in stale({n: t for n, t in texts.items() if n != "launches.py"})
    ] == ["launches.py"]


def test_both_clients_have_the_same_calls() -> None:
    blocking, awaiting = (
        {
            name: list(inspect.signature(method).parameters.values())
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }
        for kind in (Client, AsyncClient)
    )
    assert blocking == awaiting
    assert "frontier" in blocking
