"""What `Client` has for keys, tenants and the audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from shardwise.client.administering import AdministrationCalls, Document, keys_list
from shardwise.client.exchange import Flow, T
from shardwise.client.request import path_of


class AdministrationMethods:
    """Keys, tenants and the audit. `Client` says how they are sent."""

    _administration: AdministrationCalls

    def me(self) -> Document:
        """Who this client is to the service: tenant, key, scopes, expiry and limits."""
        return self._run(self._administration.get(path_of("me")))

    def api_keys(self, tenant: str | None = None) -> Iterator[Document]:
        """The keys without their secrets, newest first (scope admin; `tenant`: operator)."""
        return self._list(keys_list(tenant))

    def create_key(
        self,
        name: str = "",
        scopes: Sequence[str] = ("read", "submit"),
        *,
        expires_s: float | None = None,
        rate_per_s: float | None = None,
        tenant: str | None = None,
    ) -> Document:
        """Makes a key: its secret is the answer's `key`, now and never again (scope admin).

        It has at most the scopes, the rate and the life of this client's own key. `tenant` names
        another tenant, which takes the scope operator.
        """
        body = {
            "name": name,
            "scopes": list(scopes),
            "expires_s": expires_s,
            "rate_per_s": rate_per_s,
        }
        return self._run(self._administration.make_key(tenant, body))

    def rotate_key(
        self, key_id: str, overlap_s: float = 3600.0, *, tenant: str | None = None
    ) -> Document:
        """Makes a key in the place of another, which expires after the overlap (scope admin)."""
        return self._run(self._administration.rotate_key(tenant, key_id, overlap_s))

    def revoke_key(self, key_id: str, *, tenant: str | None = None) -> Document:
        """Revokes a key; every process refuses it within a few seconds (scope admin)."""
        return self._run(self._administration.revoke_key(tenant, key_id))

    def audit(
        self,
        *,
        tenant: str | None = None,
        action: str | None = None,
        key: str | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> Iterator[Document]:
        """Who changed what, newest first (scope admin; `tenant`: operator).

        `action` is a whole action or its first word, `since` and `until` are ISO 8601 moments.
        """
        return self._list("audit", tenant=tenant, action=action, key=key, since=since, until=until)

    def tenants(self) -> Iterator[Document]:
        """All tenants, newest first (scope operator)."""
        return self._list("tenants")

    def tenant(self, tenant: str) -> Document:
        """A tenant with the limits in force and its usage (one's own: scope admin)."""
        return self._run(self._administration.get(path_of("tenants", tenant)))

    def create_tenant(self, tenant: str, **limits: float) -> Document:
        """Makes a tenant with limits of its own; one that is there stays as it is (operator)."""
        return self._run(self._administration.make_tenant(tenant, limits))

    def limit_tenant(self, tenant: str, **limits: float | None) -> Document:
        """Gives a tenant its own limits; None takes the settings' again (scope operator)."""
        return self._run(self._administration.limit_tenant(tenant, limits))

    def delete_tenant(self, tenant: str) -> Document:
        """Deletes a tenant with all that it has: a worker removes it (scope operator)."""
        return self._run(self._administration.delete_tenant(tenant))

    def export_tenant(self, tenant: str, file: Path | str) -> int:
        """Writes all that a tenant has to a tar.gz of JSON documents; its bytes (scope admin)."""
        return self._run(self._administration.export_tenant(tenant, Path(file)))

    def _list(self, name: str, **query: str | None) -> Iterator[Document]:
        raise NotImplementedError

    def _run(self, flow: Flow[T]) -> T:
        raise NotImplementedError
