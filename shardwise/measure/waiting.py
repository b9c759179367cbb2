"""How long ranks wait for the latest of them, beyond computing and communicating.

Ranks that do the same work do not take the same time for it, and each collective waits for the
latest. A round is products and elementwise operators in turn, as in training, then an all_reduce;
rounds repeat, each among other ranks: the groups of a mesh's axes take turns, as they do in a plan,
and get out of step. The same work without the collective, and the collective alone, are also timed:

    wait = t_round - t_work - t_all_reduce      means of all ranks and rounds, median of repeats

TensorOpt and HeteroG leave it out. It is small if every rank has its own device, and a tenth to a
quarter of a step if ranks share noisy cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from time import perf_counter

import numpy as np

from shardwise.hardware.grid import Floats
from shardwise.hardware.hardware import Waiting
from shardwise.measure.exchange import ITEM_BYTES
from shardwise.measure.groups import OwnGroup
from shardwise.measure.rank import Rank

APART_S = (0.001, 0.004, 0.016)
"""The target times of computation between two collectives."""
SIDE, ROWS = 256, 1024
"""Sides of the product's factors, and of what the elementwise operator reads."""
EXCHANGED_BYTES = 2**20
EXCHANGE_S = 0.02
"""Over a slow network less is exchanged: a wait is the difference of what takes about as long."""
FEWEST_ITEMS = 256
REPEATS = 9
LONG_ENOUGH_S, FEWEST, MOST = 0.12, 8, 60
"""What one repeat computes, and the limits of its number of rounds."""


def measure_waiting(
    rank: Rank, groups: Sequence[OwnGroup], memory_bytes: float, limit_s: float
) -> Waiting | None:
    """Returns waits after several lengths of computation, the same on every rank.

    `memory_bytes` is what this rank's buffers may take; returns None below a few MB. `limit_s`
    bounds the time: if it is short, there are fewer repeats, and the longer lengths are left out.
    """
    if memory_bytes < EXCHANGED_BYTES + 4 * ITEM_BYTES * SIDE * (ROWS + SIDE):
        return None
    began = perf_counter()
    torch = rank.torch
    turns = cycle([own.group for own in groups])
    whole = torch.zeros(EXCHANGED_BYTES // ITEM_BYTES, device=rank.device)
    work = _work(rank)

    def exchange(items: int) -> None:
        torch.distributed.all_reduce(whole[:items], group=next(turns))

    def slowest_s(items: int) -> float:
        rank.barrier()
        return float(max(rank.worst([rank.time(lambda: exchange(items)) for _ in groups])))

    slowest_s(whole.numel())  # warms up
    sent = partial(exchange, short_enough(whole.numel(), slowest_s))
    once = float(np.mean(rank.gather(rank.time(lambda: work(20)) / 20)))
    waits: dict[float, float] = {}
    for aimed in APART_S:
        count = max(round(aimed / once), 1)
        rounds = int(np.clip(LONG_ENOUGH_S / (count * once), FEWEST, MOST))
        rounds = -(-rounds // len(groups)) * len(groups)
        repeats: list[Floats] = []
        while len(repeats) < REPEATS and (not repeats or rank.left_s(limit_s, began) > 0):
            repeats.append(_repeat(rank, partial(work, count), sent, rounds, len(groups)))
        working, communication_s, both_s = np.median(repeats, axis=0)
        waits[float(working)] = max(float(both_s - working - communication_s), 0.0)
        if rank.left_s(limit_s, began) <= 0:
            break
    return Waiting(*zip(*sorted(waits.items()), strict=True))


def short_enough(items: int, slowest_s: Callable[[int], float]) -> int:
    """Returns the most items, by fours fewer, whose exchange takes no longer than EXCHANGE_S."""
    while items > FEWEST_ITEMS and slowest_s(items) > EXCHANGE_S:
        items //= 4
    return items


def _work(rank: Rank) -> Callable[[int], None]:
    """Returns a function that computes `count` products, each with an operator that allocates."""
    torch = rank.torch
    left, right, out = (torch.ones(SIDE, SIDE, device=rank.device) for _ in range(3))
    read = torch.ones(ROWS, SIDE, device=rank.device)

    def work(count: int) -> None:
        for _ in range(count):
            torch.mm(left, right, out=out)
            torch.relu_(read + 1.0)

    work(3)
    return work


def _repeat(
    rank: Rank, work: Callable[[], None], exchange: Callable[[], None], rounds: int, shapes: int
) -> Floats:
    """Returns seconds of one round's work, collective, and both: means of rounds and ranks.

    `rounds` is a multiple of the number of `shapes`, which take turns from call to call.
    """

    def both() -> None:
        work()
        exchange()

    rank.barrier()
    working = rank.time(work, rounds)
    rank.barrier()
    both_s = rank.time(both, rounds)
    communication_s = []
    for _ in range(max(FEWEST // shapes, 2) * shapes):
        rank.barrier()
        communication_s.append(rank.time(exchange))
    rank.barrier()
    mine = [working, float(np.mean(communication_s)), both_s]
    return np.asarray(np.mean(rank.gather(mine), axis=0))
