"""An agent as plain HTTP calls, which does what the service is promised and nothing more."""

from __future__ import annotations

import uuid
from typing import Any

import httpx


def inventory(slots: int = 2, **more: Any) -> dict[str, Any]:
    """Returns the inventory of a CPU-only host."""
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


def devices(*kinds: str) -> list[dict[str, Any]]:
    """Returns the devices of an inventory, one of each kind that is named."""
    return [
        {"index": i, "kind": kind, "memory_bytes": 1e9, "used_by_others": False, "nvlink": []}
        for i, kind in enumerate(kinds)
    ]


def new_token(client: httpx.Client, headers: dict[str, str] | None = None, **body: Any) -> str:
    """Returns a new one-time token."""
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
        self.tokens: dict[str, str] = {}

    def call(self, method: str, path: str, **keywords: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key}", **keywords.pop("headers", {})}
        return self.client.request(method, path, headers=headers, **keywords)

    def own(self, method: str, what: str, **keywords: Any) -> httpx.Response:
        return self.call(method, f"/v1/agents/{self.id}/{what}", **keywords)

    def beat(self, **more: Any) -> dict[str, Any]:
        """Sends a heartbeat that lists the assignments held. Returns the answer."""
        jobs = [{"assignment": a, "token": t, "state": "running"} for a, t in self.tokens.items()]
        body = {"boot_id": self.boot_id, "inventory_hash": "h", "jobs": jobs, **more}
        answer = self.own("POST", "heartbeat", json=body)
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()
        return reply

    def claim(self, wait_s: float = 10.0) -> dict[str, Any] | None:
        """Returns the next assignment, if there is one in time."""
        answer = self.own("GET", f"assignments?wait_s={wait_s}")
        assert answer.status_code == 200, answer.text
        assignment: dict[str, Any] | None = answer.json()["assignment"]
        if assignment is not None:
            self.tokens[assignment["id"]] = assignment["token"]
        return assignment

    def must_claim(self) -> dict[str, Any]:
        """Returns the next assignment, which has to come."""
        assignment = self.claim()
        assert assignment is not None, "no assignment came"
        return assignment

    def report(self, *reports: dict[str, Any]) -> dict[str, Any]:
        """Sends reports. Returns which were accepted and refused."""
        answer = self.own("POST", "reports", json={"reports": list(reports)})
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()
        return reply

    def of(self, assignment: dict[str, Any] | str, kind: str, **more: Any) -> dict[str, Any]:
        """Returns a report of an assignment, with an id of its own."""
        name = assignment if isinstance(assignment, str) else assignment["id"]
        return {
            "id": str(uuid.uuid4()),
            "assignment": name,
            "token": self.tokens[name],
            "kind": kind,
            **more,
        }

    def say(self, assignment: dict[str, Any], state: str, **more: Any) -> dict[str, Any]:
        """Reports a state."""
        return self.report(self.of(assignment, "state", state=state, **more))
