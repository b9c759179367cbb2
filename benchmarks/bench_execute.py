"""What executing a plan costs: data parallelism against DistributedDataParallel, tensor
parallelism against the same strategy written by hand in DTensor.

Both run in the same processes, step by step in turn, on gloo ranks of this machine; the figure is
the ratio of the medians, and the same of CPU seconds of rank 0, which other work on the machine
disturbs less. The convolutions have no batch normalisation: a plan's statistics are those of the
whole batch, DistributedDataParallel's of each rank's share.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from shardwise import documents
from shardwise.measure.cores import settle_on_cpu

WARM_UP = 5
STEPS = 40
HARDWARE = "dgx-a100-80gb"

MODELS = {
    "mlp": "zoo:mlp:layers=4,inputs=256,hidden=1024,classes=16,batch=64",
    "convnet": "zoo:vgg16:image=32,classes=10,channels=16,hidden=256,dropout=0.0,batch=32",
    "gpt2": "hf:GPT2Config:n_layer=4,n_embd=256,n_head=8,vocab_size=2048,resid_pdrop=0.0,"
    "embd_pdrop=0.0,attn_pdrop=0.0",
}
MEGATRON = (
    "0.linear:inside=out",
    "1.relu:inside=d1",
    "2.linear:inside=in",
    "3.relu:inside=none",
    "4.linear:inside=out",
    "5.relu:inside=d1",
    "6.linear:inside=in",
    "*cross_entropy*:inside=none",
)
"""Rules that leave one strategy for the MLP."""

SHAPES: Mapping[str, tuple[int | None, int | None]] = {"gpt2": (8, 128)}


def run() -> dict[str, Any]:
    """The table of this benchmark, printed and returned."""
    columns = f"{'ours ms':>9} {'theirs ms':>9} {'ratio':>6} {'CPU':>6}"
    print(f"{'model':10} {'ranks':>5} {'against':8} {columns}")
    rows = []
    for world in (2, 4):
        for row in _measured(world):
            rows.append({"ranks": world, **row})
            print(
                f"{row['model']:10} {world:5} {row['against']:8} {row['ours_s'] * 1e3:9.2f} "
                f"{row['theirs_s'] * 1e3:9.2f} {row['ratio']:6.3f} {row['cpu_ratio']:6.3f}",
                flush=True,
            )
    return {"rows": rows, "steps": STEPS}


def _measured(world: int) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    ranks = [
        context.Process(target=_rank, args=(rank, world, port, answers)) for rank in range(world)
    ]
    for process in ranks:
        process.start()
    rows: list[dict[str, Any]] = answers.get(timeout=1200)
    for process in ranks:
        process.join()
    return rows


def _rank(rank: int, world: int, port: int, answers: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    settle_on_cpu(rank, world)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    rows = [_against_ddp(name, world) for name in MODELS]
    rows.append(_against_dtensor(world))
    if rank == 0:
        answers.put(rows)
    dist.barrier()
    dist.destroy_process_group()


def _against_ddp(name: str, world: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    module, inputs, captured = _model(name)
    ours = _ours(captured, world, ("inside=batch",))
    theirs = DistributedDataParallel(module)
    share = [x.chunk(world)[dist.get_rank()] for x in inputs]
    first = torch.optim.SGD(ours.parameters(), lr=1e-3)
    second = torch.optim.SGD(theirs.parameters(), lr=1e-3)
    return _row(name, "DDP", _step(ours, share, first), _step(theirs, share, second))


def _against_dtensor(world: int) -> dict[str, Any]:
    """An MLP whose layers are split by columns and rows in turn (Megatron-LM's way)."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    module, inputs, captured = _model("mlp")
    ours = _ours(captured, world, MEGATRON)
    mesh = init_device_mesh("cpu", (world,))
    styles: dict[str, Any] = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    styles |= {"4": ColwiseParallel(), "6": RowwiseParallel()}
    parallelize_module(module.model, mesh, styles)

    def theirs(*share: Any) -> Any:
        # Samples arrive as for data parallelism, as in a plan.
        arrived = [DTensor.from_local(x, mesh, [Shard(0)]) for x in share]
        return module(*[x.redistribute(mesh, [Replicate()]).to_local() for x in arrived])

    share = [x.chunk(world)[dist.get_rank()] for x in inputs]
    first = torch.optim.SGD(ours.parameters(), lr=1e-3)
    second = torch.optim.SGD(module.parameters(), lr=1e-3)
    return _row("mlp", "DTensor", _step(ours, share, first), _step(theirs, share, second))


def _model(name: str) -> tuple[Any, list[Any], Any]:
    import torch

    from shardwise.capture.capture import build
    from shardwise.capture.model import Model
    from shardwise.capture.source import parse_source
    from shardwise.execute.captured import capture_module

    batch, seq = SHAPES.get(name, (None, None))
    prepared = build(parse_source(MODELS[name]), batch, seq, "float32")
    random = torch.Generator().manual_seed(1)
    prepared.module.to_empty(device="cpu")
    with torch.no_grad():
        for p in prepared.module.parameters():
            p.copy_(torch.randn(p.shape, generator=random) * 0.02 + (0.5 if p.dim() < 2 else 0.0))
        for b in prepared.module.buffers():
            b.fill_(1)
    inputs = [
        torch.randn(x.shape, generator=random)
        if x.is_floating_point()
        else torch.randint(0, 10, x.shape, generator=random)
        for x in prepared.args
    ]
    model = Model(
        prepared.module, tuple(inputs), prepared.kwargs, prepared.prefix, prepared.input_names
    )
    return prepared.module, inputs, capture_module(model, name)


def _ours(captured: Any, world: int, pins: tuple[str, ...]) -> Any:
    import torch.distributed as dist

    from harness.answers import plan
    from shardwise.answers import Options
    from shardwise.cost.pins import parse_pin
    from shardwise.execute.parallel import ParallelModule, mesh_of
    from shardwise.hardware import load_hardware

    options = Options(overlap=False, zero=(0,), pins=tuple(parse_pin(pin) for pin in pins))
    document = plan(captured.graph, load_hardware(HARDWARE), world, options=options)
    checked = documents.read(document, documents.Plan)
    return ParallelModule(captured, checked, mesh_of(checked, dist.get_rank()))


def _step(model: Any, inputs: list[Any], optimizer: Any) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        model(*inputs).backward()
        optimizer.step()

    return step


def _row(
    name: str, against: str, ours: Callable[[], None], theirs: Callable[[], None]
) -> dict[str, Any]:
    import torch.distributed as dist

    times: tuple[list[float], list[float]] = ([], [])
    cpu: tuple[list[float], list[float]] = ([], [])
    for number in range(WARM_UP + STEPS):
        for which, step in enumerate((ours, theirs)):
            dist.barrier()
            start, busy = time.perf_counter(), time.process_time()
            step()
            if number >= WARM_UP:
                times[which].append(time.perf_counter() - start)
                cpu[which].append(time.process_time() - busy)
    mine, other = (statistics.median(values) for values in times)
    work, others = (statistics.median(values) for values in cpu)
    return {
        "model": name,
        "against": against,
        "ours_s": mine,
        "theirs_s": other,
        "ratio": mine / other,
        "cpu_ratio": work / others,
    }


if __name__ == "__main__":
    sys.exit(run() is None)
