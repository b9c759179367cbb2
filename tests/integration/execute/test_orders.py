"""Plans in other orders of execution than the program's: what they compute, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from harness.execute.bounds import equal  # noqa: E402
from harness.execute.keeper import SharedRanks  # noqa: E402
from harness.execute.remembered import parallelize  # noqa: E402
from harness.execute.strategies import Strategies  # noqa: E402
from harness.execute.swept import swept  # noqa: E402
from harness.tiers import some  # noqa: E402
from shardwise.capture.model import Model  # noqa: E402
from shardwise.errors import BadInput, ShardwiseError  # noqa: E402
from shardwise.execute.captured import capture_module  # noqa: E402

pytestmark = pytest.mark.torch

FAMILIES = ("GPT-2", "DLRM", "T5", "WideResNet", "LSTM")
CASES = [
    (kind, order, name)
    for kind in (True, False)
    for order in ("random", "rank")
    for name in FAMILIES
]
ALWAYS = {
    (True, "random", "DLRM"),
    (True, "rank", "T5"),
    (False, "random", "T5"),
    (False, "rank", "DLRM"),
}
"""What `make test` runs."""


@pytest.mark.parametrize(("mixed", "order", "family"), some(CASES, lambda case: case in ALWAYS))
def test_orders_compute_what_one_device_computes(mixed: bool, order: str, family: str) -> None:
    """Random strategies, uneven shares and servers among them, in random orders and by rank."""
    cases = ["--cases", "4:0:3", "--steps", "2", "--order", order, family]
    lines = swept(*(["--mixed"] if mixed else []), *cases)
    assert [line["seed"] for line in lines] == [0, 1, 2]
    for line in lines:
        assert equal(line), line


def two_towers() -> Any:
    """A module with two branches, weights that both read, and a buffer that both write."""
    torch.manual_seed(3)

    class Towers(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem = torch.nn.Linear(12, 16)
            self.tied = torch.nn.Linear(16, 16)
            self.norm = torch.nn.BatchNorm1d(16)
            self.deep = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
            self.last = torch.nn.Linear(16, 8)

        def forward(self, features: Any, labels: Any) -> Any:
            x = torch.relu(self.stem(features))
            one = self.norm(self.tied(x))
            other = self.norm(self.tied(torch.tanh(self.deep(x))))
            return torch.nn.functional.cross_entropy(self.last(one + other), labels)

    return Towers()


def a_batch() -> tuple[Any, Any]:
    """Features and labels."""
    random = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 8, (16,), generator=random)
    return torch.randn(16, 12, generator=random), labels


def _traced(rank: int, plan: dict[str, Any]) -> tuple[list[str], list[str], float, list[float]]:
    """Returns the operators as forward and backward ran them, the loss, and sums of gradients."""
    model = parallelize(two_towers(), a_batch(), plan)
    forward: list[str] = []
    backward: list[str] = []

    def watch(instruction: Any, slots: Any) -> None:
        if not instruction.tensors:
            return
        name = instruction.name
        forward.append(name)
        tensor = slots[instruction.outputs[0]]
        if tensor.requires_grad:
            tensor.register_hook(lambda _: backward.append(name))

    loss = model.run(a_batch(), {}, watch)
    (2.0 * loss).backward()
    store = model.store
    sums = [
        float(store.whole(n, p.grad).double().abs().sum()) for n, p in store.parameters().items()
    ]
    return forward, backward, float(loss.detach()), sums


@pytest.fixture(scope="module")
def strategies() -> Strategies:
    return Strategies(capture_module(Model(two_towers(), a_batch()), "net").graph, (1,))


@pytest.mark.parametrize("order", ["random", "rank"])
def test_what_ran_is_the_plans_order(four: SharedRanks, strategies: Strategies, order: str) -> None:
    """Forward and backward, on every rank, also where groups run again or are under ZeRO 3."""
    moved = False
    for seed in range(5):
        plan = strategies.plan(4, seed, order=order)
        plain = strategies.plan(4, seed)
        expected = four(_traced, plain)[0]
        assert expected[0] == plain["order"] and expected[1] == plain["order"][::-1]
        for forward, backward, loss, sums in four(_traced, plan):
            assert forward == plan["order"]
            assert backward == plan["schedule"]["backward"]
            assert loss == pytest.approx(expected[2], rel=1e-5)
            assert sums == pytest.approx(expected[3], rel=1e-4)
        moved |= backward != forward[::-1] and forward != plain["order"]
    assert moved


def _refused(rank: int, plan: dict[str, Any], compile: bool) -> str:
    try:
        parallelize(two_towers(), a_batch(), plan, compile=compile)
    except BadInput as error:
        return str(error)
    return ""


def test_orders_that_cannot_be_run_are_refused(four: SharedRanks, strategies: Strategies) -> None:
    plan = strategies.plan(4, 0, order="rank", zero=(0,), recompute="never", reuse=False)
    said = four(_refused, {**plan, "order": plan["order"][::-1]}, False)
    assert all("order: has" in text and "which it needs" in text for text in said)
    said = four(_refused, plan, True)
    assert all("backward runs in an order of its own" in text for text in said)


def _twice(rank: int, plan: dict[str, Any]) -> str:
    model = parallelize(two_towers(), a_batch(), plan)
    loss = model(*a_batch())
    loss.backward(retain_graph=True)
    try:
        loss.backward()
    except ShardwiseError as error:
        return str(error)
    return ""


def test_backward_runs_once(four: SharedRanks, strategies: Strategies) -> None:
    plan = strategies.plan(4, 1, order="random", zero=(0,), recompute="never", reuse=False)
    assert all("backward has run already" in text for text in four(_twice, plan))
