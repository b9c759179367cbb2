"""Both clients as operator and administrator of a real service, whose worker carries it out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.service.service_harness import Service, wait_until
from harness.service.steps import keys, mlp
from service.base.archive import read_files
from shardwise.client import AsyncClient, Client, Denied, Missing, Refused, ServiceError
from shardwise.errors import BadInput


class Ruled:
    """A service with an operator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        asked = ("create", "--json", "--tenant", "ops", "--scope", "operator", "--expires", "30d")
        self.key = json.loads(keys(folder, *asked))["key"]
        quick = {"sweep_s": "0.2", "auth_cache_s": "0.2"}
        self.service = Service(folder, **quick)
        self.operator = Client(self.service.url, key=self.key)

    def client(self, key: str) -> Client:
        return Client(self.service.url, key=key, retries=0)


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ruled]:
    started = Ruled(tmp_path_factory.mktemp("ruled"))
    yield started
    started.operator.close()
    started.service.stop()


def denied(client: Client) -> bool:
    try:
        client.me()
    except Denied:
        return True
    return False


def test_keys_are_made_rotated_seen_in_use_and_revoked(ruled: Ruled) -> None:
    ruled.operator.create_tenant("red", max_keys=5)
    admin = ruled.operator.create_key("admin", ("admin",), tenant="red")
    with ruled.client(admin["key"]) as client:
        created = client.create_key("ci", expires_s=3600.0)
        assert client.me()["tenant"] == "red"
        with ruled.client(created["key"]) as other:
            assert other.me()["key"]["id"] == created["id"]
            with pytest.raises(ServiceError):
                other.create_key()

            def used() -> str | None:
                key: dict[str, Any] = next(k for k in client.api_keys() if k["id"] == created["id"])
                return key["last_used_at"]

            assert wait_until(used, "the key's use is written")
            new = client.rotate_key(created["id"], overlap_s=0)
            wait_until(lambda: denied(other), "the old key is worthless")
        client.revoke_key(new["id"])
        assert [line["action"] for line in client.audit()] == [
            "keys.revoke", "keys.rotate", "keys.create", "keys.create",
        ]  # fmt: skip
        with pytest.raises(Denied, match="operator"):
            list(client.api_keys("nobodys"))


def test_a_key_ends_in_time_and_older_releases_see_it_revoked(ruled: Ruled) -> None:
    """They look at `revoked_at` alone, which the sweeper sets."""
    short = ruled.operator.create_key("short", expires_s=1.0)
    with ruled.client(short["key"]) as client:
        wait_until(lambda: denied(client), "it has expired")

    def seen() -> dict[str, Any]:
        return next(key for key in ruled.operator.api_keys() if key["id"] == short["id"])

    wait_until(lambda: seen()["revoked_at"], "the sweeper has marked it")
    assert (seen()["state"], seen()["revoked_at"]) == ("expired", seen()["expires_at"])


def test_a_tenant_is_exported_and_deleted_while_it_works(ruled: Ruled, tmp_path: Path) -> None:
    admin = ruled.operator.create_key("admin", ("admin",), tenant=_made(ruled, "blue"))
    with ruled.client(admin["key"]) as client:
        graph = client.upload_graph(mlp(33, name="blues-graph"))["id"]
        job = client.submit("curve", "shipped:gpt2", "dgx-h100", max_gpus=64)
        file = tmp_path / "blue.tar.gz"
        assert client.export_tenant("blue", file) == file.stat().st_size
        files = read_files(file.read_bytes())
        assert f"graphs/documents/{graph.replace(':', '-')}.json" in files
        assert job.id.encode() in files["jobs/000001.jsonl"]
        with pytest.raises(Missing):
            client.export_tenant("ops", tmp_path / "ops.tar.gz")
        assert not (tmp_path / "ops.tar.gz").exists()
        with pytest.raises(BadInput, match="no such"):
            client.export_tenant("blue", tmp_path / "none" / "x.tar.gz")
        assert ruled.operator.tenant("blue")["usage"]["graphs"] == 2
        with pytest.raises(BadInput, match="limit"):
            ruled.operator.limit_tenant("blue", port=5)
        assert ruled.operator.limit_tenant("blue", max_queued=3)["limits"] == {"max_queued": 3.0}
        assert ruled.operator.delete_tenant("blue")["state"] == "deleting"
        wait_until(lambda: denied(client), "its keys are worthless")
    wait_until(lambda: "blue" not in _names(ruled), "the worker has removed it", 120.0)
    own = [line for line in ruled.operator.audit(action="tenants") if "blue" in line["target"]]
    assert [line["action"] for line in own] == [
        "tenants.deleted", "tenants.delete", "tenants.limit", "tenants.create",
    ]  # fmt: skip


def _made(ruled: Ruled, tenant: str) -> str:
    return str(ruled.operator.create_tenant(tenant)["id"])


def _names(ruled: Ruled) -> list[str]:
    return [tenant["id"] for tenant in ruled.operator.tenants()]


def test_the_awaiting_client_has_the_same_calls(ruled: Ruled, tmp_path: Path) -> None:
    async def act() -> None:
        async with AsyncClient(ruled.service.url, key=ruled.key) as client:
            await client.create_tenant("green")
            created = await client.create_key("k", ("admin",), tenant="green")
            rotated = await client.rotate_key(created["id"], tenant="green")
            assert rotated["replaces"] == created["id"]
            assert (await client.revoke_key(created["id"], tenant="green"))["state"] == "revoked"
            assert len([key async for key in client.api_keys("green")]) == 2
            assert await client.export_tenant("green", tmp_path / "green.tar.gz") > 0
            lines = [line["action"] async for line in client.audit(tenant="green")]
            assert lines == ["tenants.export", "keys.revoke", "keys.rotate", "keys.create"]
            assert (await client.limit_tenant("green", max_graphs=1))["limits"]
            assert (await client.tenant("green"))["usage"]["keys"] == 1
            assert "green" in [tenant["id"] async for tenant in client.tenants()]
            assert (await client.me())["scopes"] == ["operator"]
            await client.delete_tenant("green")

    asyncio.run(act())


def test_unknown_limits_are_refused(ruled: Ruled) -> None:
    with pytest.raises((BadInput, Refused)):
        ruled.operator.create_tenant("pink", port=1.0)
