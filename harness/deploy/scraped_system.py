"""What Prometheus scrapes in a test: service, worker and agent on real servers, which have worked.

Everything that a dashboard shows has happened: questions asked and asked again, a watched curve on
a profile with prices and one on a profile that the agent has measured over gloo, a plan that the
agent has run, an answer with a server error. A launch runs on a host with GPUs, of which only the
agent's calls are there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import psycopg

from harness.commands import succeed
from harness.deploy.prometheus_server import LOADED_S
from harness.service.fake_agent import FakeAgent, devices
from harness.service.service_harness import ROOT, App, Service, free_port, wait_until

SOURCE = "zoo:mlp:layers=2,inputs=32,hidden=64,classes=8,batch=16"
CURVE: dict[str, Any] = {"graph": "shipped:vgg16", "hardware": "dgx-v100-16gb", "max_gpus": 4}
MEASURED = "measured-here"
GPUS = "Tesla V100-SXM2-16GB"
ENDED = ("done", "failed", "cancelled", "stopped", "lost")


class ScrapedSystem:
    """The processes; `client` has an administrator's key, as the targets are in compose."""

    def __init__(self, folder: Path, database_url: str, redis_url: str) -> None:
        self.folder = folder
        self._database_url = database_url
        self._metrics_port = free_port()
        self._variables = {
            "database_url": database_url,
            "redis_url": redis_url,
            "queue": f"scraped-{os.getpid()}",
            "agent_heartbeat_s": "1",
        }
        self._agent: subprocess.Popen[bytes] | None = None
        self._beating: threading.Thread | None = None
        self._stopping = threading.Event()
        self.worker: App | None = None
        self._measured = ""
        migrated = App(folder, "migrate", **self._variables)
        assert migrated.process.wait(LOADED_S) == 0, migrated.log.read_text()
        migrated.stop()
        # As deploy/compose/setup.sh makes them.
        self.key_file = folder / "prometheus.key"
        self.key_file.write_text(self._key("read"))
        admin = self._key("read", "submit", "admin")
        self.service = Service(folder, **self._variables)
        self.client = self.service.client
        self.client.headers["Authorization"] = f"Bearer {admin}"
        self.targets = {
            "shardwise": self.service.url.removeprefix("http://"),
            "shardwise-worker": f"127.0.0.1:{self._metrics_port}",
            "shardwise-curves": self.service.url.removeprefix("http://"),
        }

    def _key(self, *scopes: str) -> str:
        flags = [f"--scope={scope}" for scope in scopes]
        environment = {f"SHARDWISE_{k.upper()}": value for k, value in self._variables.items()}
        return succeed("keys", "create", "--tenant", "default", *flags, env=environment).strip()

    def start_worker(self) -> None:
        port = str(self._metrics_port)
        self.worker = App(self.folder, "worker", **self._variables, worker_metrics_port=port)

    def stop(self) -> None:
        self._stopping.set()
        if self._beating is not None:
            self._beating.join()
        if self._agent is not None and self._agent.poll() is None:
            self._agent.send_signal(signal.SIGTERM)
            self._agent.wait(90)
        if self.worker is not None:
            self.worker.stop(within_s=90)
        self.service.stop(within_s=90)

    # What happens in it

    def fail_once(self) -> None:
        """Causes one answer with a server error: to a probe, while the database has no schema."""
        with psycopg.connect(self._database_url, autocommit=True) as connection:
            connection.execute("ALTER TABLE alembic_version RENAME TO elsewhere")
            try:
                assert self.client.get("/readyz").status_code == 503
            finally:
                connection.execute("ALTER TABLE elsewhere RENAME TO alembic_version")
        assert self.client.get("/readyz").status_code == 200

    def enrol_agent(self) -> None:
        """Starts an agent with two slots on this host and waits until it is live."""
        host = self.folder / "host"
        host.mkdir()
        (host / "token").write_text(self._posted("/v1/agents/tokens", {})["token"])
        (host / "agent.toml").write_text('slots = 2\naddresses = ["127.0.0.1"]\n')
        with (self.folder / "agent.log").open("wb") as log:
            self._agent = subprocess.Popen(
                [sys.executable, "-P", "-m", "agent", "--server", self.service.url,
                 "--data-dir", str(host / "data"), "--config", str(host / "agent.toml"),
                 "--token-file", str(host / "token"), "--name", "here"],
                stderr=log, cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

        def lives() -> bool:
            items = self.client.get("/v1/agents").json()["items"]
            return [item["state"] for item in items] == ["live"]

        wait_until(lives, "the agent lives", LOADED_S)

    def measure(self) -> None:
        """Measures the agent's two ranks over gloo; the profile is named `MEASURED`."""
        arguments = ["--time-limit=10", "--max-size=256KiB", "--collectives", "--quiet"]
        self._launched(
            kind="measure", agents=1, ranks_per_agent=2, hardware=MEASURED, arguments=arguments
        )
        profiles = self.client.get("/v1/hardware").json()["items"]
        self._measured = next(str(p["id"]) for p in profiles if p["name"] == MEASURED)

    def hold_gpus(self) -> None:
        """Enrols a host with GPUs and gives it a launch that goes on until `stop`."""
        agent = FakeAgent(self.client, "with-gpus", devices=devices(GPUS, GPUS), cpu_only=False)
        self._posted(
            "/v1/launches",
            {"kind": "measure", "agents": 1, "ranks_per_agent": 2, "device_kind": GPUS},
        )
        agent.say(agent.must_claim(), "running")

        def beat() -> None:
            with httpx.Client(base_url=self.service.url, timeout=LOADED_S) as agent.client:
                while not self._stopping.wait(1.0):
                    agent.beat()

        self._beating = threading.Thread(target=beat)
        self._beating.start()

    def watch(self) -> None:
        """Watches two curves and waits until both are computed."""
        measured = {**CURVE, "hardware": self._measured, "max_gpus": 2, "graph": self.graph}
        for name, curve in (("vgg", CURVE), ("mlp.here", measured)):
            accepted = self._posted("/v1/watches", {**curve, "name": name})
            assert self._ended(accepted["job"]["location"])["state"] == "done"

    def ask(self) -> None:
        """Asks questions of each kind twice; the second time their answers are known."""
        ask = {"graph": CURVE["graph"], "hardware": CURVE["hardware"], "gpus": 2}
        quote = {"graph": CURVE["graph"], "steps": 100, "max_instances": 1}
        for path, body in (("frontiers", ask), ("plans", ask), ("quotes", quote)):
            job = self._ended(self._posted(f"/v1/{path}", body)["location"])
            assert job["state"] == "done", job
            self._posted(f"/v1/{path}", body)
        self.read_curve()

    def read_curve(self) -> None:
        """Reads a curve that is known."""
        answer = self.client.get("/v1/curves", params=CURVE)
        assert answer.status_code == 200, answer.text

    def run_plan(self) -> None:
        """Runs a plan on what was measured and compares it with its prediction."""
        body = {"graph": self.graph, "hardware": self._measured, "gpus": 2}
        job = self._ended(
            self._posted("/v1/plans", {**body, "options": {"pins": ["zero=0"]}})["location"]
        )
        assert job["state"] == "done", job
        ran = self._launched(plan_id=job["result"]["id"], agents=1, arguments=["--steps=4"])
        assert len(ran["runs"]) == 1, ran

    @property
    def graph(self) -> str:
        """The id of the plan's graph, from which the agent can make a module."""
        file = self.folder / "graph.json"
        if not file.exists():
            succeed("capture", SOURCE, "-o", str(file))
        answer = self.client.post("/v1/graphs", content=file.read_bytes())
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["id"])

    def _posted(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer: httpx.Response = self.client.post(path, json=body)
        assert answer.is_success, answer.text
        document: dict[str, Any] = answer.json()
        return document

    def _launched(self, **request: Any) -> dict[str, Any]:
        launch = self._ended(self._posted("/v1/launches", request)["location"])
        log = (self.folder / "agent.log").read_text()
        assert launch["state"] == "done", (launch["reason"], log[-3000:])
        return launch

    def _ended(self, location: str) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            document: dict[str, Any] = self.client.get(location).json()
            return document if document["state"] in ENDED else None

        job: dict[str, Any] = wait_until(ended, f"{location} has ended", LOADED_S)
        return job
