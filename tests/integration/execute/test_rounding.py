"""Plans whose linear layers multiply 8 or 4 bits compute what one device computes so.

The one device is a module that rounds by the formulas, with whole tensors in memory, in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness.execute import equality  # noqa: E402
from harness.execute.equality import DOUBLE  # noqa: E402
from harness.execute.keeper import SharedRanks, graph_of_family, keeper  # noqa: E402
from harness.execute.pipelines import Pipelines  # noqa: E402
from harness.execute.remembered import capture_module  # noqa: E402
from harness.execute.strategies import Strategies  # noqa: E402
from shardwise import documents  # noqa: E402
from shardwise.capture.model import Model  # noqa: E402
from shardwise.execute.captured import Captured  # noqa: E402
from shardwise.execute.parallel import ParallelModule, mesh_of  # noqa: E402
from shardwise.execute.pipeline.module import PipelineModule  # noqa: E402
from shardwise.sharding.recipes import RECIPES  # noqa: E402

pytestmark = pytest.mark.torch

E4M3, E5M2, FOUR = 448.0, 57344.0, 6.0
BATCH, TOKENS, WIDTH = 4, 64, 64
INSIDE = ("query", "key", "up", "down")
"""The layers that recipes round: not the last before the loss."""


class Net(torch.nn.Module):  # type: ignore[misc]
    """Layers that share their input, one after another, and one before a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Linear(WIDTH, WIDTH)
        self.key = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)
        self.last = torch.nn.Linear(WIDTH, 16)

    def forward(self, features: Any, labels: Any) -> Any:
        mixed = torch.tanh(self.query(features)) * self.key(features)
        hidden = features + self.down(torch.nn.functional.gelu(self.up(mixed)))
        return torch.nn.functional.cross_entropy(self.last(hidden).flatten(0, 1), labels.flatten())


def _net() -> tuple[Net, tuple[Any, Any]]:
    torch.manual_seed(5)
    net = Net().double()
    features = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.float64)
    # Numbers of very different sizes, so that blocks have very different scales.
    features *= torch.exp(3 * torch.randn(BATCH, TOKENS, 1, dtype=torch.float64))
    return net, (features, torch.randint(0, 16, (BATCH, TOKENS)))


@cache
def _captured() -> Captured:
    return capture_module(Model(*_net()), "rounded")


# One device, by the formulas


def _to(x: Any, largest: float) -> Any:
    if largest == FOUR:
        values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=x.dtype)
        off = (x.abs().unsqueeze(-1) - values).abs()
        return values[off.argmin(-1)] * x.sign()
    dtype = torch.float8_e4m3fn if largest == E4M3 else torch.float8_e5m2
    return x.clamp(-largest, largest).to(dtype).to(x.dtype)


@dataclass
class Rule:
    """Rounding by blocks of `rows` and `along` the summed dimension, which comes last here."""

    largest: float
    rows: int | None
    along: int | None
    powers: bool = False
    two: bool = False

    def __call__(self, x: Any) -> Any:
        rows, columns = x.shape
        a, b = self.rows or rows, self.along or columns
        a, b = min(a, rows), min(b, columns)
        blocks = x.reshape(rows // a, a, columns // b, b)
        scales = blocks.abs().amax((1, 3), keepdim=True) / self.largest
        if self.powers:
            scales = 2.0 ** torch.ceil(torch.log2(scales))
        if self.two:
            whole = x.abs().max() / (self.largest * E4M3)
            scales = _to(scales / whole, E4M3) * whole
        return (_to(blocks / scales, self.largest) * scales).reshape(rows, columns)


@dataclass
class Formula:
    """How data, weights and gradients are rounded; `sixteen` that the weight's gradient is
    not. `weight_x` is the weight's for the gradient of data where that is another."""

    data: Rule
    weight: Rule
    gradient: Rule
    sixteen: bool = False
    weight_x: Rule | None = None


WHOLE = Rule(E4M3, None, None)
ROWS = Rule(E4M3, 1, None, powers=True)
MX = Rule(E4M3, 1, 32, powers=True)
FORMULAS = {
    "fp8:tensorwise": Formula(WHOLE, WHOLE, Rule(E5M2, None, None)),
    "fp8:rowwise": Formula(ROWS, ROWS, ROWS),
    "fp8:rowwise_with_gw_hp": Formula(
        ROWS, ROWS, ROWS, sixteen=True, weight_x=Rule(E4M3, None, None, powers=True)
    ),
    "fp8:blockwise": Formula(
        Rule(E4M3, 1, 128, powers=True),
        Rule(E4M3, 128, 128, powers=True),
        Rule(E4M3, 1, 128, powers=True),
    ),
    "fp8:mxfp8": Formula(MX, MX, MX),
    "nvfp4": Formula(
        Rule(FOUR, 1, 16, two=True), Rule(FOUR, 16, 16, two=True), Rule(FOUR, 1, 16, two=True)
    ),
}


class Layer(torch.autograd.Function):  # type: ignore[misc]
    """y = x wᵀ of matrices; tokens of one sample after another, in blocks within samples."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, formula: Formula) -> Any:
        ctx.save_for_backward(x, w)
        ctx.formula = formula
        return formula.data(x) @ formula.weight(w).t()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (dy,), (x, w), f = gradients, ctx.saved_tensors, ctx.formula
        dx = f.gradient(dy) @ (f.weight_x or f.weight)(w.t().contiguous()).t()
        if f.sixteen:
            return dx, dy.t() @ x, None
        blocks = f.data.along
        if blocks is not None and blocks > TOKENS:
            data, gradient = (
                Rule(r.largest, r.rows, TOKENS, r.powers, r.two) for r in (f.data, f.gradient)
            )
        else:
            data, gradient = f.data, f.gradient
        dw = gradient(dy.t().contiguous()) @ data(x.t().contiguous()).t()
        return dx, dw, None


def _alone(net: Net, batch: tuple[Any, Any], formula: Formula, parts: int) -> Any:
    def linear(layer: Any, x: Any) -> Any:
        y = Layer.apply(x.flatten(0, 1), layer.weight, formula).unflatten(0, x.shape[:2])
        return y if layer.bias is None else y + layer.bias

    for name in INSIDE:
        layer = getattr(net, name)
        layer.forward = lambda x, layer=layer: linear(layer, x)
    total = 0.0
    for features, labels in zip(*(x.chunk(parts) for x in batch), strict=True):
        loss = net(features, labels) / parts
        loss.backward()
        total += float(loss.detach())
    return total, {name: p.grad for name, p in net.named_parameters()}


def _plans(recipe: str, seeds: range, micro_batches: tuple[int, ...] = (1, 2)) -> list[Any]:
    strategies = Strategies(_captured().graph, micro_batches, pins=(f"*:precision={recipe}",))
    return [strategies.plan(4, seed) for seed in seeds]


def _errors(rank: int, plan: dict[str, Any], recipe: str) -> list[float]:
    """How far the loss and each gradient are from one device's, relative to their largest."""
    checked = documents.read(plan, documents.Plan)
    model = ParallelModule(_captured(), checked, mesh_of(checked, rank))
    net, batch = _net()
    loss = model(*batch)
    loss.backward()
    wanted, gradients = _alone(net, batch, FORMULAS[recipe], plan["micro_batches"])
    errors = [abs(float(loss.detach()) - wanted) / wanted]
    for name, parameter in model.store.parameters().items():
        whole = model.store.whole(name, parameter.grad)
        theirs = gradients[name]
        errors.append(float((whole - theirs).abs().max() / theirs.abs().max()))
    return errors


@pytest.mark.parametrize("recipe", FORMULAS)
def test_a_plan_rounds_as_one_device(four: SharedRanks, recipe: str) -> None:
    plans = _plans(recipe, range(4))
    layers = {o["name"]: o for g in plans[0]["groups"] for o in g["operators"]}
    assert sum(o.get("precision") == recipe for o in layers.values()) >= len(INSIDE)
    for plan in plans:
        for errors in four(_errors, plan, recipe):
            assert max(errors) < 1e-10, (plan["id"], errors)


def _delayed(rank: int, plan: dict[str, Any]) -> list[float]:
    """How far the losses of some steps are from one device's with scales of the step before."""
    checked = documents.read(plan, documents.Plan)
    model = ParallelModule(_captured(), checked, mesh_of(checked, rank))
    net, batch = _net()
    before: dict[tuple[str, str], Any] = {}

    def rounded(x: Any, largest: float, key: tuple[str, str]) -> Any:
        most = before.get(key, torch.tensor(largest, dtype=torch.float64))
        before[key] = x.detach().abs().max()
        scale = most / largest
        return _to(x / scale, largest) * scale

    class Delayed(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any, name: str) -> Any:
            x, w = rounded(x, E4M3, (name, "x")), rounded(w, E4M3, (name, "w"))
            ctx.save_for_backward(x, w)
            ctx.name = name
            return x @ w.t()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            x, w = ctx.saved_tensors
            dy = rounded(gradients[0], E5M2, (ctx.name, "dy"))
            return dy @ w, dy.t() @ x, None

    def linear(name: str, layer: Any, x: Any) -> Any:
        y = Delayed.apply(x.flatten(0, 1), layer.weight, name).unflatten(0, x.shape[:2])
        return y if layer.bias is None else y + layer.bias

    for name in INSIDE:
        layer = getattr(net, name)
        layer.forward = lambda x, name=name, layer=layer: linear(name, layer, x)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (model, net))
    errors = []
    for _ in range(4):
        for module, optimizer in ((model, ours), (net, theirs)):
            optimizer.zero_grad()
            loss = module(*batch)
            loss.backward()
            optimizer.step()
            errors.append(float(loss.detach()))
    return [abs(a / b - 1.0) for a, b in zip(errors[::2], errors[1::2], strict=True)]


def test_delayed_scales_are_those_of_the_step_before(four: SharedRanks) -> None:
    strategies = Strategies(_captured().graph, (1,), pins=("*:precision=fp8:delayed",))
    for seed, recompute in ((1, "never"), (2, "always")):
        plan = strategies.plan(4, seed, recompute=recompute)
        for errors in four(_delayed, plan):
            assert max(errors) < 1e-10, (plan["id"], errors)


@contextmanager
def _any_size(recipe: str) -> Iterator[None]:
    """Lets a recipe take layers of any size, as those of toys have."""
    known: dict[str, Any] = RECIPES  # type: ignore[assignment]
    own = known[recipe]
    known[recipe] = replace(own, multiple=1)
    try:
        yield
    finally:
        known[recipe] = own


def _results(rank: int, name: str, plan: dict[str, Any], recipe: str) -> dict[str, Any]:
    case = equality.CASES[name]
    with _any_size(recipe):
        model = equality.parallel(case, plan)
    with case.computing():
        loss = model(*case.model.args)
        loss.backward()
    gradients = {
        n: model.store.whole(n, p.grad)
        for n, p in model.store.parameters().items()
        if p.grad is not None
    }
    return {"loss": loss.detach(), **gradients}


@pytest.mark.parametrize(
    ("family", "recipe"),
    [
        ("GPT-2", "fp8:tensorwise"),
        ("GPT-2", "fp8:rowwise"),
        ("Mixtral", "fp8:tensorwise"),
        ("Llama", "fp8:mxfp8"),
    ],
)
def test_layers_of_other_kinds_round_as_on_one_device(
    four: SharedRanks, family: str, recipe: str
) -> None:
    """Against the same plan in which every rank computes everything."""
    name = f"{family}{DOUBLE}"
    graph = keeper().run(graph_of_family, 4, name)
    with _any_size(recipe):
        rules = f"*:precision={recipe}"
        alone = Strategies(graph, (1,), pins=(rules, "split=none")).plan(4, 0)
        plans = [Strategies(graph, (1,), pins=(rules,)).plan(4, seed) for seed in range(3)]
        plain = Strategies(graph, (1,), pins=("split=none",)).plan(4, 0)
    wanted = four(_results, name, alone, recipe)[0]
    unrounded = four(_results, name, plain, recipe)[0]
    assert abs(float(wanted["loss"] - unrounded["loss"])) > 1e-6
    for plan in plans:
        for found in four(_results, name, plan, recipe):
            assert found.keys() == wanted.keys()
            for key, tensor in found.items():
                largest = max(float(wanted[key].abs().max()), 1e-3)
                off = float((tensor - wanted[key]).abs().max()) / largest
                assert off < 1e-9, (plan["id"], key, off)


def _piped(rank: int, pipeline: dict[str, Any], recipe: str) -> list[float]:
    model = PipelineModule(_captured(), documents.read(pipeline, documents.Pipeline), "cpu")
    net, batch = _net()
    loss = model(*batch)
    loss.backward()
    wanted, gradients = _alone(net, batch, FORMULAS[recipe], pipeline["micro_batches"])
    errors = [abs(float(loss.detach()) - wanted) / wanted]
    names = dict(model.named_parameters())
    for name, parameter in names.items():
        if parameter.grad is not None and parameter.shape == gradients[name].shape:
            theirs = gradients[name]
            errors.append(float((parameter.grad - theirs).abs().max() / theirs.abs().max()))
    return errors


@pytest.mark.parametrize(("schedule", "recipe"), [("1f1b", "fp8:mxfp8"), ("zb-h1", "fp8:rowwise")])
def test_pipelines_round_as_one_device(four: SharedRanks, schedule: str, recipe: str) -> None:
    drawn = Pipelines(_captured().graph, pins=(f"*:precision={recipe}",))
    for seed in range(2):
        pipeline = drawn.pipeline(4, 2, seed, schedule=schedule, zero=(0,))
        for errors in four(_piped, pipeline, recipe):
            assert max(errors) < 1e-10, (pipeline["id"], errors)
