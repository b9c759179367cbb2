"""Enrolment from the command line, and how often one address may try."""

from __future__ import annotations

import json
from pathlib import Path

from harness.service.fake_agent import FakeAgent, inventory
from harness.service.service_harness import Service
from harness.service.steps import keys


def test_a_token_of_the_command_line_for_two(tmp_path: Path) -> None:
    service = Service(tmp_path)
    try:
        created = json.loads(keys(tmp_path, "enrol", "--json", "--uses", "2"))
        assert created["uses"] == 2
        agents = {FakeAgent(service.client, f"n{n}", token=created["token"]).id for n in range(2)}
        assert len(agents) == 2
        body = {"token": created["token"], "inventory": inventory()}
        assert service.client.post("/v1/agents", json=body).status_code == 401
    finally:
        service.stop()


def test_a_token_of_the_command_line_and_a_limit_on_tries(tmp_path: Path) -> None:
    service = Service(tmp_path, enrol_rate_per_s="0.01", max_agents="1")
    try:
        created = json.loads(keys(tmp_path, "enrol", "--json", "--name", "node-1"))
        assert created["tenant"] == "local" and created["expires_at"] > "2020"
        agent = FakeAgent(service.client, "", token=created["token"])
        assert service.client.get(f"/v1/agents/{agent.id}").json()["name"] == "node-1"
        assert (
            created["token"].encode() not in (tmp_path / "data" / "shardwise.sqlite").read_bytes()
        )
        second = json.loads(keys(tmp_path, "enrol", "--json"))["token"]
        body = {"token": second, "inventory": inventory()}
        full = service.client.post("/v1/agents", json=body)
        assert full.status_code == 429 and full.json()["type"].endswith("quota")
        guess = {"token": "swe_x", "inventory": inventory()}
        guesses = [service.client.post("/v1/agents", json=guess) for _ in range(12)]
        assert guesses[0].status_code == 401
        assert guesses[-1].status_code == 429
        assert int(guesses[-1].headers["Retry-After"]) > 1
    finally:
        service.stop()
