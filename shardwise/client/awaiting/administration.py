"""The clients' methods for keys, tenants and the audit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from shardwise.client.administering import AdministrationCalls, Document, keys_list
from shardwise.client.exchange import Flow, T
from shardwise.client.request import path_of


class AsyncAdministrationMethods:
    """Keys, tenants and the audit. The clients say how they are sent."""

    _administration: AdministrationCalls

    async def me(self) -> Document:
        """Returns who this client is to the service: tenant, key, scopes, expiry and limits."""
        return await self._run(self._administration.get(path_of("me")))

    def api_keys(self, tenant: str | None = None) -> AsyncIterator[Document]:
        """Returns keys without their secrets, newest first (scope admin; `tenant`: operator)."""
        return self._list(keys_list(tenant))

    async def create_key(
        self,
        name: str = "",
        scopes: Sequence[str] = ("read", "submit"),
        *,
        expires_s: float | None = None,
        rate_per_s: float | None = None,
        tenant: str | None = None,
    ) -> Document:
        """Makes a key: its secret is the answer's `key`, shown only once (scope admin).

        It has at most the scopes, the rate and the life of this client's own key. `tenant` names
        another tenant, which takes the scope operator.
        """
        body = {
            "name": name,
            "scopes": list(scopes),
            "expires_s": expires_s,
            "rate_per_s": rate_per_s,
        }
        return await self._run(self._administration.make_key(tenant, body))

    async def rotate_key(
        self, key_id: str, overlap_s: float = 3600.0, *, tenant: str | None = None
    ) -> Document:
        """Makes a key in the place of another, which expires after the overlap (scope admin)."""
        return await self._run(self._administration.rotate_key(tenant, key_id, overlap_s))

    async def revoke_key(self, key_id: str, *, tenant: str | None = None) -> Document:
        """Revokes a key; every process refuses it within a few seconds (scope admin)."""
        return await self._run(self._administration.revoke_key(tenant, key_id))

    def audit(
        self,
        *,
        tenant: str | None = None,
        action: str | None = None,
        key: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> AsyncIterator[Document]:
        """Returns who changed what, newest first (scope admin; `tenant`: operator).

        `action` is a whole action or its first word, `since` and `until` are ISO 8601 moments.
        """
        return self._list("audit", tenant=tenant, action=action, key=key, since=since, until=until)

    def tenants(self) -> AsyncIterator[Document]:
        """Returns all tenants, newest first (scope operator)."""
        return self._list("tenants")

    async def tenant(self, tenant: str) -> Document:
        """Returns a tenant with the limits in force and its usage (one's own: scope admin)."""
        return await self._run(self._administration.get(path_of("tenants", tenant)))

    async def create_tenant(self, tenant: str, **limits: float) -> Document:
        """Makes a tenant with limits of its own; an existing one stays as it is (operator)."""
        return await self._run(self._administration.make_tenant(tenant, limits))

    async def limit_tenant(self, tenant: str, **limits: float | None) -> Document:
        """Gives a tenant its own limits; None restores the settings' limit (scope operator)."""
        return await self._run(self._administration.limit_tenant(tenant, limits))

    async def delete_tenant(self, tenant: str) -> Document:
        """Deletes a tenant with all that it has: a worker removes it (scope operator)."""
        return await self._run(self._administration.delete_tenant(tenant))

    async def export_tenant(self, tenant: str, file: Path | str) -> int:
        """Writes a tenant's data to a tar.gz of JSON documents; returns its bytes (scope admin)."""
        return await self._run(self._administration.export_tenant(tenant, Path(file)))

    def _list(self, name: str, **query: str | None) -> AsyncIterator[Document]:
        raise NotImplementedError

    async def _run(self, flow: Flow[T]) -> T:
        raise NotImplementedError
