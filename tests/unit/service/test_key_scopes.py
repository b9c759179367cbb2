"""The OpenAPI document names the scope that each call asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from starlette.testclient import TestClient

from service.base.settings import Settings
from service.host.app import create_app
from service.store.database import Database
from service.store.keys import SCOPES, create_key
from service.store.schema import migrate


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, dict[str, str]]]:
    """The service, and by each scope a key that has all others but those that are several."""
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("data")), auth="required")
    database = Database(settings.database)
    migrate(database)
    with database.write() as session:
        without = {
            scope: create_key(
                session, "t", [s for s in SCOPES if s not in (scope, "admin", "operator")], "", None
            )
            for scope in SCOPES
        }
    with TestClient(create_app(settings, database), raise_server_exceptions=False) as client:
        yield client, without


def test_every_call_asks_for_the_scope_that_the_document_names(
    keys: tuple[TestClient, dict[str, str]],
) -> None:
    client, without = keys
    document = client.get("/openapi.json").json()
    seen = set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            url = re.sub(r"\{[^}]*\}", "none", path)
            body = {"json": {}} if method == "post" else {}
            named = {scope for way in operation["security"] for scope in way.get("key", [])}
            seen |= named
            bare = client.request(method, url, **body)
            assert (bare.status_code == 401) == bool(named) or path == "/v1/agents", path
            # /readyz waits for a broker, which is not there: once, not for every key.
            for scope, key in list(without.items())[: 1 if path == "/readyz" else None]:
                headers = {"Authorization": f"Bearer {key}"}
                response = client.request(method, url, headers=headers, **body)
                refused = response.status_code == 403 and response.json().get("scope") == scope
                assert refused == (scope in named), f"{method} {path}: {scope}"
    assert seen == set(SCOPES)
