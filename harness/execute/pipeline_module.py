"""A small module of a user's, with its loss and a tied weight, that can be cut into stages."""

from __future__ import annotations

import multiprocessing
import os
import time
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.execute.keeper import keeper
from harness.execute.pipelines import Pipelines
from harness.execute.ranks import free_port
from harness.execute.remembered import capture_module, parallelize, remember
from shardwise.capture.model import Model
from shardwise.graph import Graph

BATCH, NAME = 16, "net"


class Block(torch.nn.Module):  # type: ignore[misc]
    """Eight operators: enough to count as a block."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(dropout) if dropout else torch.nn.Identity()
        self.up = torch.nn.Linear(20, 24)
        self.down = torch.nn.Linear(24, 20)

    def forward(self, x: Any) -> Any:
        """Returns a tensor like `x`."""
        y = torch.tanh(self.up(x) * 0.5) + 0.1
        return self.drop(torch.tanh(self.down(torch.sin(y)))) * 0.9 + x


class Net(torch.nn.Module):  # type: ignore[misc]
    """Three blocks between two layers with one weight. `x`, made at the beginning, is read at the
    end too, so that it passes through what is between."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first = torch.nn.Linear(12, 20)
        self.blocks = torch.nn.ModuleList(Block(dropout) for _ in range(3))
        self.second = torch.nn.Linear(20, 12)
        self.tied = torch.nn.Linear(12, 20)
        self.tied.weight = self.first.weight
        self.last = torch.nn.Linear(20, 8)
        self.register_buffer("scale", torch.full((20,), 0.5))

    def forward(self, features: Any, labels: Any) -> Any:
        """Returns the loss."""
        x = y = torch.relu(self.first(features)) * self.scale
        for block in self.blocks:
            y = block(y)
        y = torch.tanh(self.tied(torch.tanh(self.second(y)))) + x
        return torch.nn.functional.cross_entropy(self.last(y), labels)


def a_module(dropout: float = 0.0) -> Net:
    """Returns the module with weights that are the same everywhere."""
    torch.manual_seed(3)
    return Net(dropout)


def a_batch() -> tuple[Any, Any]:
    """Returns features and labels."""
    random = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 8, (BATCH,), generator=random)
    return torch.randn(BATCH, 12, generator=random), labels


def pipelines(precision: str = "captured", dropout: float = 0.0) -> Pipelines:
    """Returns random pipelines of the module."""
    return Pipelines(a_graph(dropout), precision)


@cache
def a_graph(dropout: float = 0.0) -> Graph:
    """Returns the module's graph, which the keeper captures: it has what a capture imports."""
    graph: Graph = keeper().run(_captured, dropout)
    return graph


def _captured(dropout: float) -> Graph:
    return capture_module(Model(a_module(dropout), a_batch()), NAME).graph


PATIENCE_S = 30.0
"""How long ranks may take to end when one is lost."""


def trained_until_lost(pipeline: dict[str, Any], lost: int, folder: str) -> list[int | None]:
    """Trains on ranks that are forked from this process, of which one is lost; returns their exit
    codes, None of those that go on after `PATIENCE_S`."""
    world, port = pipeline["gpus"], free_port()
    remember(Model(a_module(), a_batch()), NAME, pipeline["micro_batches"])
    processes = [
        multiprocessing.get_context("fork").Process(
            target=train_until_lost, args=(rank, world, port, pipeline, lost, folder)
        )
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    processes[lost].join(120.0)
    until = time.monotonic() + PATIENCE_S
    for process in processes:
        process.join(max(until - time.monotonic(), 0.0))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes


def train_until_lost(
    rank: int, world: int, port: int, pipeline: dict[str, Any], lost: int, folder: str
) -> None:
    """Trains in a process of its own; rank `lost` ends in the third step, as if killed. The others
    write what they were told to `folder`."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=60))
    model = parallelize(a_module(), a_batch(), pipeline)
    try:
        for step in range(1000):
            if step == 2 and rank == lost:
                os._exit(9)
            model(*a_batch()).backward()
    except BaseException as error:
        (Path(folder) / str(rank)).write_text(f"{type(error).__name__}: {error}")
    # Its connections close now, as when a script ends with the error.
    os._exit(1)
