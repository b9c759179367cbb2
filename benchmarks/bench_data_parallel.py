"""Data parallelism under the parameter store against DistributedDataParallel: the same network.

    python benchmarks/bench_data_parallel.py [ranks ...]

Steps of the two are taken in turns, so that what else the machine does hits both alike; printed is
the median step of each and the median ratio of neighbours, over gloo on this machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness.execute.ranks import Ranks
from shardwise.execute.parameters import ParameterSpec, ParameterStore
from shardwise.execute.rank_mesh import RankMesh
from shardwise.sharding.layout import PARTIAL, REPLICATE

CASES = {
    "4 layers of 1024, batch 64": (4, 1024, 64),
    "24 layers of 128, batch 32": (24, 128, 32),
    "2 layers of 2048, batch 32": (2, 2048, 32),
}
ROUNDS = 40
WARM_UP = 5


def network(layers: int, width: int) -> torch.nn.Sequential:
    """Linear layers and ReLUs."""
    torch.manual_seed(0)
    parts: list[torch.nn.Module] = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts)


def with_ddp(layers: int, width: int, x: torch.Tensor) -> Callable[[], None]:
    """One step."""
    model = torch.nn.parallel.DistributedDataParallel(network(layers, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def with_store(layers: int, width: int, x: torch.Tensor) -> Callable[[], None]:
    """One step."""
    ranks = dist.get_world_size()
    mesh = RankMesh(("data",), (ranks,), dist.get_rank())
    whole = dict(network(layers, width).named_parameters())
    store = ParameterStore(
        [
            ParameterSpec(n, tuple(p.shape), p.dtype, (REPLICATE,), (PARTIAL,))
            for n, p in whole.items()
        ],
        mesh,
    )
    store.load(whole)
    optimizer = torch.optim.SGD(store.parameters().values(), lr=1e-3)
    names = list(whole)
    uses = [(store.user(w), store.user(b)) for w, b in zip(names[::2], names[1::2], strict=True)]

    def step() -> None:
        optimizer.zero_grad()
        store.begin(0)
        h = x
        for weight, bias in uses:
            h = functional.relu(functional.linear(h, weight(), bias()))
        (h.square().sum() / (h.numel() * ranks)).backward()
        optimizer.step()

    return step


def measured(rank: int, ranks: int) -> dict[str, list[list[float]]]:
    """Returns the seconds of every step of each case, of DDP and of the store, on one rank."""
    figures = {}
    for name, (layers, width, batch) in CASES.items():
        x = torch.randn(batch, width)
        steps = [with_ddp(layers, width, x), with_store(layers, width, x)]
        times: list[list[float]] = [[], []]
        for number in range(ROUNDS + WARM_UP):
            for which in (0, 1) if number % 2 else (1, 0):
                dist.barrier()
                start = time.perf_counter()
                steps[which]()
                dist.barrier()
                times[which].append(time.perf_counter() - start)
        figures[name] = [series[WARM_UP:] for series in times]
    return figures


def run(ranks: Sequence[int] = (2, 4)) -> dict[str, Any]:
    """Prints a line for each case and number of ranks; returns the figures."""
    figures: dict[str, Any] = {}
    for count in ranks:
        group = Ranks(count, spawn=True)
        first = group(measured, count)[0]
        group.stop()
        of_count = figures[str(count)] = {}
        for name, (ddp, ours) in first.items():
            ratio = statistics.median(b / a for a, b in zip(ddp, ours, strict=True))
            medians = statistics.median(ddp), statistics.median(ours)
            of_count[name] = {"ddp_s": medians[0], "store_s": medians[1], "ratio": ratio}
            print(
                f"{count} ranks, {name}: DDP {medians[0] * 1e3:.2f} ms, store"
                f" {medians[1] * 1e3:.2f} ms, ratio of medians {medians[1] / medians[0]:.3f},"
                f" median ratio {ratio:.3f}",
                flush=True,
            )
    return figures


if __name__ == "__main__":
    run([int(a) for a in sys.argv[1:]] or (2, 4))
