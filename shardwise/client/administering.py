"""Keys, tenants and the audit as flows: what `Client` runs and `AsyncClient` awaits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from shardwise.client.errors import Unreachable
from shardwise.client.exchange import (
    Download,
    Flow,
    Lost,
    Policy,
    Reply,
    Request,
    asked,
    document_of,
    require_good,
)
from shardwise.client.request import path_of, post_json

Document = dict[str, Any]
CONFIRM = "Shardwise-Confirm"
ARCHIVE_READ_S = 300.0
"""How long the service may be silent between two pieces of an archive."""


class AdministrationCalls:
    """The flows of administrators and operators."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def get(self, path: str) -> Flow[Document]:
        """Returns any document."""
        return document_of((yield from asked(Request("GET", path), self.policy)))

    def make_key(self, tenant: str | None, body: Mapping[str, Any]) -> Flow[Document]:
        """Returns a new key with its secret."""
        given = {name: value for name, value in body.items() if value is not None}
        return document_of((yield from asked(post_json(keys_path(tenant), given), self.policy)))

    def rotate_key(self, tenant: str | None, key_id: str, overlap_s: float) -> Flow[Document]:
        """Returns the key that takes another's place, with its secret."""
        path = f"{keys_path(tenant, key_id)}/rotate"
        request = post_json(path, {"overlap_s": overlap_s})
        return document_of((yield from asked(request, self.policy)))

    def revoke_key(self, tenant: str | None, key_id: str) -> Flow[Document]:
        """Returns the key, revoked."""
        request = Request("DELETE", keys_path(tenant, key_id))
        return document_of((yield from asked(request, self.policy)))

    def make_tenant(self, tenant: str, limits: Mapping[str, float]) -> Flow[Document]:
        """Returns a tenant, new or existing."""
        request = post_json(path_of("tenants"), {"id": tenant, "limits": dict(limits)})
        return document_of((yield from asked(request, self.policy)))

    def limit_tenant(self, tenant: str, limits: Mapping[str, float | None]) -> Flow[Document]:
        """Returns a tenant with other limits."""
        body = msgspec.json.encode({"limits": dict(limits)})
        headers = {"Content-Type": "application/json"}
        request = Request("PATCH", path_of("tenants", tenant), headers=headers, body=body)
        return document_of((yield from asked(request, self.policy)))

    def delete_tenant(self, tenant: str) -> Flow[Document]:
        """Returns a tenant that is being deleted."""
        request = Request("DELETE", path_of("tenants", tenant), headers={CONFIRM: tenant})
        return document_of((yield from asked(request, self.policy)))

    def export_tenant(self, tenant: str, path: Path) -> Flow[int]:
        """Returns the bytes of an archive that was written.

        Raises `Unreachable` if the download broke off.
        """
        request = Request("GET", path_of("tenants", tenant, "export"), read_s=ARCHIVE_READ_S)
        try:
            reply: Reply = yield Download(request, path)
        except Lost as error:
            raise Unreachable(f"{error}: the archive is not whole") from None
        require_good(reply)
        return path.stat().st_size


def keys_path(tenant: str | None, *rest: str) -> str:
    """Returns `/v1/keys` of one's own tenant, or of another."""
    return path_of(*(() if tenant is None else ("tenants", tenant)), "keys", *rest)


def keys_list(tenant: str | None) -> str:
    """Returns the name for `_list` of the keys of one's own tenant, or of another."""
    return "keys" if tenant is None else f"tenants/{tenant}/keys"
