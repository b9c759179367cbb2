"""Parts of a run, each in a process of its own and within its time.

A kernel that fails leaves a process's CUDA context unusable, and a compiler may hang; so no part
can harm another. What a part has told before it failed or was stopped counts.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from time import monotonic, time
from typing import Any

PRELOAD = [
    "torch", "torch._dynamo", "timm", "transformers.models.auto.modeling_auto",
    "shardwise.capture.capture", "shardwise.advise", "shardwise.measure.operators",
]  # fmt: skip
"""What processes on a CPU begin with. Those on a GPU import it again: one of these modules may ask
for the GPU, and CUDA does not outlive a fork."""
OVERTIME_S = 3.0
"""How much longer than its limit a part may take to notice it."""

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


def run_part(part: Part, setting: object, limit_s: float, on_gpu: bool) -> Outcome:
    """Runs a part and returns its outcome; raises nothing that the part raises."""
    context: Any = multiprocessing.get_context("spawn" if on_gpu else "forkserver")
    context.set_forkserver_preload(PRELOAD)
    mine, theirs = context.Pipe(duplex=False)
    arguments = (part.run, setting, monotonic() + limit_s, theirs)
    process = context.Process(target=_serve, args=arguments, name=part.name, daemon=True)
    outcome = Outcome(part.name, time())
    process.start()
    theirs.close()
    try:
        _listen(mine, outcome, limit_s)
        process.join(OVERTIME_S)
        if process.exitcode and not outcome.error:
            outcome.error = f"its process ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()
        outcome.ended = time()
    return outcome


def _listen(told: Connection, outcome: Outcome, limit_s: float) -> None:
    """Takes what a part tells, until it ends or its time is over."""
    end, doing = monotonic() + limit_s + OVERTIME_S, "starting"
    try:
        while told.poll(max(end - monotonic(), 0.0)):
            kind, content = told.recv()
            if kind == "doing":
                doing = content
            elif kind == "left out":
                outcome.left_out.append(content)
            elif kind == "error":
                outcome.error = content
            else:
                outcome.rows.setdefault(kind, []).append(content)
    except (EOFError, ConnectionError):
        return
    outcome.error = f"stopped after {limit_s:.0f} s, while {doing}"


def _serve(
    run: Callable[[Any, Work], None], setting: Any, end: float, connection: Connection
) -> None:
    """Runs a part in its process."""
    try:
        run(setting, Work(end, connection))
    # Whatever it is, it must not keep the other parts from running.
    except Exception as error:
        connection.send(("error", one_line(error)))


def one_line(error: BaseException) -> str:
    """Returns the kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
