"""Real processes with gloo, kept for many calls: a function on every rank, and what it returned."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from harness.commands import warm_context
from shardwise.measure.cores import settle_on_cpu


def free_port() -> int:
    """Returns a port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _serve(rank: int, world: int, port: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    settle_on_cpu(rank, world)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=120))
    while (asked := pipe.recv()) is not None:
        work, arguments = asked
        try:
            pipe.send((True, work(rank, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """`world` processes in one gloo group, which are restarted after a failure.

    They are forked from the warm server of `harness.commands`, which has torch imported. With
    `inherit` they are forked from this process and have its globals; that can only be had before
    autograd ran in it. With `spawn` they begin with nothing, as CUDA wants it.
    """

    def __init__(self, world: int, inherit: bool = False, spawn: bool = False) -> None:
        self.world = world
        how = "fork" if inherit else "spawn" if spawn else None
        self._context: Any = multiprocessing.get_context(how) if how else warm_context()
        self._started: list[tuple[Any, Any]] = []

    def __call__(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Returns `work(rank, *arguments)` by rank. Raises AssertionError if one failed."""
        if not self._started:
            self._start()
        for _, pipe in self._started:
            pipe.send((work, arguments))
        waiting = {pipe: rank for rank, (_, pipe) in enumerate(self._started)}
        results: dict[int, Any] = {}
        while waiting:
            for pipe in multiprocessing.connection.wait(list(waiting)):
                rank = waiting.pop(pipe)
                try:
                    well, results[rank] = pipe.recv()
                except EOFError:
                    well, results[rank] = False, "the process died"
                if not well:
                    # The others may wait for it in a collective.
                    self.stop(kill=True)
                    raise AssertionError(f"rank {rank}:\n{results[rank]}")
        return [results[rank] for rank in range(self.world)]

    def _start(self) -> None:
        port = free_port()
        for rank in range(self.world):
            here, there = self._context.Pipe()
            process = self._context.Process(
                target=_serve, args=(rank, self.world, port, there), daemon=True
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
