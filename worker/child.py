"""The process that computes one answer: reads the question, writes progress and the answer.

Standard input: one line of JSON (question, limits), then the graph's canonical JSON of the length
named there, then nothing until the parent says `cancel` or goes away. Standard output: lines of
JSON: `{"stage", "progress"}` and at last one of `{"answer": BYTES}` followed by that many bytes,
`{"failure": …}` or `{"cancelled": true}`. It holds no database and no broker, so it can be killed
at any moment.

Of a curve it computes the points that the parent names, in lines of JSON `{"place", "done", "of"}`.
It says for each `{"point": BYTES}` followed by that many bytes, or `{"unknown": FAILURE}`;
the parent ends it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any, BinaryIO

from service.base.background import give_way
from shardwise.child_process import die_with_parent, limit_process

REPORT_EVERY_S = 0.2
STACK_BYTES = 2**26


class Listener(threading.Thread):
    """Reads what the parent says; without a parent the process ends."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(daemon=True)
        self.cancelled = threading.Event()
        self._turns: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stream = stream

    def run(self) -> None:
        """Reads until the stream ends."""
        for line in iter(self._stream.readline, b""):
            if line.strip() == b"cancel":
                self.cancelled.set()
                self._turns.put(None)
            else:
                self._turns.put(line)
        os._exit(1)

    def turns(self) -> Iterator[dict[str, Any]]:
        """Yields what the parent asks for, until it cancels."""
        while (line := self._turns.get()) is not None:
            yield json.loads(line)


class Progress:
    """The library's progress callback: reports at a bounded rate. Returns False when cancelled."""

    def __init__(self, listener: Listener, out: BinaryIO) -> None:
        self._listener = listener
        self._out = out
        self._reported_at = 0.0

    def __call__(self, stage: str, fraction: float) -> bool:
        if monotonic() - self._reported_at >= REPORT_EVERY_S:
            say(self._out, {"stage": stage, "progress": min(max(fraction, 0.0), 1.0)})
            self._reported_at = monotonic()
        return not self._listener.cancelled.is_set()


def say(out: BinaryIO, document: dict[str, Any]) -> None:
    """Writes one line to the parent."""
    out.write(json.dumps(document).encode() + b"\n")
    out.flush()


def main() -> int:
    """Computes one answer. Returns the exit status."""
    source, out = sys.stdin.buffer, sys.stdout.buffer
    request = json.loads(source.readline())
    # On other systems than Linux the listener's end of file does this.
    die_with_parent(request["parent"])
    give_way(request["gives_way"])
    limit = request["memory_bytes"]
    limit_process()

    # Imported under no limit: what fails for lack of memory is then the search, and says so.
    import msgspec

    from service.base.problems import failure, failure_of
    from service.questions.question import answer
    from shardwise.errors import Cancelled, ShardwiseError
    from shardwise.graph import graph_from_json
    from worker.curve_child import Turn, compute_points

    content = source.read(request["graph_bytes"])
    listener = Listener(source)
    listener.start()
    limit_process(memory_bytes=limit)
    try:
        progress = Progress(listener, out)
        graph = graph_from_json(content)
        if request["question"]["kind"] == "curve":
            turns = (Turn(**turn) for turn in listener.turns())
            compute_points(request, graph, turns, progress, out, say)
            raise Cancelled
        document = answer(request["question"], graph, progress, request["threads"])
        # A search that was cancelled with points in hand returns them, which is not
        # the requested answer.
        if listener.cancelled.is_set():
            raise Cancelled
        data = msgspec.json.encode(document)
    except Cancelled:
        say(out, {"cancelled": True})
    except MemoryError:
        say(out, {"failure": failure("memory-limit", f"more than {limit} bytes were needed")})
    except ShardwiseError as error:
        say(out, {"failure": failure_of(error)})
    else:
        say(out, {"answer": len(data), "id": getattr(document, "id", None)})
        out.write(data)
        out.flush()
    return 0


if __name__ == "__main__":
    # The first thread's stack grows on demand, and growth beyond the memory limit is a SIGSEGV
    # without a message; a further thread's stack is allocated in full before the limit is set.
    threading.stack_size(STACK_BYTES)
    statuses: list[int] = []
    computing = threading.Thread(target=lambda: statuses.append(main()))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    computing.start()
    computing.join()
    sys.stdout.flush()
    # The listener is inside a read of standard input, which an orderly exit would wait for.
    os._exit(statuses[0] if statuses else 1)
