"""One rank of a measurement: its device, its clock, and how it agrees with the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from time import perf_counter
from typing import Any

import numpy as np

from shardwise.errors import BadInput, ShardwiseError
from shardwise.hardware.grid import Floats
from shardwise.measure.busy import OVERRIDE, DeviceBusy, busy_gpus
from shardwise.measure.cores import allowed_cores, ranks_on_core, settle_on_cpu
from shardwise.measure.labels import NO_LABEL, Label
from shardwise.measure.options import MeasureOptions
from shardwise.measure.world import JOIN_S, World

PAUSE_CYCLES = 60_000
"""Of a GPU's clock, some 30 µs: longer than a host takes to launch a call."""
SLACK_S = 300.0
"""How much longer than the time limit a rank that has joined waits for the others."""


class PeersLost(ShardwiseError):
    """Another rank ended before this one was done."""

    exit_code = 1


@dataclass(frozen=True)
class Rank:
    """`control` is a gloo group of all ranks, over which they agree outside what is measured.

    `label` says of what kind the device is; `crowd` ranks compute on this rank's cores. Of a rank
    among those of one group of devices, `world` and `control` are the group's, but `world.rank` is
    its number among all.
    """

    torch: Any
    world: World
    backend: str
    device: Any
    control: Any
    label: Label = NO_LABEL
    crowd: int = 1

    @property
    def on_gpu(self) -> bool:
        """Whether times come from CUDA events."""
        return bool(self.device.type == "cuda")

    def worst(self, values: Sequence[float]) -> Floats:
        """Returns the largest of each value over all ranks, the same on every rank."""
        shared = self.torch.tensor(list(values), dtype=self.torch.float64)
        distributed = self.torch.distributed
        distributed.all_reduce(shared, op=distributed.ReduceOp.MAX, group=self.control)
        return np.asarray(shared.numpy())

    def left_s(self, limit_s: float, began: float) -> float:
        """Returns seconds left of `limit_s` since `began`, on the rank that has the least.

        Ranks read their clocks at slightly different moments, much different ones if a rank waits
        for a core: deciding by their own clocks, they would call different collectives and wait
        forever.
        """
        return -float(self.worst([perf_counter() - began - limit_s])[0])

    def synchronise(self) -> None:
        """Waits until the device has done all that was launched."""
        if self.on_gpu:
            self.torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Waits for all ranks, and for the device."""
        self.synchronise()
        self.torch.distributed.barrier(group=self.control)

    def meet(self, group: Any) -> None:
        """Waits for all ranks, and then once more for those of a group inside a host.

        Ranks leave a barrier as far apart as the farthest are. A group of near ones would count
        that as its own time.
        """
        self.barrier()
        self.torch.distributed.all_reduce(self.torch.zeros(1, device=self.device), group=group)
        self.synchronise()

    def time(self, call: Callable[[], None], calls: int = 1) -> float:
        """Returns seconds of one call on this rank, the mean of `calls` in a row."""
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

    def pause(self, calls: int) -> None:
        """Makes a GPU wait until this number of calls is launched; they then run back to back."""
        if self.on_gpu:
            self.torch.cuda._sleep(PAUSE_CYCLES * calls)

    def time_work(self, call: Callable[[], None], calls: int = 1) -> float:
        """Returns seconds of one call that computes: a rank that is slowed makes it several times.

        So many calls in a row that their number is whole: 5 for 2 that take 2.5 times as long.
        """
        times = self.label.slowed.times
        return self.time(call, calls * times.numerator) * float(times)

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, by rank."""
        values: list[Any] = [None] * self.world.size
        self.torch.distributed.all_gather_object(values, value, group=self.control)
        return values


@contextmanager
def joined(world: World, options: MeasureOptions, label: Label = NO_LABEL) -> Iterator[Rank]:
    """Makes this process a rank among the others while the block runs.

    Raises `BadInput` if NCCL is requested without a GPU for every rank or a GPU is busy,
    `PeersLost` if another rank ends.
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
            # This process is not on the device yet, so any process there is another's.
            if not options.allow_busy:
                mine = busy_gpus(world.ranks_per_node) if world.local_rank == 0 else ""
                for reason in filter(None, alone.gather(mine)):
                    raise DeviceBusy(f"{reason}; {OVERRIDE}")
            alone.barrier()
            torch.cuda.set_device(world.local_rank)
            device = torch.device("cuda", world.local_rank)
            yield Rank(torch, world, "nccl", device, alone.control, label)
        else:
            crowd = ranks_on_core(allowed_cores(), world.local_rank, world.ranks_on_host)
            settle_on_cpu(world.local_rank, world.ranks_on_host)
            yield replace(alone, label=label, crowd=crowd)
    except RuntimeError as error:
        if "out of memory" in str(error):
            raise ShardwiseError(f"rank {world.rank} is out of memory: {_line(error)}") from None
        raise PeersLost(f"rank {world.rank} lost another rank: {_line(error)}") from None
    finally:
        distributed.destroy_process_group()


def meet(distributed: Any, world: World, backend: str, device: Any = None) -> None:
    """Makes this process a rank of torch's default group, whose collectives also wait `JOIN_S`.

    `device` is the GPU of this rank, which NCCL would otherwise guess from the rank's number.

    Raises `PeersLost` if not all others have come within `JOIN_S`.
    """
    try:
        distributed.init_process_group(
            backend,
            init_method=world.meeting,
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(seconds=JOIN_S),
            device_id=device,
        )
    except RuntimeError as error:
        raise PeersLost(f"rank {world.rank} found no others: {_line(error)}") from None


def load_torch() -> Any:
    """Returns torch; raises the error that says how to install it."""
    try:
        import torch
        import torch.distributed
    except ImportError:
        raise ShardwiseError("measuring needs PyTorch: pip install 'shardwise[torch]'") from None
    return torch


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
