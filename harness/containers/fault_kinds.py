"""Makes each kind of fault and takes it back.

The kernel's netem, which delays and loses packets, is not in every kernel: a token bucket (tbf)
makes a link slow, iptables' `statistic` makes it lossy, and a process makes it late (`late.py`).
"""

from __future__ import annotations

import ipaddress
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CalledProcessError

from harness.containers.composed import inspect
from harness.containers.engine import quietly, run
from harness.containers.fault_plan import Fault
from harness.containers.fault_system import FaultSystem, state
from harness.containers.late import late
from harness.service.service_harness import wait_until

LOST = "0.1"
RATE = "1mbit"
LATE_S = 0.1
ROOM_BYTES = 24 * 2**20
"""What a container may take beyond its memory, before the kernel kills."""
PLENTY = "16g"
KILLED_WITHIN_S = FROZEN_WITHIN_S = 60.0
HOG = ("tail", "/dev/zero")
"""Takes memory until there is none."""
KILLED_FIRST = "1000"
"""What makes the kernel kill a process before the hog: its `oom_score_adj`."""
FILL = "dd if=/dev/zero of={0} bs=64k 2>/dev/null; dd if=/dev/zero bs=1k 2>/dev/null >>{0}; exit 0"
DISKS = {"postgres": "/disks/postgres/fill", "agent": "/disks/agent/fill"}


@dataclass(frozen=True)
class Made:
    """A fault in a system, and the container that it is made in."""

    system: FaultSystem
    fault: Fault
    lasting: ExitStack = field(default_factory=ExitStack)
    """What ends when the fault is taken back."""

    @property
    def container(self) -> str:
        return self.system.container(self.fault.target, self.fault.replica)

    def make(self) -> None:
        """Makes the fault; those that happen at once have happened afterwards."""
        _MAKE[self.fault.kind](self)

    def heal(self) -> None:
        """Takes back what lasts. What a container lost by restarting needs no healing."""
        if heal := _HEAL.get(self.fault.kind):
            heal(self)

    def in_network(self, *argv: str) -> bool:
        """Runs a command in the container's network. Returns whether it succeeded."""
        return quietly("nsenter", "--target", str(_pid(self.container)), "--net", *argv)


def _pid(container: str) -> int:
    return int(state(container)["Pid"])


def _kill(made: Made) -> None:
    # Not `docker kill`: the engine would take it for a stop, and not start the container again.
    before = state(made.container)
    with suppress(ProcessLookupError):
        if before["Pid"]:
            os.kill(before["Pid"], signal.SIGKILL)
    wait_until(
        lambda: state(made.container)["StartedAt"] != before["StartedAt"],
        "the killed container is started again",
        KILLED_WITHIN_S + 60,
    )


def _pause(made: Made) -> None:
    # A process that waits for its disk in the kernel cannot be frozen: the engine then gives up.
    container = made.container
    wait_until(
        lambda: quietly("docker", "pause", container) or state(container)["Paused"],
        "the container is frozen", FROZEN_WITHIN_S,
    )  # fmt: skip


def _unpause(made: Made) -> None:
    run("docker", "unpause", made.container)


def _cut(made: Made) -> None:
    run("docker", "network", "disconnect", made.system.network(made.fault.network), made.container)


def _join(made: Made) -> None:
    network = made.system.network(made.fault.network)
    run("docker", "network", "connect", "--alias", made.fault.target, network, made.container)


def _drop(made: Made, *match: str) -> None:
    for chain, way in (("INPUT", "-i"), ("OUTPUT", "-o")):
        rule = ("iptables", "-A", chain, way, "eth+", *match, "-j", "DROP")
        assert made.in_network(*rule), rule


def _silence(made: Made) -> None:
    _drop(made)


def _slow(made: Made) -> None:
    for link in _links(made):
        bucket = ("root", "tbf", "rate", RATE, "burst", "16kb", "latency", "400ms")
        assert made.in_network("tc", "qdisc", "add", "dev", link, *bucket), link
    _drop(made, "-m", "statistic", "--mode", "random", "--probability", LOST)


def _clear(made: Made) -> None:
    if not _pid(made.container):
        return
    for chain in ("INPUT", "OUTPUT"):
        made.in_network("iptables", "-F", chain)
    for link in _links(made):
        made.in_network("tc", "qdisc", "del", "dev", link, "root")


def _delay(made: Made) -> None:
    delays = {}
    for endpoint in inspect(made.container)["NetworkSettings"]["Networks"].values():
        own = f"{endpoint['IPAddress']}/{endpoint['IPPrefixLen']}"
        delays[str(ipaddress.ip_interface(own).network)] = LATE_S
    made.lasting.enter_context(late(_pid(made.container), delays))


def _in_time(made: Made) -> None:
    made.lasting.close()


def _links(made: Made) -> list[str]:
    pid = str(_pid(made.container))
    listed = run("nsenter", "--target", pid, "--net", "ip", "-brief", "link")
    return [line.split("@")[0] for line in listed.splitlines() if line.startswith("eth")]


def _fill(made: Made) -> None:
    target = made.fault.target
    if target == "redis":
        run("docker", "exec", made.container, "redis-cli", "config", "set", "maxmemory", "1")
    elif target in DISKS:
        made.system.composed.execute("disks", "sh", "-c", FILL.format(DISKS[target]))
    else:
        run("docker", "exec", made.container, "sh", "-c", FILL.format("/tmp/fill"))


def _empty(made: Made) -> None:
    target = made.fault.target
    if target == "redis":
        run("docker", "exec", made.container, "redis-cli", "config", "set", "maxmemory", "256mb")
    elif target in DISKS:
        made.system.composed.execute("disks", "rm", "-f", DISKS[target])
    else:
        quietly("docker", "exec", made.container, "rm", "-f", "/tmp/fill")


def _starve(made: Made) -> None:
    container = made.container
    began, kills = state(container)["StartedAt"], _kernel_kills(container)
    limit = str(_used_bytes(container) + ROOM_BYTES)
    run("docker", "update", "--memory", limit, "--memory-swap", limit, container)
    for pid in _processes(container):
        with suppress(OSError):
            Path(f"/proc/{pid}/oom_score_adj").write_text(KILLED_FIRST)
    try:
        run("docker", "exec", "--detach", container, *HOG)
        wait_until(
            lambda: (
                state(container)["StartedAt"] != began or _kernel_kills(container, kills) > kills
            ),
            "the kernel has killed for want of memory",
            KILLED_WITHIN_S,
        )
    finally:
        _end_hogs(container)
        enough = ("docker", "update", "--memory", PLENTY, "--memory-swap", PLENTY, container)
        wait_until(lambda: quietly(*enough), "the container has memory again", KILLED_WITHIN_S)


def _used_bytes(container: str) -> int:
    return int(_in_cgroup(container, "memory.usage_in_bytes", "memory.current"))


def _kernel_kills(container: str, unknown: int = 0) -> int:
    """Returns how often the kernel has killed in a container; `unknown` while it is down."""
    try:
        text = _in_cgroup(container, "memory.oom_control", "memory.events")
    except CalledProcessError:
        return unknown
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))


def _in_cgroup(container: str, first_version: str, second_version: str) -> str:
    paths = f"/sys/fs/cgroup/memory/{first_version} /sys/fs/cgroup/{second_version}"
    cat = f"for file in {paths}; do if [ -e $file ]; then exec cat $file; fi; done"
    return run("docker", "exec", container, "sh", "-c", cat)


def _end_hogs(container: str) -> None:
    with suppress(CalledProcessError, ProcessLookupError):
        for pid, name in _processes(container).items():
            if name == "tail":
                os.kill(pid, signal.SIGKILL)


def _processes(container: str) -> dict[int, str]:
    rows = run("docker", "top", container, "-eo", "pid,comm").splitlines()[1:]
    return {int(pid): name for pid, name in (row.split(maxsplit=1) for row in rows)}


_MAKE: dict[str, Callable[[Made], None]] = {
    "kill": _kill, "pause": _pause, "cut": _cut, "silent": _silence, "slow": _slow, "late": _delay,
    "full": _fill, "memory": _starve,
}  # fmt: skip
_HEAL: dict[str, Callable[[Made], None]] = {
    "pause": _unpause, "cut": _join, "silent": _clear, "slow": _clear, "late": _in_time,
    "full": _empty,
}  # fmt: skip
