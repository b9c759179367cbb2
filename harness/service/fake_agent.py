"""An agent as plain HTTP calls: what the service is promised, and nothing more."""

from __future__ import annotations

import uuid
from typing import Any

import httpx


def inventory(slots: int = 2, **more: Any) -> dict[str, Any]:
    """A CPU-only host."""
    return {
        "schema": "shardwise.inventory/1",
        "host": "here",
        "cpus": slots,
        "memory_bytes": 8e9,
        "addresses": ["10.1.1.7"],
        "devices": [],
        "cpu_only": True,
        "entry_points": [{"name": "train", "description": ""}],
        "slots": slots,
        **more,
    }


def new_token(client: httpx.Client, headers: dict[str, str] | None = None, **body: Any) -> str:
    """A one-time token."""
    answer = client.post("/v1/agents/tokens", json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


class FakeAgent:
    """Enrols at once; keeps the tokens of what it has claimed."""

    def __init__(
        self,
        client: httpx.Client,
        name: str = "fake",
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        **of_host: Any,
    ) -> None:
        self.client = client
        token = token or new_token(client, headers)
        body = {"token": token, "name": name, "inventory": inventory(**of_host)}
        answer = client.post("/v1/agents", json=body)
        assert answer.status_code == 201, answer.text
        self.id = str(answer.json()["id"])
        self.key = str(answer.json()["key"])
        self.boot_id = "boot-1"
        self.held: dict[str, str] = {}

    def call(self, method: str, path: str, **keywords: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key}", **keywords.pop("headers", {})}
        return self.client.request(method, path, headers=headers, **keywords)

    def own(self, method: str, what: str, **keywords: Any) -> httpx.Response:
        return self.call(method, f"/v1/agents/{self.id}/{what}", **keywords)

    def beat(self, **more: Any) -> dict[str, Any]:
        """A heartbeat that lists what is held; its answer."""
        jobs = [{"assignment": a, "token": t, "state": "running"} for a, t in self.held.items()]
        body = {"boot_id": self.boot_id, "inventory_hash": "h", "jobs": jobs, **more}
        answer = self.own("POST", "heartbeat", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def claim(self, wait_s: float = 10.0) -> dict[str, Any] | None:
        """The next assignment, if there is one in time."""
        answer = self.own("GET", f"assignments?wait_s={wait_s}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] | None = answer.json()["assignment"]
        if found is not None:
            self.held[found["id"]] = found["token"]
        return found

    def must_claim(self) -> dict[str, Any]:
        """The next assignment, which has to come."""
        found = self.claim()
        assert found is not None, "no assignment came"
        return found

    def report(self, *reports: dict[str, Any]) -> dict[str, Any]:
        """What became of the reports."""
        answer = self.own("POST", "reports", json={"reports": list(reports)})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def of(self, assignment: dict[str, Any] | str, kind: str, **more: Any) -> dict[str, Any]:
        """A report of an assignment, with an id of its own."""
        name = assignment if isinstance(assignment, str) else assignment["id"]
        return {
            "id": str(uuid.uuid4()),
            "assignment": name,
            "token": self.held[name],
            "kind": kind,
            **more,
        }

    def say(self, assignment: dict[str, Any], state: str, **more: Any) -> dict[str, Any]:
        """Report a state."""
        return self.report(self.of(assignment, "state", state=state, **more))
