"""Plans in 16 bits of modules in 32: what has how many bits, what comes out, master weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler  # noqa: E402

from harness.execute import equality  # noqa: E402
from harness.execute.equality import Case  # noqa: E402
from harness.execute.keeper import SharedRanks, graph_of_family, keeper  # noqa: E402
from harness.execute.remembered import capture_module  # noqa: E402
from harness.execute.strategies import Strategies  # noqa: E402
from harness.tiers import some  # noqa: E402
from shardwise import documents  # noqa: E402
from shardwise.capture.model import Model  # noqa: E402
from shardwise.execute.checkpoint import load, save  # noqa: E402
from shardwise.execute.master_weights import MasterWeights  # noqa: E402
from shardwise.execute.parallel import ParallelModule, mesh_of  # noqa: E402
from shardwise.execute.precision import planned_graph  # noqa: E402

pytestmark = pytest.mark.torch

FAMILIES = ("MLP", "GPT-2", "Llama", "T5", "Mixtral", "ResNet", "LSTM", "DLRM", "Whisper")


@dataclass
class Off:
    """How far from one device in float32: the loss, all gradients together, the worst of them.

    `wrong`: the first tensor that has other bits than planned.
    """

    loss: float
    gradient: float
    worst: float
    wrong: str = ""

    def is_near(self, other: Off) -> bool:
        """Not much further than `other`."""
        return (
            self.loss <= 2 * other.loss + 0.005
            and self.gradient <= 2 * other.gradient + 0.01
            and self.worst <= 2 * other.worst + 0.02
        )


def _off(case: Case, loss: Any, gradients: dict[str, Any]) -> Off:
    whole = equality.reference(case, 1, 1)
    largest = max(float(g.abs().max()) for g in whole.gradients[0].values())
    worst = squares = total = 0.0
    for name, gradient in gradients.items():
        wanted = whole.gradients[0][name]
        difference = gradient.float() - wanted
        scale = max(float(wanted.abs().max()), 0.1 * largest)
        worst = max(worst, float(difference.abs().max()) / scale)
        squares += float(difference.square().sum())
        total += float(wanted.square().sum())
    return Off(abs(float(loss.detach()) / whole.losses[0] - 1.0), (squares / total) ** 0.5, worst)


def in_halves(rank: int, name: str, dtype: Any) -> Off:
    """What the module gets on one device, all of it in `dtype`."""
    case = equality.CASES[name]
    module = copy.deepcopy(case.model.module).to(dtype)
    with case.computing():
        loss = module(*[x.to(dtype) if x.is_floating_point() else x for x in case.model.args])
    loss.backward()
    names = {path: name for name, path in case.captured.converted.paths.items()}
    gradients = {names[p]: w.grad for p, w in module.named_parameters() if w.grad is not None}
    return _off(case, loss, gradients)


def _checked(rank: int, name: str, plan: dict[str, Any]) -> Off:
    case = equality.CASES[name]
    model = equality.parallel(case, plan)
    planned = planned_graph(case.captured.graph, documents.read(plan, documents.Plan))
    members = {o for group in plan["groups"] for op in group["operators"] for o in op["outputs"]}
    wrong: list[str] = []

    def check(what: str, tensor: Any) -> None:
        wanted = getattr(torch, planned.tensors[what].dtype)
        if tensor.dtype is not wanted:
            wrong.append(f"{what} is {tensor.dtype}, not {wanted}")

    def watch(instruction: Any, slots: Any) -> None:
        for tensor, slot in zip(instruction.tensors, instruction.outputs, strict=False):
            if tensor in members:
                check(tensor, slots[slot])

    with case.computing():
        loss = model.run(case.model.args, {}, watch)
        loss.backward()
    gradients = {}
    for parameter, tensor in model.store.parameters().items():
        check(parameter, tensor)
        if tensor.requires_grad:
            check(parameter, tensor.grad)
            gradients[parameter] = model.store.whole(parameter, tensor.grad)
    off = _off(case, loss, gradients)
    off.wrong = "; ".join(wrong[:3])
    return off


ALWAYS = ("DLRM",)
"""Families that `make test` runs."""


@pytest.mark.parametrize("family", some(FAMILIES, lambda family: family in ALWAYS))
def test_a_plan_in_bf16_is_as_near_as_the_module_in_bf16(four: SharedRanks, family: str) -> None:
    graph = keeper().run(graph_of_family, 4, family)
    strategies = Strategies(graph, (1,), precision="bf16")
    known = four(in_halves, family, torch.bfloat16)[0]
    for seed in range(2):
        for off in four(_checked, family, strategies.plan(4, seed)):
            assert off.wrong == ""
            assert off.is_near(known), (seed, off, known)


@pytest.mark.full
def test_fp16_and_an_operator_that_stays(four: SharedRanks) -> None:
    graph = keeper().run(graph_of_family, 4, "GPT-2")
    tensors = graph.tensors
    head = next(op for op in graph.operators if op.name.startswith("lm_head"))
    strategies = Strategies(graph, (1,), "fp16", (f"{head.name}:precision=captured",))
    plan = strategies.plan(4, 1)
    planned = planned_graph(graph, documents.read(plan, documents.Plan))
    assert {planned.tensors[n].dtype for n in (*head.inputs, *head.outputs)} == {"float32"}
    narrow = [n for n, t in planned.tensors.items() if t.dtype != tensors[n].dtype]
    assert {planned.tensors[n].dtype for n in narrow} == {"float16"}
    assert len(narrow) > len(tensors) / 2
    known = four(in_halves, "GPT-2", torch.float16)[0]
    for off in four(_checked, "GPT-2", plan):
        assert off.wrong == ""
        assert off.is_near(known), off


class Net(torch.nn.Module):  # type: ignore[misc]
    """Batch normalisation, whose running statistics stay in float32, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(12, 32)
        self.norm = torch.nn.BatchNorm1d(32)
        self.last = torch.nn.Linear(32, 8)

    def forward(self, features: Any, labels: Any) -> Any:
        hidden = torch.relu(self.norm(self.first(features)))
        return torch.nn.functional.cross_entropy(self.last(hidden), labels)


def _net() -> tuple[Net, tuple[Any, Any]]:
    torch.manual_seed(3)
    features, labels = torch.randn(16, 12), torch.randint(0, 8, (16,))
    return Net(), (features, labels)


def _plans(seeds: range, precision: str) -> list[dict[str, Any]]:
    graph = capture_module(Model(*_net()), "net").graph
    strategies = Strategies(graph, (1, 2), precision)
    return [strategies.plan(4, seed) for seed in seeds]


def _trained(rank: int, plan: dict[str, Any], steps: int) -> tuple[list[float], list[float]]:
    """Losses under the plan and of one device; running statistics agree after the first step."""
    module, batch = _net()
    alone = copy.deepcopy(module)
    checked = documents.read(plan, documents.Plan)
    model = ParallelModule(
        capture_module(Model(module, batch), "net"), checked, mesh_of(checked, rank)
    )
    ours = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-2)
    theirs = torch.optim.AdamW(alone.parameters(), lr=1e-2)
    scaler = ShardedGradScaler("cpu", init_scale=256.0, enabled=plan["precision"] == "fp16")
    losses: tuple[list[float], list[float]] = ([], [])
    for step in range(steps):
        ours.zero_grad()
        loss = model(*batch)
        scaler.scale(loss).backward()
        scaler.step(ours)
        scaler.update()
        losses[0].append(float(loss.detach()))
        theirs.zero_grad()
        loss = alone(*batch)
        loss.backward()
        theirs.step()
        losses[1].append(float(loss.detach()))
        if step == 0 and plan["micro_batches"] == 1:
            model.sync_buffers()
            for name, buffer in model.named_buffers():
                torch.testing.assert_close(buffer, alone.get_buffer(name), rtol=0.01, atol=0.01)
    return losses


@pytest.mark.parametrize("precision", some(["bf16", "fp16"], lambda bits: bits == "bf16"))
def test_training_in_16_bits_learns_as_in_float32(four: SharedRanks, precision: str) -> None:
    for plan in _plans(range(4), precision):
        for losses, wanted in four(_trained, plan, 20):
            assert wanted[-1] < wanted[0] / 3
            for a, b in zip(losses, wanted, strict=True):
                assert a == pytest.approx(b, abs=0.05 * wanted[0]), plan["id"]


def _saved(rank: int, path: Path, plan: dict[str, Any], first: bool) -> list[float]:
    """Three steps and a checkpoint, or what follows a checkpoint; then three more steps."""
    module, batch = _net()
    checked = documents.read(plan, documents.Plan)
    model = ParallelModule(
        capture_module(Model(module, batch), "net"), checked, mesh_of(checked, rank)
    )
    optimizer = MasterWeights(model.parameters(), torch.optim.Adam, lr=1e-2)

    def steps() -> list[float]:
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(*batch)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    if first:
        steps()
        save(model, optimizer, path)
    else:
        load(model, optimizer, path)
        for parameter, state in optimizer.state.items():
            assert state["master"].dtype is state["exp_avg"].dtype is torch.float32
            assert torch.equal(state["master"].bfloat16(), parameter)
            assert not torch.equal(state["master"], parameter.float())
    return steps()


def test_checkpoints_keep_master_weights_across_plans(four: SharedRanks, tmp_path: Path) -> None:
    before, *others = [p for p in _plans(range(12), "bf16") if p["micro_batches"] == 1][:3]
    wanted = four(_saved, tmp_path, before, True)[0]
    for plan in others:
        for losses in four(_saved, tmp_path, plan, False):
            assert losses == pytest.approx(wanted, rel=0.02)


def _parameters(dtype: Any) -> list[Any]:
    random = torch.Generator().manual_seed(1)
    shapes = ((4, 3), (5,), (2, 2))
    return [torch.nn.Parameter(torch.randn(s, generator=random).to(dtype)) for s in shapes]


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.AdamW, {"betas": (0.8, 0.9)}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_master_weights_are_the_optimizer_on_float32(
    tmp_path: Path, optimizer: Any, options: dict[str, Any]
) -> None:
    """Groups, schedulers and a state dictionary on the way; the last parameter has 32 bits."""
    halves = [*_parameters(torch.bfloat16)[:2], _parameters(torch.float32)[2]]
    wide = [torch.nn.Parameter(p.detach().float()) for p in halves]

    def groups(parameters: list[Any]) -> list[dict[str, Any]]:
        return [{"params": parameters[:1], "weight_decay": 0.1}, {"params": parameters[1:]}]

    ours = MasterWeights(groups(halves), optimizer, lr=0.05, **options)
    theirs = optimizer(groups(wide), lr=0.05, foreach=False, **options)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.7) for o in (ours, theirs)]
    random = torch.Generator().manual_seed(2)
    for step in range(6):
        for half, whole in zip(halves, wide, strict=True):
            half.grad = torch.randn(half.shape, generator=random).to(half.dtype)
            whole.grad = half.grad.float()
        ours.step()
        theirs.step()
        for scheduler in schedulers:
            scheduler.step()
        for half, whole in zip(halves, wide, strict=True):
            kept = ours.state[half].get("master", half)
            torch.testing.assert_close(kept, whole, rtol=0, atol=0, check_dtype=True)
            assert torch.equal(half, whole.to(half.dtype))
        if step == 2:
            torch.save(ours.state_dict(), tmp_path / "state.pt")
            ours = MasterWeights(groups(halves), optimizer, lr=1.0, **options)
            ours.load_state_dict(torch.load(tmp_path / "state.pt"))
            schedulers[0].optimizer = ours


def test_small_updates_are_not_lost() -> None:
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = MasterWeights([parameter], torch.optim.SGD, lr=1e-3)
    for _ in range(100):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert torch.allclose(parameter.float(), torch.full((3,), 0.9), atol=4e-3)
