"""One rank of a measurement: its device, its clock, and how it agrees with the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import Any

import numpy as np

from shardwise.errors import BadInput, ShardwiseError
from shardwise.hardware.hardware import Floats
from shardwise.measure.busy import OVERRIDE, DeviceBusy, busy_gpus
from shardwise.measure.cores import settle_on_cpu
from shardwise.measure.options import MeasureOptions
from shardwise.measure.world import JOIN_S, World

SLACK_S = 300.0
"""How much longer than the time limit a rank that has joined waits for the others."""


class PeersLost(ShardwiseError):
    """Another rank ended in the middle."""

    exit_code = 1


@dataclass(frozen=True)
class Rank:
    """`control` is a gloo group of everybody, over which ranks agree beside what is measured."""

    torch: Any
    world: World
    backend: str
    device: Any
    control: Any

    @property
    def on_gpu(self) -> bool:
        """Whether times are those of CUDA events."""
        return bool(self.device.type == "cuda")

    def worst(self, values: Sequence[float]) -> Floats:
        """The largest of each value over all ranks; every rank gets the same."""
        shared = self.torch.tensor(list(values), dtype=self.torch.float64)
        distributed = self.torch.distributed
        distributed.all_reduce(shared, op=distributed.ReduceOp.MAX, group=self.control)
        return np.asarray(shared.numpy())

    def left_s(self, limit_s: float, began: float) -> float:
        """Seconds left of `limit_s` since `began`, on the rank that has the least.

        Clocks are read at slightly other moments, much other ones where a rank waits for a core:
        ranks that decided by their own would call different collectives, and wait for ever.
        """
        return -float(self.worst([perf_counter() - began - limit_s])[0])

    def barrier(self) -> None:
        """Wait for everybody, and for the device."""
        if self.on_gpu:
            self.torch.cuda.synchronize(self.device)
        self.torch.distributed.barrier(group=self.control)

    def time(self, call: Callable[[], None], calls: int = 1) -> float:
        """Seconds of one call, mean of `calls` in a row, on this rank."""
        if self.on_gpu:
            event = self.torch.cuda.Event
            start, end = event(enable_timing=True), event(enable_timing=True)
            start.record()
            for _ in range(calls):
                call()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3 / calls
        began = perf_counter()
        for _ in range(calls):
            call()
        return (perf_counter() - began) / calls

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value, by rank."""
        found: list[Any] = [None] * self.world.size
        self.torch.distributed.all_gather_object(found, value, group=self.control)
        return found


@contextmanager
def joined(world: World, options: MeasureOptions) -> Iterator[Rank]:
    """This process as a rank among the others, while the block runs.

    Raises `BadInput` where NCCL is asked for without a GPU for every rank or a GPU is busy,
    `PeersLost` when another rank ends.
    """
    torch = load_torch()
    gpus = torch.cuda.device_count()
    backend = options.backend
    distributed = torch.distributed
    limit = timedelta(seconds=options.time_limit_s + SLACK_S)
    meet(distributed, world, "gloo")
    try:
        control = distributed.new_group(backend="gloo", timeout=limit)
        alone = Rank(torch, world, "gloo", torch.device("cpu"), control)
        enough = not alone.worst([float(gpus < world.ranks_per_node)])[0]
        if backend == "nccl" and not enough:
            raise BadInput(
                f"{gpus} GPUs for {world.ranks_per_node} ranks on a node",
                field="backend",
                expected="a GPU for every rank, or gloo",
            )
        if backend == "auto":
            backend = "nccl" if enough else "gloo"
        if backend == "nccl":
            # Before anything of ours is on the device, whoever is there is somebody else.
            if not options.allow_busy:
                mine = busy_gpus(world.ranks_per_node) if world.local_rank == 0 else ""
                for reason in filter(None, alone.gather(mine)):
                    raise DeviceBusy(f"{reason}; {OVERRIDE}")
            alone.barrier()
            torch.cuda.set_device(world.local_rank)
            yield Rank(torch, world, "nccl", torch.device("cuda", world.local_rank), alone.control)
        else:
            settle_on_cpu(world.local_rank, world.ranks_per_node)
            yield alone
    except RuntimeError as error:
        if "out of memory" in str(error):
            raise ShardwiseError(f"rank {world.rank} is out of memory: {_line(error)}") from None
        raise PeersLost(f"rank {world.rank} lost another rank: {_line(error)}") from None
    finally:
        distributed.destroy_process_group()


def meet(distributed: Any, world: World, backend: str) -> None:
    """Make this process a rank of torch's default group, whose collectives wait for `JOIN_S`, too.

    Raises `PeersLost` when not all others have come within `JOIN_S`.
    """
    try:
        distributed.init_process_group(
            backend,
            init_method=world.meeting,
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(seconds=JOIN_S),
        )
    except RuntimeError as error:
        raise PeersLost(f"rank {world.rank} found no others: {_line(error)}") from None


def load_torch() -> Any:
    """torch, or the error that says how to get it."""
    try:
        import torch
        import torch.distributed
    except ImportError:
        raise ShardwiseError("measuring needs PyTorch: pip install 'shardwise[torch]'") from None
    return torch


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
