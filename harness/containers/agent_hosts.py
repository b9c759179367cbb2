"""Containers as the hosts of agents: a host can hang or die as a whole, beside its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from harness.agent.cluster import HOSTS, Network
from harness.containers.debian import image
from harness.containers.engine import ROOT, run
from harness.containers.hosts import Host, address, hosts


class ContainerHosts(Network):
    """A container for each host on a network of the engine's; the service is on its gateway."""

    separate = True

    def __init__(self, machines: Mapping[str, Host], gateway: str) -> None:
        self.service = gateway
        self._machines = list(machines.values())
        self._addresses = [address(machine) for machine in self._machines]

    def address(self, host: int) -> str:
        return self._addresses[host]

    def prefix(self, host: int) -> list[str]:
        return ["docker", "exec", "--env", f"PYTHONPATH={ROOT}", self._machines[host].container]

    def freeze(self, host: int) -> None:
        """Stops all processes of a host where they are."""
        run("docker", "pause", self._machines[host].container)

    def thaw(self, host: int) -> None:
        """Lets them go on."""
        run("docker", "unpause", self._machines[host].container)

    def restart(self, host: int) -> None:
        """Kills all of a host and starts it again, without an agent, at the same address."""
        run("docker", "kill", self._machines[host].container)
        run("docker", "start", self._machines[host].container)
        assert address(self._machines[host]) == self._addresses[host]

    def signal(self, host: int, process: int, name: str) -> None:
        """Sends a signal to a process, by the number that it has on its host."""
        self._machines[host].run("sh", "-c", f"kill -{name} {process}")


@contextmanager
def container_hosts(folder: Path) -> Iterator[ContainerHosts]:
    """Yields hosts that see a folder; skips the test where there is no container engine."""
    names = [f"host{number}" for number in range(HOSTS)]
    with hosts(image("hosts"), names, folder) as (machines, gateway):
        yield ContainerHosts(machines, gateway)
