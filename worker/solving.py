"""One computing child process: start, events, cancellation, end. Knows no database."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

from service.base.problems import failure
from shardwise.child_process import piped
from shardwise.documents.questions import Gpus

ERRORS_KEPT = 4000
"""Characters of the child's standard error that are kept for the log and the diagnosis."""

_OUT_OF_MEMORY = (
    "memory allocation of",
    "failed to spawn thread",
    "ThreadPoolBuildError",  # no room for the stack of a thread
    "MemoryError",
    # What Python says where an allocation fails inside it.
    "SystemError: error return without exception set",
    "Cannot allocate memory",
)


@dataclass(frozen=True)
class Progress:
    """Progress: a stage and the fraction that is done."""

    stage: str
    progress: float


@dataclass(frozen=True)
class Answered:
    """The answer's bytes; `answer_id` is a plan's own id."""

    content: bytes
    answer_id: str | None


@dataclass(frozen=True)
class Failed:
    """The reason, as a job records it."""

    error: dict[str, Any]


@dataclass(frozen=True)
class Stopped:
    """The child has stopped because it was asked to."""


@dataclass(frozen=True)
class Lost:
    """The child ended without a word: killed, or crashed."""

    status: int
    errors: str


@dataclass(frozen=True)
class PointKnown:
    """A point of a curve: the bytes of the curve of it alone."""

    content: bytes


@dataclass(frozen=True)
class PointUnknown:
    """A point of a curve that met a limit, as a job that failed would have it."""

    error: dict[str, Any]


End = Answered | Failed | Stopped | Lost
Event = Progress | End | PointKnown | PointUnknown


class Child:
    """A computing process. `next` gives its events; the last one is not `Progress`.

    Of a curve it computes the points that `compute` names; each takes at most `count_s` seconds.
    """

    def __init__(
        self,
        question: dict[str, Any],
        graph: bytes,
        memory_bytes: int,
        threads: int,
        gives_way: int,
        count_s: float | None = None,
    ) -> None:
        request = {
            "question": question,
            "graph_bytes": len(graph),
            "memory_bytes": memory_bytes,
            "threads": threads,
            "gives_way": gives_way,
            "count_s": count_s,
            "parent": os.getpid(),
        }
        self._memory_bytes = memory_bytes
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._errors = ""
        self._stderr = threading.Thread(target=self._read_errors, daemon=True)
        self._stderr.start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        # The child reads once it has imported what it needs: the lease
        # has to be renewed meanwhile.
        self._said: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._said.put(json.dumps(request).encode() + b"\n" + graph)
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def next(self, timeout_s: float) -> Event | None:
        """Returns the next event, or None when there is none within `timeout_s`."""
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def cancel(self) -> None:
        """Asks the child to stop; `Stopped` follows."""
        self._said.put(b"cancel\n")

    def compute(self, place: Gpus, done: int, of: int) -> None:
        """Names the next point of a curve, of `of`, of which `done` are known."""
        turn = {"place": place, "done": done, "of": of}
        self._said.put(json.dumps(turn).encode() + b"\n")

    def over(self, error: dict[str, Any]) -> End | None:
        """Returns what comes of a job that has met a limit."""
        return Failed(error)

    def kill(self) -> None:
        """Kills the child and waits until it has ended."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._said.put(b"")
        self._writer.join()
        self._reader.join()
        self._stderr.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                self._close(stream)

    @staticmethod
    def _close(stream: Any) -> None:
        try:
            stream.close()
        except BrokenPipeError:
            return

    def _write(self) -> None:
        stdin = piped(self._process.stdin)
        while data := self._said.get():
            try:
                stdin.write(data)
                stdin.flush()
            except (BrokenPipeError, ValueError):
                return  # it has ended: the reader says how

    def _read_errors(self) -> None:
        for line in piped(self._process.stderr):
            self._errors = (self._errors + line.decode("utf-8", "replace"))[-ERRORS_KEPT:]

    def _read(self) -> None:
        out = piped(self._process.stdout)
        for line in out:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if "answer" in said:
                content = out.read(said["answer"])
                if len(content) == said["answer"]:
                    self._events.put(Answered(content, said["id"]))
                    return
                break
            if "point" in said:
                content = out.read(said["point"])
                if len(content) < said["point"]:
                    break
                self._events.put(PointKnown(content))
                continue
            if "unknown" in said:
                self._events.put(PointUnknown(said["unknown"]))
                continue
            if "failure" in said:
                self._events.put(Failed(said["failure"]))
                return
            if "cancelled" in said:
                self._events.put(Stopped())
                return
            self._events.put(Progress(said["stage"], said["progress"]))
        self._events.put(self._diagnosis(self._process.wait()))

    def _diagnosis(self, status: int) -> Event:
        self._stderr.join()
        if any(sign in self._errors for sign in _OUT_OF_MEMORY):
            text = f"more than {self._memory_bytes} bytes were needed"
            return Failed(failure("memory-limit", text))
        if status > 0:
            last = self._errors.strip().rpartition("\n")[2]
            return Failed(failure("defect", f"the solver ended with status {status}: {last}"))
        return Lost(status, self._errors)
