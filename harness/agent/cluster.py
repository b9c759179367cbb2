"""Three hosts and a real service: network namespaces on a bridge where root, else loopback."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from agent.processes import Process, marked
from agent.sweep import AGENT_MARKER
from harness.agent.agent_harness import ROOT, free_port, wait_for
from harness.commands import succeed
from harness.service.service_harness import Service, command_of

HOSTS = 3
NETS = range(60, 250)
PROGRAM = Path(__file__).with_name("rank_program.py")


class Network:
    """Addresses of the service and of each host; `prefix` is what runs a command on a host."""

    service = "127.0.0.1"
    separate = False

    def address(self, host: int) -> str:
        return f"127.0.0.{host + 2}"

    def prefix(self, host: int) -> list[str]:
        return []

    def cut(self, host: int) -> None:
        raise NotImplementedError

    def mend(self, host: int) -> None:
        raise NotImplementedError

    def remove(self) -> None:
        return


class Namespaces(Network):
    """A network namespace for each host, joined by a bridge in one of its own.

    In the machine's own namespace a bridge may forward nothing: Docker's engine has bridges
    filtered and drops what it did not connect.
    """

    separate = True

    def __init__(self) -> None:
        self._net = self._new_switch()
        self.service = f"10.77.{self._net}.1"
        self._in_switch("link", "add", "name", "switch", "type", "bridge")
        self._in_switch("link", "set", "switch", "up")
        self._plug("service", self._veth("s"))
        self._ip("addr", "add", f"{self.service}/24", "dev", self._veth("s"))
        self._ip("link", "set", self._veth("s"), "up")
        for host in range(HOSTS):
            name, veth = self._name(host), self._veth(host)
            self._ip("netns", "add", name)
            self._plug(f"host{host}", veth)
            self._ip("link", "set", veth, "netns", name)
            self._ip("-n", name, "link", "set", "lo", "up")
            self._ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", veth)
            self._ip("-n", name, "link", "set", veth, "up")

    def _new_switch(self) -> int:
        """Makes a namespace for the bridge and returns its number, the first that is free."""
        for net in NETS:
            with contextlib.suppress(subprocess.CalledProcessError):
                self._ip("netns", "add", f"swn{net}xs")
                return net
        raise subprocess.CalledProcessError(1, "ip netns add")

    def _plug(self, port: str, veth: str) -> None:
        """Connects a port of the bridge to a new device in the machine's own namespace."""
        peer = ["peer", "name", port, "netns", self._name("s")]
        self._ip("link", "add", "name", veth, "type", "veth", *peer)
        self._in_switch("link", "set", port, "master", "switch", "up")

    def _in_switch(self, *arguments: str) -> None:
        self._ip("-n", self._name("s"), *arguments)

    def _name(self, host: int | str) -> str:
        return f"swn{self._net}x{host}"

    def _veth(self, host: int | str) -> str:
        return f"swv{self._net}x{host}"

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def address(self, host: int) -> str:
        return f"10.77.{self._net}.{host + 2}"

    def prefix(self, host: int) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self._name(host)}"]

    def cut(self, host: int) -> None:
        self._in_switch("link", "set", f"host{host}", "down")

    def mend(self, host: int) -> None:
        self._in_switch("link", "set", f"host{host}", "up")

    def remove(self) -> None:
        # Each veth goes with its peer's namespace.
        for host in (*range(HOSTS), "s"):
            with contextlib.suppress(subprocess.CalledProcessError):
                self._ip("netns", "del", self._name(host))


def make_network() -> Network:
    """Returns namespaces where they can be made, else loopback."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("nsenter"):
        return Network()
    try:
        return Namespaces()
    except subprocess.CalledProcessError:
        return Network()


class Cluster:
    """The service and its agents, all processes of their own."""

    def __init__(
        self, folder: Path, lease_s: float, settings: Mapping[int, str], network: Network
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.lease_s = lease_s
        self.network = network
        self.port = free_port()
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.service = self._serve()
        self.http = httpx.Client(
            base_url=f"http://{self.network.service}:{self.port}",
            headers={"Authorization": f"Bearer {self._admin_key()}"},
            timeout=60,
        )

    def _admin_key(self) -> str:
        done = self._shardwise(
            "keys", "create", "--tenant", "local", "--json",
            *(f"--scope={scope}" for scope in ("read", "submit", "admin")),
        )  # fmt: skip
        return str(json.loads(done)["key"])

    def _shardwise(self, *arguments: str) -> str:
        environment = {**os.environ, "SHARDWISE_DATA_DIR": str(self.folder / "data")}
        return succeed(*arguments, env=environment)

    def _serve(self) -> Service:
        if self.network.separate and not (self.folder / "key").exists():
            # Other addresses than loopback need a key to be there first.
            (self.folder / "key").write_text(self._admin_key())
        return Service(
            self.folder,
            "--port",
            str(self.port),
            host=self.network.service,
            agent_lease_s=str(self.lease_s),
            agent_heartbeat_s="1",
            sweep_s="0.5",
        )

    def kill_service(self) -> None:
        self.service.kill()

    def restart_service(self) -> None:
        self.service = self._serve()

    def token(self) -> str:
        answer = self.http.post("/v1/agents/tokens", json={})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    def command(self, host: int, data: Path, token: str) -> list[str]:
        folder = self.folder / f"host{host}"
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(token)
        (folder / "agent.toml").write_text(
            f"""
slots = 4
stop_grace_s = 2
addresses = ["{self.network.address(host)}"]
ports = [{29500 + 100 * host}, {29599 + 100 * host}]
{self.settings.get(host, "")}
[entry_points.program]
command = ["python", "{PROGRAM}"]
allow_arguments = true
"""
        )
        return [
            *self.network.prefix(host),
            sys.executable, "-P", "-m", "agent",
            "--server", str(self.http.base_url),
            "--data-dir", str(data),
            "--config", str(folder / "agent.toml"),
            "--token-file", str(folder / "token"),
            "--name", f"host{host}",
        ]  # fmt: skip

    def start_agent(self, host: int) -> None:
        data = self.folder / f"host{host}" / "data"
        token = "" if (data / "identity.json").exists() else self.token()
        command = self.command(host, data, token)
        with (self.folder / f"host{host}" / "log").open("ab") as log:
            self.agents[host] = subprocess.Popen(
                command, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT, stderr=log
            )
        wait_for(lambda: self.agent(host).get("state") == "live", f"host{host} live")

    def agent(self, host: int) -> dict[str, Any]:
        items = self.http.get("/v1/agents").json()["items"]
        return next((item for item in items if item["name"] == f"host{host}"), {})

    def log(self, host: int) -> str:
        return (self.folder / f"host{host}" / "log").read_text()

    def kill_agent(self, host: int) -> None:
        self.agents[host].kill()
        self.agents[host].wait()

    def processes(self, host: int) -> set[Process]:
        identity = json.loads((self.folder / f"host{host}/data/identity.json").read_bytes())
        return marked(AGENT_MARKER, identity["id"])

    def assert_no_orphan(self) -> None:
        for host in self.agents:
            try:
                wait_for(lambda host=host: not self.processes(host), "no process")
            except AssertionError:
                agent = self.agents[host]
                raise AssertionError(
                    f"host{host}, whose agent {agent.pid} ended with {agent.poll()}, has "
                    f"{[command_of(process.pid) for process in self.processes(host)]}"
                ) from None

    def launch(self, *arguments: str, agents: int | list[str], ranks: int = 1) -> str:
        answer = self.http.post(
            "/v1/launches",
            json={
                "kind": "run",
                "entry_point": "program",
                "arguments": list(arguments),
                "agents": agents,
                "ranks_per_agent": ranks,
            },
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def document(self, launch: str) -> dict[str, Any]:
        launched: dict[str, Any] = self.http.get(f"/v1/launches/{launch}").json()
        return launched

    def wait_state(self, launch: str, *states: str) -> dict[str, Any]:
        def reached_or_ended() -> dict[str, Any] | None:
            document = self.document(launch)
            ended = document["state"] in ("done", "failed", "stopped", "lost")
            return document if document["state"] in states or ended else None

        reached: dict[str, Any] = wait_for(reached_or_ended, f"{launch} {states}", 180)
        assert reached["state"] in states, (reached["state"], reached["reason"])
        return reached

    def lines(self, launch: str, rank: int) -> list[str]:
        """Returns a rank's lines of standard output."""
        answer = self.http.get(f"/v1/launches/{launch}/logs", params={"rank": rank, "limit": 200})
        assert answer.status_code == 200, answer.text
        lines = answer.json()["lines"]
        return [line["text"] for line in lines if line["stream"] == "stdout"]

    def joined(self, launch: str, rank: int) -> int:
        """Returns the process id of a rank once it has joined the others."""

        def joined_line() -> str | None:
            document = self.document(launch)
            assert document["state"] in ("queued", "starting", "running"), document["reason"]
            lines = self.lines(launch, rank)
            return next((line for line in lines if line.startswith("joined")), None)

        return int(wait_for(joined_line, f"rank {rank} has joined", 180).split()[1])

    def stop(self) -> None:
        for process in self.agents.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.agents.values():
            process.wait(60)
        self.http.close()
        self.service.stop()
        self.network.remove()


@contextlib.contextmanager
def running_cluster(
    folder: Path,
    lease_s: float,
    settings: Mapping[int, str] | None = None,
    network: Network | None = None,
    hosts: int = HOSTS,
) -> Iterator[Cluster]:
    """Runs a cluster until the block ends; the agents of its first `hosts` hosts are live."""
    cluster = Cluster(folder, lease_s, settings or {}, network or make_network())
    try:
        for host in range(hosts):
            cluster.start_agent(host)
        yield cluster
    finally:
        cluster.stop()
