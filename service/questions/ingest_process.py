"""Runs the process that reads one upload: bounded in memory, time and output, and killable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from service.base.problems import Problem
from service.base.settings import Settings

POLL_S = 0.05
FOLDER = "shardwise-upload-"
_OWN = ("SHARDWISE_", "DATABASE_URL", "REDIS_URL")
"""Variables that a parser of untrusted files does not get: they hold addresses and secrets."""


@dataclass
class Reading:
    """One reading of an upload, which may be stopped from another thread."""

    stopped: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Ends the process, now or as soon as it is started."""
        self.stopped.set()

    def read(self, body: bytes, request: dict[str, Any], settings: Settings) -> bytes:
        """Returns the process's output for this body.

        Raises `Problem` if it exceeded its limits or was stopped, or the problem that it reports.
        """
        try:
            with tempfile.TemporaryDirectory(prefix=FOLDER) as folder:
                return self._read(Path(folder), body, request, settings)
        except OSError as error:
            raise Problem(
                "unavailable", f"uploads cannot be read now: {error.strerror}",
                headers={"Retry-After": "5"},
            ) from error  # fmt: skip

    def _read(
        self, folder: Path, body: bytes, request: dict[str, Any], settings: Settings
    ) -> bytes:
        (folder / "upload").write_bytes(body)
        request = {
            **request,
            "folder": str(folder),
            "parent": os.getpid(),
            "memory_bytes": settings.ingest_memory_bytes,
            "time_s": settings.ingest_time_s,
            "max_file_bytes": settings.max_body_bytes,
        }
        status = self._run(
            [sys.executable, "-P", "-m", "service.questions.ingest_child"], request, settings
        )
        answer = folder / "answer"
        if status == 2:
            problem = json.loads(answer.read_bytes())
            raise Problem(problem.pop("slug"), problem.pop("detail"), **problem)
        if status != 0:
            raise Problem(
                "too-complex",
                f"reading it needed more than {settings.ingest_memory_bytes} bytes of memory, gave "
                f"more than {settings.max_body_bytes} or ended its process (status {status})",
            )
        return answer.read_bytes()

    def _run(self, command: list[str], request: dict[str, Any], settings: Settings) -> int:
        """Returns the exit status; the process and what it started have ended."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(_OWN)}
        until = monotonic() + settings.ingest_time_s
        with subprocess.Popen(
            [*command, json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**inherited, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        ) as process:
            try:
                while True:
                    try:
                        return process.wait(POLL_S)
                    except subprocess.TimeoutExpired:
                        self._require_time(until, settings)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def _require_time(self, until: float, settings: Settings) -> None:
        if self.stopped.is_set():
            raise Problem("bad-request", "the client went away")
        if monotonic() > until:
            detail = f"reading it took more than {settings.ingest_time_s:g} s"
            raise Problem("too-complex", detail)
