"""A service that speaks the agents' protocol and can be made to fail, and real agents of it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from agent.processes import marked
from agent.sweep import AGENT_MARKER

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0


def wait_for(what: Callable[[], Any], message: str, patience_s: float = PATIENCE_S) -> Any:
    """Returns the first true value of `what`; AssertionError with `message` if there is none."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        if value := what():
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {patience_s:g} s: {message}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class FakeService:
    """Enough of the service for one agent at a time, with faults to switch on.

    `fault`: None, "drop" (connections are cut before an answer), "error" (500), "revoked" (401).
    `deaf`: calls that are handled but whose answers are cut off.
    """

    def __init__(self, lease_s: float = 5.0, heartbeat_s: float = 0.3) -> None:
        self.lease_s = lease_s
        self.heartbeat_s = heartbeat_s
        self.token = "swe_right"
        self.fault: str | None = None
        self.deaf: set[str] = set()
        self.refuse_reports: Callable[[dict[str, Any]], str | None] = lambda report: None
        self.agent_id = f"agent_{uuid.uuid4().hex[:12]}"
        self.key = f"swk_{uuid.uuid4().hex}"
        self.enrolments: list[dict[str, Any]] = []
        self.heartbeats: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.received: list[str] = []
        self.stop_ids: set[str] = set()
        self.work: queue.Queue[dict[str, Any]] = queue.Queue()
        self._server: ThreadingHTTPServer | None = None
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        service = self

        class Handler(_Handler):
            fake = service

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        assert self._server is not None
        server, self._server = self._server, None
        server.shutdown()
        server.server_close()

    def serves(self, server: object) -> bool:
        """Returns whether a server is up: connections outlive their listening socket."""
        return server is self._server

    def enrol(self, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if document["token"] != self.token:
            return 401, {"type": "urn:shardwise:problem:enrolment-refused", "detail": "refused"}
        self.token = ""
        self.enrolments.append(document)
        return 201, {
            "id": self.agent_id,
            "key": self.key,
            "lease_s": self.lease_s,
            "heartbeat_s": self.heartbeat_s,
        }

    def beat(self, document: dict[str, Any]) -> dict[str, Any]:
        self.heartbeats.append(document)
        stop = [job["assignment"] for job in document["jobs"] if job["assignment"] in self.stop_ids]
        return {"lease_s": self.lease_s, "stop": stop, "inventory_wanted": False}

    def take_reports(self, document: dict[str, Any]) -> dict[str, Any]:
        accepted, refused = [], []
        for report in document["reports"]:
            self.received.append(report["id"])
            if reason := self.refuse_reports(report):
                refused.append({"id": report["id"], "reason": reason})
                continue
            if report["id"] not in {known["id"] for known in self.reports}:
                self.reports.append(report)
            accepted.append(report["id"])
        return {"accepted": accepted, "refused": refused}

    # What tests ask

    def give(self, entry: str, *arguments: str, **fields: Any) -> dict[str, Any]:
        assignment = {
            "schema": "shardwise.assignment/1",
            "id": f"asg_{uuid.uuid4().hex[:12]}",
            "launch": "lnc_1",
            "token": uuid.uuid4().hex,
            "kind": "run",
            "entry_point": entry,
            "arguments": list(arguments),
            "environment": {},
            "nodes": 1,
            "node_rank": 0,
            "ranks_per_node": 1,
            "rendezvous": {"id": "lnc_1", "host": "127.0.0.1", "port": free_port()},
            "memory_limit_bytes": 0,
            "time_limit_s": 0,
            "lease_s": self.lease_s,
            **fields,
        }
        self.work.put(assignment)
        return assignment

    def of(self, assignment: dict[str, Any], kind: str) -> list[dict[str, Any]]:
        return [
            report
            for report in list(self.reports)
            if report["assignment"] == assignment["id"] and report["kind"] == kind
        ]

    def states(self, assignment: dict[str, Any]) -> list[str]:
        return [report["state"] for report in self.of(assignment, "state")]

    def end_of(self, assignment: dict[str, Any], patience_s: float = PATIENCE_S) -> dict[str, Any]:
        ends = {"done", "failed", "stopped", "lost"}

        def ended() -> dict[str, Any] | None:
            return next((r for r in self.of(assignment, "state") if r["state"] in ends), None)

        report: dict[str, Any] = wait_for(ended, f"end of {assignment['id']}", patience_s)
        return report

    def lines(self, assignment: dict[str, Any], rank: int = 0, stream: str = "stdout") -> list[str]:
        return [
            line
            for report in self.of(assignment, "log")
            if report["rank"] == rank and report["stream"] == stream
            for line in report["lines"]
        ]

    def says(self, assignment: dict[str, Any], text: str, rank: int = 0) -> str:
        def line_with_text() -> str | None:
            lines = self.lines(assignment, rank)
            return next((line for line in lines if line.startswith(text)), None)

        return str(wait_for(line_with_text, f"{text!r} from rank {rank}"))


class _Handler(BaseHTTPRequestHandler):
    fake: FakeService
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        return

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.fake.fault == "drop" or not self.fake.serves(self.server):
            self._cut()
            return
        if self.fake.fault == "error":
            self._answer(500, {"detail": "the database is away"})
            return
        call = self.path.partition("?")[0].rpartition("/")[2]
        known = self.headers.get("authorization") == f"Bearer {self.fake.key}"
        if call != "agents" and (not known or self.fake.fault == "revoked"):
            self._answer(401, {"detail": "a valid key is needed"})
            return
        status, answer = self._handle(call, json.loads(body) if body else None)
        if call in self.fake.deaf:
            self._cut()
            return
        self._answer(status, answer)

    def _handle(self, call: str, document: Any) -> tuple[int, dict[str, Any]]:
        if call == "agents":
            return self.fake.enrol(document)
        if call == "heartbeat":
            return 200, self.fake.beat(document)
        if call == "reports":
            return 200, self.fake.take_reports(document)
        assert call == "assignments", call
        try:
            assignment = self.fake.work.get(timeout=0.5)
        except queue.Empty:
            return 200, {"assignment": None}
        # As the service: a node that has said that it drains, after it asked too, gets nothing.
        if self.fake.heartbeats and self.fake.heartbeats[-1]["draining"]:
            self.fake.work.put(assignment)
            assignment = None
        return 200, {"assignment": assignment}

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        content = json.dumps(document).encode()
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)


class RunningAgent:
    """`shardwise agent` as a process of its own."""

    def __init__(
        self, service: FakeService, folder: Path, config: str = "", start: bool = True
    ) -> None:
        self.service = service
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "agent.log"
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text("swe_right\n")
        (folder / "agent.toml").write_text(config)
        self.process: subprocess.Popen[bytes] | None = None
        if start:
            self.start()

    def command(self, *more: str) -> list[str]:
        return [
            sys.executable, "-P", "-m", "agent",
            "--server", self.service.url,
            "--data-dir", str(self.data),
            "--config", str(self.folder / "agent.toml"),
            "--token-file", str(self.folder / "token"),
            "--name", "host-a",
            "--log-format", "json",
            *more,
        ]  # fmt: skip

    def start(self, wait: bool = True, **popen: Any) -> None:
        beats = len(self.service.heartbeats)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "SECRET_OF_THE_HOST": "s3cret"}
        with self.log.open("ab") as stream:
            self.process = subprocess.Popen(
                self.command(), stderr=stream, stdout=stream, env=environment, cwd=ROOT, **popen
            )
        if wait:
            wait_for(
                lambda: len(self.service.heartbeats) > beats or self.process.poll() is not None,
                "a heartbeat",
            )
            assert self.process.poll() is None, self.text()

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, patience_s: float = 60.0) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(patience_s)

    def processes(self) -> set[Any]:
        """Returns the living processes that carry this agent's marker."""
        return marked(AGENT_MARKER, self.service.agent_id)

    def assert_no_orphan(self, patience_s: float = PATIENCE_S) -> None:
        wait_for(lambda: not self.processes(), "no process with the marker", patience_s)


@contextlib.contextmanager
def agent_of(service: FakeService, folder: Path, config: str = "") -> Iterator[RunningAgent]:
    running = RunningAgent(service, folder, config, start=False)
    try:
        running.start()
        yield running
        running.stop()
        running.assert_no_orphan()
    finally:
        if running.process is not None and running.process.poll() is None:
            running.process.kill()
        for process in running.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
