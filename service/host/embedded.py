"""The embedded mode: one command starts broker and worker, and ends them when it ends."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from service.base.settings import Settings, environment_of_child
from service.host.broker import broker_command, socket_folder
from service.store import leases
from service.store.database import Database
from shardwise.child_process import ending_with_us
from shardwise.errors import BadInput, ShardwiseError

log = logging.getLogger(__name__)
STARTS_WITHIN_S = 20.0
LONGEST_PAUSE_S = 10.0
INFO_FILE = "service.json"
LONGEST_LINE = 4096


class Lock:
    """Reserves the data directory for one service; the lock ends with the process."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: IO[str] = (folder / "lock").open("a+")
        except OSError as error:
            raise BadInput(
                (error.strerror or str(error)).lower(),
                file=str(folder),
                field="data_dir",
                expected="a folder that can be written",
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(
                f"another service uses this folder{_whose(folder)}",
                file=str(folder),
                field="data_dir",
                expected="one service for each folder; --data-dir names another",
            ) from None


def _whose(folder: Path) -> str:
    try:
        info = json.loads((folder / INFO_FILE).read_text())
        return f" ({info['url']}, process {info['pid']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


class Part(threading.Thread):
    """A program that is kept running: restarted when it ends, with growing pauses.

    The thread lives as long as the program may, because the kernel binds the program to it.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], list[str]],
        env: dict[str, str],
        say: Callable[[str], None] | None = None,
    ) -> None:
        """`say` gets each line of its output; without it the program writes our logs' lines."""
        super().__init__(name=name, daemon=True)
        self._command = command
        self._env = env
        self._say = say
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.failed: str | None = None

    def run(self) -> None:
        """Runs the program until stopped."""
        pause_s = 0.25
        while not self._stopping.is_set():
            started = monotonic()
            try:
                self._process = subprocess.Popen(
                    ending_with_us(self._command()),
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stderr.fileno() if self._say is None else subprocess.PIPE,
                    stderr=None if self._say is None else subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                self.failed = str(error)
                return
            if self._say is not None and self._process.stdout is not None:
                with self._process.stdout as output:
                    while line := output.readline(LONGEST_LINE):
                        self._say(line.decode(errors="replace").rstrip())
            status = self._process.wait()
            if self._stopping.is_set():
                return
            pause_s = 0.25 if monotonic() - started > 30 else min(2 * pause_s, LONGEST_PAUSE_S)
            log.error("the %s ended with status %s, starting it again", self.name, status)
            self._stopping.wait(pause_s)

    @property
    def pid(self) -> int | None:
        """The program's process, when there is one."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def stop(self, within_s: float) -> None:
        """Asks the program to end, and kills it after `within_s`."""
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(within_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.join(within_s)


def _relay(line: str) -> None:
    """Logs a line of the broker; advice about the host's memory is logged at debug level."""
    _, mark, text = line.partition(" # ")
    advice = "overcommit_memory" in line
    log.log(logging.DEBUG if advice else logging.WARNING, "broker: %s", text if mark else line)


class Embedded:
    """Broker and worker of one `serve`."""

    def __init__(self, settings: Settings) -> None:
        self.folder = settings.folder
        self._socket = socket_folder(self.folder) / "broker.sock"
        self.settings = replace(settings, redis_url=f"unix://{self._socket}")
        env = {**environment_of_child(os.environ, self.settings), "PYTHONSAFEPATH": "1"}
        self._broker = Part("broker", lambda: broker_command(self._socket), env, _relay)
        self._worker = Part("worker", lambda: [sys.executable, "-P", "-m", "worker"], env)

    def start(self, database: Database) -> None:
        """Starts both. Jobs that were running when the last service ended are queued again."""
        self._socket.unlink(missing_ok=True)
        if not self.settings.database_url:
            # The folder is locked, so no worker can be computing them; elsewhere leases decide.
            with database.write() as session:
                freed = leases.free_all(session)
            if freed:
                log.info("resuming jobs", extra={"jobs": len(freed)})
        self._broker.start()
        until = monotonic() + STARTS_WITHIN_S
        while not self._answers():
            if monotonic() > until or self._broker.failed:
                reason = self._broker.failed or "it does not answer"
                self.stop()
                raise ShardwiseError(f"the broker could not be started: {reason}")
            sleep(0.02)
        self._worker.start()

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(1.0)
                client.connect(str(self._socket))
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def stop(self) -> None:
        """Stops both, the worker first: it gives back unfinished jobs."""
        self._worker.stop(self.settings.stop_grace_s + 10.0)
        self._broker.stop(5.0)
        self._socket.unlink(missing_ok=True)
        if self._socket.parent != self.folder / "run":
            self._socket.parent.rmdir()

    def pids(self) -> dict[str, int | None]:
        """Returns the processes that were started."""
        return {"broker": self._broker.pid, "worker": self._worker.pid}
