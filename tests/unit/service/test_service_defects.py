"""A defect of the service: a problem document without anything of the inside; the log has all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from starlette.testclient import TestClient

from service.base.problems import MEDIA_TYPE, PREFIX
from service.base.settings import Settings
from service.handlers import agents
from service.host.app import create_app
from service.store.database import Database
from service.store.schema import migrate
from shardwise.errors import InternalError

INSIDE = "the pool of /var/lib/secret is empty"


def broken(*_: Any) -> None:
    raise InternalError(INSIDE)


def test_an_internal_error_is_a_problem_of_500_and_goes_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data_dir=str(tmp_path))
    database = Database(settings.database)
    migrate(database)
    app = create_app(settings, database)
    monkeypatch.setattr(agents, "get_agents", broken)
    client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    answer = client.get("/v1/agents")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == MEDIA_TYPE
    document = answer.json()
    assert document == {
        "type": f"{PREFIX}defect",
        "title": "A defect of the service",
        "status": 500,
        "detail": "please report it with the request id",
        "request_id": document["request_id"],
    }
    assert document["request_id"]
    assert app.state.shardwise.metrics.registry.get_sample_value("shardwise_defects_total") == 1
    # The server gets the error after the answer, and logs its traceback.
    with pytest.raises(InternalError, match=INSIDE):
        TestClient(app, base_url="http://127.0.0.1").get("/v1/agents")
    database.close()
