"""Our runner against `torch.distributed.pipelining`: the same stages under the same schedule.

    python benchmarks/bench_pipeline.py [ranks ...] [--schedule NAME] [--rounds N] [--profile]

A small GPT-2 (one block a stage, at least 4), 8 micro-batches, SGD. `1f1b` has one stage a rank and
is compared with `Schedule1F1B`, `interleaved` has two, with `ScheduleInterleaved1F1B`. Steps of the
two are taken in turns, so that what else the machine does hits both alike; printed is the median
step of each and the median ratio of neighbours, over gloo on this machine. `--profile` prints where
the first rank's Python spends the time of our steps.
"""

from __future__ import annotations

import argparse
import copy
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
)
from torch.nn import functional

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

import shardwise  # noqa: E402
from harness.execute.pipelines import Pipelines  # noqa: E402
from harness.execute.ranks import Ranks  # noqa: E402
from shardwise.capture.model import Model  # noqa: E402
from shardwise.execute.captured import capture_module  # noqa: E402

WIDTH, HEADS, VOCABULARY = 256, 4, 2048
BATCH, SEQUENCE, MICRO_BATCHES = 16, 64, 8
WARM_UP = 3

STAGES_PER_RANK = {"1f1b": 1, "interleaved": 2}


@dataclass(frozen=True)
class Cut:
    """Which schedule, on how many ranks, and how blocks go on stages."""

    schedule: str
    ranks: int

    @property
    def stages(self) -> int:
        """The number of stages, in a loop on the ranks."""
        return self.ranks * STAGES_PER_RANK[self.schedule]

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return max(4, self.stages)

    def of(self, stage: int) -> range:
        """Returns the blocks of a stage."""
        return range(stage * self.blocks // self.stages, (stage + 1) * self.blocks // self.stages)


Step = Callable[[], float | None]
"""Trains a step; returns its loss on the last rank."""


class Block(torch.nn.Module):
    """A block of GPT-2 with causal attention, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a tensor like `x`."""
        batch, tokens, _ = x.shape
        heads = self.qkv(self.ln_1(x)).view(batch, tokens, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.down(functional.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Part(torch.nn.Module):
    """Some blocks, with the embedding before and the head behind where they are the ends."""

    def __init__(self, blocks: range, of: int) -> None:
        super().__init__()
        self.first, self.last = blocks.start == 0, blocks.stop == of
        if self.first:
            self.wte = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.h = torch.nn.ModuleList(Block() for _ in blocks)
        if self.last:
            self.ln_f = torch.nn.LayerNorm(WIDTH)
            self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what the next part reads, or scores of tokens."""
        x = self.wte(x) if self.first else x
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x)) if self.last else x


class Whole(torch.nn.Module):
    """All blocks and the loss."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.part = Part(range(blocks), blocks)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the mean loss."""
        return loss_of(self.part(tokens), labels)


def loss_of(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross entropy."""
    return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def whole(cut: Cut) -> Whole:
    """Returns the model with weights that are the same everywhere."""
    torch.manual_seed(0)
    return Whole(cut.blocks)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tokens and labels."""
    random = torch.Generator().manual_seed(1)
    shape = (BATCH, SEQUENCE)
    tokens = torch.randint(0, VOCABULARY, shape, generator=random)
    return tokens, torch.randint(0, VOCABULARY, shape, generator=random)


def document(cut: Cut) -> dict[str, Any]:
    """Returns the pipeline with as many blocks in each stage."""
    captured = capture_module(Model(whole(cut), batch()), "gpt2")
    pipelines = Pipelines(captured.graph)
    names = pipelines.unit_names
    bounds = [0]
    for stage in range(1, cut.stages):
        scope = f"part.h.{cut.of(stage).start}"
        bounds.append(next(n for n, name in enumerate(names) if name.startswith(scope)))
    return pipelines.pipeline(
        cut.ranks,
        cut.stages,
        0,
        schedule=cut.schedule,
        stages_per_rank=STAGES_PER_RANK[cut.schedule],
        zero=(0,),
        recompute="never",
        micro_batches=MICRO_BATCHES,
        bounds=(*bounds, len(names)),
    )


def part_of(cut: Cut, stage: int) -> Part:
    """Returns the part of the model in a stage."""
    blocks = cut.of(stage)
    part, given = Part(blocks, cut.blocks), whole(cut).part
    names = {n: n for n, _ in part.named_parameters()}
    for name in names:
        scope, _, rest = name.removeprefix("h.").partition(".")
        source = f"h.{int(scope) + blocks.start}.{rest}" if name.startswith("h.") else name
        part.get_parameter(name).data.copy_(given.get_parameter(source).data)
    return part


def with_torch(rank: int, cut: Cut) -> Step:
    """Returns a step of torch's schedule."""
    numbers = range(rank, cut.stages, cut.ranks)
    parts = [part_of(cut, number) for number in numbers]
    stages = [
        PipelineStage(part, number, cut.stages, torch.device("cpu"))
        for part, number in zip(parts, numbers, strict=True)
    ]
    schedule: Any
    if cut.schedule == "1f1b":
        schedule = Schedule1F1B(stages[0], MICRO_BATCHES, loss_fn=loss_of)
    else:
        schedule = ScheduleInterleaved1F1B(stages, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=1e-2)
    tokens, labels = batch()

    def step() -> float | None:
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == cut.ranks - 1:
            schedule.step(target=labels, losses=losses)
        else:
            schedule.step(*([tokens] if rank == 0 else []))
        optimizer.step()
        return float(torch.stack(losses).detach().mean()) if losses else None

    return step


def with_ours(cut: Cut, pipeline: dict[str, Any]) -> Step:
    """Returns a step of our runner."""
    model = shardwise.parallelize(whole(cut), batch(), copy.deepcopy(pipeline))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    inputs, named = model.share(*batch())

    def step() -> float | None:
        optimizer.zero_grad()
        loss = model(*inputs, **named)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def measured(
    rank: int, cut: Cut, pipeline: dict[str, Any], rounds: int, profile: bool
) -> tuple[list[list[float]], list[list[float | None]]]:
    """Returns the seconds of steps and their losses, of torch and of ours."""
    steps = [with_torch(rank, cut), with_ours(cut, pipeline)]
    times: list[list[float]] = [[], []]
    losses: list[list[float | None]] = [[], []]
    profiler = cProfile.Profile()
    for round_ in range(rounds + WARM_UP):
        for which in (0, 1) if round_ % 2 else (1, 0):
            dist.barrier()
            start = time.perf_counter()
            profiled = profile and which == 1 and round_ >= WARM_UP
            if profiled:
                profiler.enable()
            losses[which].append(steps[which]())
            if profiled:
                profiler.disable()
            dist.barrier()
            times[which].append(time.perf_counter() - start)
    if profile and rank == 0:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    return [series[WARM_UP:] for series in times], losses


def one(ranks: int, rounds: int, profile: bool = False, schedule: str = "1f1b") -> dict[str, float]:
    """Returns the figures for a number of ranks."""
    group, cut = Ranks(ranks, spawn=True), Cut(schedule, ranks)
    of_ranks = group(measured, cut, document(cut), rounds, profile)
    group.stop()
    theirs, ours = of_ranks[0][0]
    for one, other in zip(*of_ranks[-1][1], strict=True):
        if abs(one - other) > 1e-4 * abs(one):
            raise SystemExit(f"the losses differ: {one} with torch, {other} with ours")
    return {
        "torch_s": statistics.median(theirs),
        "ours_s": statistics.median(ours),
        "ratio": statistics.median(b / a for a, b in zip(theirs, ours, strict=True)),
    }


def run(
    ranks: tuple[int, ...] = (2, 4),
    rounds: int = 20,
    profile: bool = False,
    schedule: str = "1f1b",
) -> dict[str, Any]:
    """Prints a line for each number of ranks; returns the figures."""
    figures = {}
    for count in ranks:
        of_count = figures[str(count)] = one(count, rounds, profile, schedule)
        print(
            f"{schedule} on {count} ranks: torch {of_count['torch_s'] * 1e3:.1f} ms, ours"
            f" {of_count['ours_s'] * 1e3:.1f} ms, median ratio {of_count['ratio']:.3f}",
            flush=True,
        )
    return figures


def main() -> None:
    """Prints a line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", nargs="*", type=int, default=[2, 4])
    parser.add_argument("--schedule", choices=STAGES_PER_RANK, default="1f1b")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    run(tuple(given.ranks), given.rounds, given.profile, given.schedule)


if __name__ == "__main__":
    main()
