"""Real processes with gloo, kept for many calls: a function on every rank, and what it returned."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from harness.commands import warm_context
from shardwise.measure.cores import bind_cores, settle_on_cpu
from shardwise.measure.memory import keep_freed_memory

LONGEST_S = 400.0
"""How long a call may take; ranks that wait for one another would wait for ever."""


def free_port() -> int:
    """Returns a port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _serve(rank: int, world: int, port: int, busy: bool, pipe: Any) -> None:
    torch.set_num_threads(1)
    if busy:
        keep_freed_memory()
        bind_cores(rank, world)
    else:
        settle_on_cpu(rank, world)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=120))
    gc.freeze()
    while (asked := pipe.recv()) is not None:
        answer = _answered(rank, asked)
        # Else what a call has left goes on one rank earlier than on another, process groups too.
        gc.collect()
        pipe.send(answer)
    dist.destroy_process_group()


def _answered(rank: int, asked: bytes) -> tuple[bool, Any]:
    try:
        work, arguments = pickle.loads(asked)
        return True, pickle.dumps(work(rank, *arguments))
    except BaseException:
        return False, traceback.format_exc()


class Ranks:
    """`world` processes in one gloo group, which are restarted after a failure.

    They are forked from the warm server of `harness.commands`, which has torch imported. With
    `inherit` they are forked from this process and have its globals; that can only be had before
    autograd ran in it. With `spawn` they begin with nothing, as CUDA wants it. With `busy` they do
    not run as batch work, where each collective would wait for a slice of whatever else runs.
    """

    def __init__(
        self, world: int, inherit: bool = False, spawn: bool = False, busy: bool = False
    ) -> None:
        self.world = world
        self._busy = busy
        how = "fork" if inherit else "spawn" if spawn else None
        self._context: Any = multiprocessing.get_context(how) if how else warm_context()
        self._started: list[tuple[Any, Any]] = []

    def __call__(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Returns `work(rank, *arguments)` by rank. Raises AssertionError if one failed, or takes
        longer than `LONGEST_S`."""
        return [pickle.loads(answer) for answer in self.forward(pickle.dumps((work, arguments)))]

    def forward(self, asked: bytes) -> list[bytes]:
        """Returns the pickled answers to a pickled function and its other arguments."""
        if not self._started:
            self._start()
        for _, pipe in self._started:
            pipe.send(asked)
        waiting = {pipe: rank for rank, (_, pipe) in enumerate(self._started)}
        parent = multiprocessing.parent_process()
        orphaned = [] if parent is None else [parent.sentinel]
        results: dict[int, bytes] = {}
        until = time.monotonic() + LONGEST_S
        while waiting:
            ready = multiprocessing.connection.wait(
                [*waiting, *orphaned], max(until - time.monotonic(), 0.0)
            )
            if not ready or any(sentinel in ready for sentinel in orphaned):
                self._fail(
                    f"after {LONGEST_S:g} s, or alone, these still run: {[*waiting.values()]}"
                )
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    well, results[rank] = pipe.recv()
                except EOFError:
                    well, results[rank] = False, "the process died"
                if not well:
                    self._fail(f"rank {rank}:\n{results[rank]}")
        return [results[rank] for rank in range(self.world)]

    def _fail(self, what: str) -> NoReturn:
        # The others may wait for it in a collective.
        self.stop(kill=True)
        raise AssertionError(what)

    def _start(self) -> None:
        port = free_port()
        for rank in range(self.world):
            here, there = self._context.Pipe()
            process = self._context.Process(
                target=_serve, args=(rank, self.world, port, self._busy, there), daemon=True
            )
            process.start()
            there.close()
            self._started.append((process, here))

    def stop(self, kill: bool = False) -> None:
        """Ends the processes."""
        for process, pipe in self._started:
            if kill:
                process.kill()
            else:
                pipe.send(None)
        for process, pipe in self._started:
            process.join()
            pipe.close()
        self._started = []
