"""The composed system that faults are made in: what it says of itself, and what is left of it."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from subprocess import CalledProcessError
from time import monotonic
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from harness.containers.composed import FILES, Composed, bases, inspect
from harness.containers.engine import ROOT, run
from harness.containers.fault_plan import TARGETS
from harness.service.service_harness import wait_until

PROJECT = "shardwise-faults"
FAULT_FILES = (*FILES, "tests/containers/faults.yml")
PROMETHEUS = ROOT / "out" / "faults" / "prometheus"
"""What tests/containers/faults.yml gives Prometheus for deploy/prometheus."""
LEASE_S = 8.0
"""SHARDWISE_LEASE_S of tests/containers/faults.yml; the agent's is longer by 1 s."""
HEALTHY_WITHIN_S = 600.0
WORKERS = 2
NOT_YET = "not heard yet"
IDLE = {"service": 2, "worker": 2 * WORKERS, "redis": 1, "agent": 2}
"""Processes of each target's containers, init among them, while nothing is computed."""


@dataclass
class FaultSystem:
    """A project of compose with short leases and volumes that can be filled."""

    composed: Composed
    ids: dict[str, list[str]] = field(default_factory=dict)
    """Each target's containers."""
    seen: set[str] = field(default_factory=set)
    """Each container that the project had."""

    def up(self) -> float:
        """Brings everything up from built images. Returns how long it took, in seconds.

        On a loaded machine a container may not be healthy in the time that compose gives it; it is
        then waited for again.
        """
        shorten(PROMETHEUS)
        self.composed.down()
        began = monotonic()
        try:
            self.composed.up()
        except CalledProcessError:
            wait_until(self._healthy, "what was started is healthy", HEALTHY_WITHIN_S)
            self.composed.up()
        took = monotonic() - began
        self.look()
        return took

    def _healthy(self) -> bool:
        started = self.composed.compose("ps", "--quiet").split()
        checks = [state(container).get("Health") for container in started]
        return all(check["Status"] == "healthy" for check in checks if check)

    def look(self) -> None:
        """Reads the containers' ids anew."""
        self.ids = {target: self.composed.containers(target) for target in TARGETS}
        self.seen |= set(self.composed.compose("ps", "--all", "--quiet").split())

    def container(self, target: str, replica: int = 0) -> str:
        """Returns the id of a target's container."""
        return self.ids[target][replica]

    def network(self, name: str) -> str:
        """Returns the engine's name of one of compose's networks."""
        return f"{self.composed.project}_{name}"

    def unwell(self, since: float = 0.0) -> str:
        """Returns what the system says is wrong with it, or an empty string.

        `since` is a time of the clock, in seconds: the agent must have been heard after it.
        """
        try:
            with urlopen(f"{self._url}/readyz", timeout=3) as answer:
                checks = json.load(answer)["checks"]
        except (URLError, OSError, ValueError) as error:
            return f"service: {error}"
        wrong = [name for name in ("database", "writes", "broker") if checks[name] != "ok"]
        if wrong or checks["workers"] != WORKERS:
            return f"readyz: {checks}"
        return self._agent_unwell(since) or self._worker_unwell()

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self.composed.service_port}"

    def _agent_unwell(self, since: float) -> str:
        try:
            status, page = self.composed.ask("/v1/agents")
        except (URLError, OSError) as error:
            return f"agents: {error}"
        live = status == 200 and [a for a in page["items"] if a["state"] == "live"]
        if not live or len(page["items"]) != 1:
            return f"agents: {status}"
        seen_at = datetime.fromisoformat(live[0]["seen_at"]).timestamp()
        return live[0]["reason"] or ("" if seen_at > since else f"agent: {NOT_YET}")

    def _worker_unwell(self) -> str:
        for container in self.ids["worker"]:
            networks = inspect(container)["NetworkSettings"]["Networks"]
            address = networks.get(self.network("inner"), {}).get("IPAddress")
            try:
                urlopen(f"http://{address}:9100/metrics", timeout=2).close()
            except (URLError, OSError) as error:
                return f"worker {container[:12]}: {error}"
        return ""

    def sql(self, query: str) -> list[list[str]]:
        """Returns the rows that the database gives."""
        text = self.composed.compose(
            "exec", "-T", "--user", "postgres", "postgres", "psql", "--no-align", "--tuples-only",
            "--username", "shardwise", "--dbname", "shardwise", "--command", query,
        )  # fmt: skip
        return [line.split("|") for line in text.splitlines() if line]

    def left_running(self) -> dict[str, int]:
        """Returns how many processes and containers there are beyond those of an idle system."""
        self.look()
        beyond = {}
        for target, idle in IDLE.items():
            rows = [
                row
                for container in self.ids[target]
                for row in run("docker", "top", container, "-eo", "pid,args").splitlines()[1:]
                # A health check may be running.
                if "urllib.request" not in row and "redis-cli" not in row
            ]
            beyond[f"processes of {target}"] = max(0, len(rows) - idle)
        beyond["containers"] = sum(len(ids) for ids in self.ids.values()) - len(TARGETS) - 1
        return {what: count for what, count in beyond.items() if count}

    def down(self) -> dict[str, int]:
        """Removes everything. Returns what is left all the same, by kind."""
        self.composed.down()
        label = f"label=com.docker.compose.project={self.composed.project}"
        listed = {
            "containers": run("docker", "ps", "--all", "--quiet", "--filter", label),
            "networks": run("docker", "network", "ls", "--quiet", "--filter", label),
            "volumes": run("docker", "volume", "ls", "--quiet", "--filter", label),
        }
        left = {what: len(text.split()) for what, text in listed.items()}
        left["processes"] = sum(any(c in text for c in self.seen) for text in _cgroups())
        return {what: count for what, count in left.items() if count}


def fault_system(project: str = PROJECT) -> FaultSystem:
    """Returns the system, not yet up. Raises Missing without an engine or something to build of."""
    return FaultSystem(Composed(project, bases(), FAULT_FILES))


def shorten(folder: Path) -> None:
    """Writes Prometheus' files with 3 s between scrapes and a sixth of each alert's wait."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "deploy/prometheus", folder)
    rules = folder / "rules/alerts.yml"
    waits = re.compile(r"\bfor: (\d+)m$", re.MULTILINE)
    rules.write_text(waits.sub(lambda wait: f"for: {wait[1]}0s", rules.read_text()))
    configuration = folder / "prometheus.yml"
    often = re.sub(r"_(interval|timeout): [26]?[015]+s", r"_\1: 3s", configuration.read_text())
    configuration.write_text(often)


def state(container: str) -> dict[str, Any]:
    """Returns the engine's `State` of a container."""
    return dict(inspect(container)["State"])


def _cgroups() -> list[str]:
    texts = []
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            texts.append(path.read_text())
        except OSError:
            continue
    return texts
