"""What uneven shares bring: torch's DistributedDataParallel against our plan, ranks of two speeds.

The same model, weights, batch and slowing on both sides, whose steps are taken in turns: DDP with
even rows, our program with even rows, and with rows in proportion to speed; gradients are summed by
collectives in all three. Ranks are slowed in two ways:

    repeated   operators run several times (`shardwise/measure/slowed.py`): ours each operator, of
               DDP each leaf module with its parameters, which leaves out what a model computes
               between its modules (attention, sums), in favour of DDP
    quota      every rank has its share of a core by control groups, for all that it does

    python benchmarks/bench_mixed_ddp.py [-o FILE] [MODEL…]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import msgspec

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from bench_mixed_reality import MODELS, enter_all  # noqa: E402

WARM_UP, STEPS = 4, 12
REPEATED, QUOTA = "repeated", "quota"
CASES: dict[str, tuple[str, tuple[float, ...], tuple[float, ...]]] = {
    "repeated 1:2": (REPEATED, (1.0, 2.0), ()),
    "quota 1:2": (QUOTA, (1.0, 2.0), (0.9, 0.45)),
    "quota 1:1:2:2": (QUOTA, (1.0, 1.0, 2.0, 2.0), (0.56, 0.56, 0.28, 0.28)),
}
"""How ranks are slowed, how many times, and their quotas of a core."""
TARGET = 1.25


def run(
    cases: Sequence[str] = tuple(CASES),
    models: Sequence[str] = tuple(MODELS),
    output: Path | None = None,
) -> dict[str, Any]:
    """The table of this benchmark, printed and returned."""
    from harness.execute.quotas import missing

    rows: list[dict[str, Any]] = []
    print(
        f"{'model':6} {'slowed':14} {'DDP ms':>8} {'even ms':>8} {'uneven':>8} {'faster':>7}  rows"
    )
    for case in cases:
        if CASES[case][0] == QUOTA and (reason := missing()):
            print(f"{case} skipped: {reason}")
            continue
        for row in _rows(case, models):
            rows.append(row)
            print(
                f"{row['model']:6} {case:14} {row['ddp_s'] * 1e3:8.1f} {row['even_s'] * 1e3:8.1f} "
                f"{row['uneven_s'] * 1e3:8.1f} {row['faster']:7.2f}  {row['rows']}",
                flush=True,
            )
            if output is not None:
                output.parent.mkdir(parents=True, exist_ok=True)
                output.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return {"rows": rows, "target": TARGET}


def _rows(case: str, models: Sequence[str]) -> Any:
    """Yields a row for each model."""
    from harness.execute.quotas import Quotas
    from harness.execute.ranks import Ranks
    from harness.execute.slowed_kinds import Kinds

    way, times, quotas = CASES[case]
    with ExitStack() as stack:
        ranks = Ranks(len(times))
        stack.callback(ranks.stop)
        for model in models:
            even, uneven, rows_of = _plans(model, Kinds(times))
            slowed = times if way == REPEATED else (1.0,) * len(times)
            with ExitStack() as block:
                if quotas:
                    folders = block.enter_context(Quotas(quotas)).folders
                    ranks(enter_all, folders)
                    block.callback(ranks.stop)
                steps = ranks(_on_rank, model, (even, uneven), slowed)[0]
            ddp_s, even_s, uneven_s = steps
            yield {
                "model": model,
                "case": case,
                "ddp_s": median(ddp_s),
                "even_s": median(even_s),
                "uneven_s": median(uneven_s),
                "faster": median(a / b for a, b in zip(ddp_s, uneven_s, strict=True)),
                "faster_than_even": median(a / b for a, b in zip(even_s, uneven_s, strict=True)),
                "steps": steps,
                "rows": rows_of,
            }


def _plans(model: str, kinds: Any) -> tuple[Any, Any, str]:
    """Returns the plans of data parallelism with even rows and with rows by speed, and the latter's
    weights."""
    from harness.execute.slowed_kinds import data_parallel_plan, two_kinds
    from harness.execute.sources import captured_source
    from shardwise.cost.mixed.catalogue import BY_PEAKS
    from shardwise.hardware import load_hardware

    graph = captured_source(*MODELS[model]).graph
    # Only how many times as fast one kind is matters here.
    hardware = two_kinds(load_hardware("dgx-a100-80gb"), kinds)
    even, uneven = (
        data_parallel_plan(graph, hardware, kinds, origin) for origin in ("even", BY_PEAKS)
    )
    assert not isinstance(uneven.cluster, msgspec.UnsetType)
    weights = {p.origin: p.weights for p in uneven.cluster.proportions}[BY_PEAKS]
    return even, uneven, ":".join(map(str, weights))


def _on_rank(
    rank: int, model: str, plans: tuple[Any, Any], times: tuple[float, ...]
) -> list[list[float]]:
    """Returns seconds of the slowest rank's steps: of DDP, of even rows, of uneven ones."""
    import torch.distributed as dist

    steps = [_ddp(model, times[rank]), *(_ours(model, p, rank, times[rank]) for p in plans)]
    taken: list[list[float]] = [[], [], []]
    for number in range(WARM_UP + STEPS):
        for which, step in enumerate(steps):
            dist.barrier()
            began = perf_counter()
            step()
            if number >= WARM_UP:
                taken[which].append(perf_counter() - began)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, taken)
    return [[max(of) for of in zip(*(one[w] for one in every), strict=True)] for w in range(3)]


def _ours(model: str, plan: Any, rank: int, times: float) -> Callable[[], None]:
    from harness.execute.sources import captured_source
    from shardwise.execute.parallel import ParallelModule, mesh_of
    from shardwise.measure.slowed import Slowed

    captured = captured_source(*MODELS[model])
    module = ParallelModule(captured, plan, mesh_of(plan, rank), "cpu", slowed=Slowed(times))
    inputs, _ = module.share(*captured.model.args)
    return _step(module, inputs)


def _ddp(model: str, times: float) -> Callable[[], None]:
    from copy import deepcopy

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from harness.execute.sources import captured_source

    captured = captured_source(*MODELS[model])
    module = deepcopy(captured.model.module)
    if times > 1:
        _slow_modules(module, times)
    world, rank = dist.get_world_size(), dist.get_rank()
    rows = len(captured.model.args[0])
    share = slice(rank * rows // world, (rank + 1) * rows // world)
    inputs = [x[share].clone() if x.dim() and len(x) == rows else x for x in captured.model.args]
    return _step(DistributedDataParallel(module), inputs)


def _slow_modules(module: Any, times: float) -> None:
    """Makes every leaf module run several times, as the operators of a slowed rank do."""
    from torch.func import functional_call

    from shardwise.measure.slowed import Slowed

    slowed = Slowed(times)
    for leaf in [m for m in module.modules() if not list(m.children())]:
        names = [name for name, _ in leaf.named_parameters(recurse=False)]
        buffers = [name for name, _ in leaf.named_buffers(recurse=False)]
        forward, first = leaf.forward, len(names) + len(buffers)
        written = tuple(range(len(names), first))

        def again(*x: Any, leaf: Any = leaf, known: Any = (*names, *buffers)) -> list[Any]:
            given = dict(zip(known, x, strict=False))
            return [functional_call(leaf, given, tuple(x[len(known) :]))]

        leaf.forward = _Repeating(leaf, forward, slowed, again, names, buffers, written)


class _Repeating:
    """The forward of a leaf module that is slowed, with its parameters as inputs."""

    def __init__(
        self,
        leaf: Any,
        forward: Callable[..., Any],
        slowed: Any,
        again: Callable[..., list[Any]],
        names: Sequence[str],
        buffers: Sequence[str],
        written: tuple[int, ...],
    ) -> None:
        self._leaf, self._names, self._buffers = leaf, names, buffers
        self._plain = forward
        cut = [False] * (len(names) + len(buffers))
        self._inside = False
        self._run = slowed.around(again, [*cut, True], written)

    def __call__(self, *x: Any) -> Any:
        if self._inside:
            return self._plain(*x)
        own = [getattr(self._leaf, name) for name in (*self._names, *self._buffers)]
        self._inside = True
        try:
            return self._run(*own, *x)[0]
        finally:
            self._inside = False


def _step(module: Any, inputs: Sequence[Any]) -> Callable[[], None]:
    import torch

    optimizer = torch.optim.Adam(module.parameters(), lr=1e-4, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        loss = module(*inputs)
        (loss if isinstance(loss, torch.Tensor) else loss[0]).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    run(given.cases.split(","), given.models, given.output)
