"""A service in this process with an operator, two tenants and their administrators' keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from starlette.testclient import TestClient

from service.base.settings import Settings
from service.host.app import create_app
from service.store.database import Database
from service.store.keys import create_key
from service.store.schema import migrate

SCOPES = {
    "operator": ("ops", ("operator",)),
    "ops-admin": ("ops", ("admin",)),
    "alpha": ("alpha", ("admin",)),
    "beta": ("beta", ("admin",)),
    "reader": ("alpha", ("read", "submit")),
}


class Administered:
    """Calls by the name of the caller."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        chosen = {"auth": "required", "auth_cache_s": 0, "rate_per_s": 100_000.0, **settings}
        self.settings = Settings(data_dir=str(folder), **chosen)
        self.database = Database(self.settings.database)
        migrate(self.database)
        with self.database.write() as session:
            self.keys = {
                name: create_key(session, tenant, scopes, name)
                for name, (tenant, scopes) in SCOPES.items()
            }
        self.app = create_app(self.settings, self.database)
        self.client = TestClient(self.app, raise_server_exceptions=False)

    def __call__(self, who: str, method: str, path: str, **keywords: Any) -> httpx.Response:
        key = self.keys.get(who, who)
        headers = {"Authorization": f"Bearer {key}", **keywords.pop("headers", {})}
        return self.client.request(method, path, headers=headers, **keywords)

    def id_of(self, who: str) -> str:
        """Returns the id of a caller's key."""
        return self.keys.get(who, who).split("_")[1]

    def close(self) -> None:
        self.client.close()
        self.database.close()
