"""Parts of a run, each within its time, in a process that ends with the first that fails.

A kernel that fails leaves a process's CUDA context unusable, and a compiler may hang; so no part
can harm another. What a part has told before it failed or was stopped counts.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from time import monotonic, time
from typing import Any, Self

PRELOAD = [
    "torch", "torch._dynamo", "timm", "transformers.models.auto.modeling_auto",
    "shardwise.capture.capture", "shardwise.answers", "shardwise.measure.operators",
]  # fmt: skip
"""What processes on a CPU begin with. Those on a GPU import it again: one of these modules may ask
for the GPU, and CUDA does not outlive a fork."""
OVERTIME_S = 3.0
"""How much longer than its limit a part may take to notice it."""
LEFT_BYTES = 2**27
"""What a part may leave allocated, which the next one's peaks would count: workspaces."""

Row = dict[str, Any]


class Work:
    """What a part is given: its time, and whom to tell."""

    def __init__(self, end: float, connection: Connection) -> None:
        self._end, self._connection = end, connection

    @property
    def left_s(self) -> float:
        """Seconds left, negative beyond the limit."""
        return self._end - monotonic()

    def tell(self, kind: str, content: Row | str) -> None:
        """Hands out a row of a kind; of `doing` what comes next, of `left out` what does not."""
        self._connection.send((kind, content))


@dataclass(frozen=True)
class Part:
    """`run` must be importable by name; `share` is its share of the time, about seconds of 600."""

    name: str
    share: float
    run: Callable[[Any, Work], None]


@dataclass
class Outcome:
    """What a part told: rows by kind, and its error in one line. `began` and `ended` are `time()`,
    `power` what a GPU did meanwhile."""

    name: str
    began: float
    ended: float = 0.0
    error: str = ""
    left_out: list[str] = field(default_factory=list)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    power: Row = field(default_factory=dict)


class Runner:
    """Runs parts one after another in one process, for importing torch takes as long as a part.

    After a part that failed or was stopped, or that left memory on the GPU, the next one begins in
    a new process.
    """

    def __init__(self, on_gpu: bool) -> None:
        self._context: Any = multiprocessing.get_context("spawn" if on_gpu else "forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        self._process: Any = None
        self._told: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def run(self, part: Part, setting: object, limit_s: float) -> Outcome:
        """Runs a part and returns its outcome; raises nothing that the part raises."""
        outcome = Outcome(part.name, time())
        is_fit = False
        try:
            if self._process is None:
                self._start()
            self._told.send((part.run, setting, monotonic() + limit_s))
            is_fit = self._listen(outcome, limit_s)
        finally:
            if not is_fit:
                self._end(outcome)
            outcome.ended = time()
        return outcome

    def _start(self) -> None:
        self._told, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def _end(self, outcome: Outcome | None = None) -> None:
        if self._process is None:
            return
        if outcome is not None:
            self._process.join(OVERTIME_S)
            if self._process.exitcode and not outcome.error:
                outcome.error = f"its process ended with {self._process.exitcode}"
        self._process.kill()
        self._process.join()
        self._told.close()
        self._process = None

    def _listen(self, outcome: Outcome, limit_s: float) -> bool:
        """Takes what a part tells, until it ends or its time is over; returns whether another part
        can follow in its process."""
        end, doing = monotonic() + limit_s + OVERTIME_S, "starting"
        try:
            while self._told.poll(max(end - monotonic(), 0.0)):
                kind, content = self._told.recv()
                if kind == "ended":
                    return bool(content)
                if kind == "doing":
                    doing = content
                elif kind == "left out":
                    outcome.left_out.append(content)
                elif kind == "error":
                    outcome.error = content
                else:
                    outcome.rows.setdefault(kind, []).append(content)
        except (EOFError, ConnectionError):
            return False
        outcome.error = f"stopped after {limit_s:.0f} s, while {doing}"
        return False


def _serve(connection: Connection) -> None:
    """Runs parts in their process, until one fails or leaves memory behind."""
    is_fit = True
    while is_fit:
        try:
            run, setting, end = connection.recv()
        except EOFError:
            return
        try:
            run(setting, Work(end, connection))
        # Whatever it is, it must not keep the other parts from running.
        except Exception as error:
            connection.send(("error", one_line(error)))
            is_fit = False
        is_fit = is_fit and _left_bytes() < LEFT_BYTES
        connection.send(("ended", is_fit))


def _left_bytes() -> int:
    """Returns what is allocated on the GPU when a part is over and what it cached is freed."""
    import torch

    gc.collect()
    if not torch.cuda.is_initialized():
        return 0
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_allocated())


def one_line(error: BaseException) -> str:
    """Returns the kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
