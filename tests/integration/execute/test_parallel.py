"""`parallelize` as a user calls it, on four ranks: what it computes, keeps, runs again, refuses."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import shardwise  # noqa: E402
from harness.execute import equality  # noqa: E402
from harness.execute.keeper import SharedRanks  # noqa: E402
from harness.execute.remembered import parallelize  # noqa: E402
from harness.execute.strategies import Strategies  # noqa: E402
from harness.tiers import some  # noqa: E402
from shardwise.capture.model import Model  # noqa: E402
from shardwise.errors import BadInput  # noqa: E402
from shardwise.execute import collectives, crossing  # noqa: E402
from shardwise.execute.captured import capture_module  # noqa: E402

pytestmark = pytest.mark.torch
BATCH = 16


def a_module() -> Any:
    """A user's module, with its loss, tied weights and a buffer."""
    torch.manual_seed(3)

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(12, 20)
            self.second = torch.nn.Linear(20, 12)
            self.tied = torch.nn.Linear(12, 20)
            self.tied.weight = self.first.weight
            self.last = torch.nn.Linear(20, 8)
            self.register_buffer("scale", torch.full((20,), 0.5))

        def forward(self, features: Any, labels: Any) -> Any:
            x = torch.relu(self.first(features)) * self.scale
            x = torch.tanh(self.tied(torch.relu(self.second(x))))
            return torch.nn.functional.cross_entropy(self.last(x), labels)

    return Net()


def a_batch() -> tuple[Any, Any]:
    """Features and labels."""
    random = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 8, (BATCH,), generator=random)
    return torch.randn(BATCH, 12, generator=random), labels


def plans(seeds: range, **options: Any) -> list[dict[str, Any]]:
    """Random plans of the module."""
    strategies = Strategies(capture_module(Model(a_module(), a_batch()), "net").graph)
    return [strategies.plan(4, seed, **options) for seed in seeds]


def _errors(rank: int, plan: dict[str, Any]) -> tuple[float, float]:
    """The largest errors of loss and gradients; called with the whole batch, then with a share."""
    module, (features, labels) = a_module(), a_batch()
    loss = module(features, labels)
    loss.backward()
    model = shardwise.parallelize(module, (features, labels), plan)
    worst, off = 0.0, 0.0
    share, named = model.share(features, labels=labels)
    shares = (*share, named["labels"])
    assert [len(t) for t in shares] == [BATCH // 4] * 2
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in shares)
    if plan["micro_batches"] == 1:
        rows = slice(rank * BATCH // 4, (rank + 1) * BATCH // 4)
        assert torch.equal(shares[0], features[rows]) and torch.equal(shares[1], labels[rows])
    for batch in ((features, labels), shares):
        model.zero_grad()
        computed = model(*batch)
        (computed * 3).backward()
        off = max(off, abs(float(computed.detach() - loss.detach())))
        for name, parameter in model.named_parameters():
            whole = model.store.whole(name, parameter.grad) / 3
            wanted = module.get_parameter(name).grad
            worst = max(worst, float((whole - wanted).abs().max() / wanted.abs().max()))
    return off, worst


@pytest.mark.parametrize(
    "seeds", some([range(3), range(3, 10)], lambda seeds: seeds.start == 0), ids=str
)
def test_a_users_module_computes_what_it_computes_on_one_device(
    four: SharedRanks, seeds: range
) -> None:
    for plan in plans(seeds):
        for off, worst in four(_errors, plan):
            assert off < 1e-6
            assert worst < equality.TOLERANCE, plan["id"]


def _without_sums(rank: int, plan: dict[str, Any]) -> tuple[float, float]:
    """As `_errors`, with every all-reduce of a crossing left out."""
    kept = collectives.run

    def run(x: Any, path: Any, mesh: Any, shape: Any) -> Any:
        return kept(x, [step for step in path if step.operation != "all_reduce"], mesh, shape)

    crossing.run = run  # type: ignore[attr-defined]
    try:
        return _errors(rank, plan)
    finally:
        crossing.run = kept  # type: ignore[attr-defined]


def test_a_lost_all_reduce_is_seen(four: SharedRanks) -> None:
    seen = [max(max(pair) for pair in four(_without_sums, plan)) for plan in plans(range(3))]
    assert max(seen) > 1e-3


def _runs(rank: int, plan: dict[str, Any]) -> dict[str, int]:
    """How often each operator ran in one step."""
    model = parallelize(a_module(), a_batch(), plan)
    count: Counter[str] = Counter()
    for instruction in model._programs[0].instructions:
        if instruction.tensors:
            instruction.run = _counting(instruction.name, instruction.run, count)
    model(
        *a_batch(),
    ).backward()
    return dict(count)


def _counting(name: str, run: Any, count: Counter[str]) -> Any:
    def counted(*inputs: Any) -> Any:
        count[name] += 1
        return run(*inputs)

    return counted


def test_recomputed_groups_and_no_others_run_twice(four: SharedRanks) -> None:
    for plan in plans(range(4), zero=(0,), micro_batches=1):
        again = {
            op["name"]: group["recompute"] and op.get("runs_again", True)
            for group in plan["groups"]
            for op in group["operators"]
        }
        if not any(again.values()):
            continue
        for runs in four(_runs, plan):
            twice = {name for name, count in runs.items() if count == 2}
            assert set(runs.values()) <= {1, 2}
            # Where others of its segment keep what they have made, the second run may end earlier.
            assert twice
            assert twice <= {name for name, runs_again in again.items() if runs_again}


def _with_another_layout(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan, but for the layout of one operator's results."""
    changed = copy.deepcopy(plan)
    outputs = changed["groups"][0]["operators"][0]["outputs"]
    name = next(iter(outputs))
    outputs[name] = ["partial" for _ in outputs[name]]
    return changed


def _refusals(rank: int, plan: dict[str, Any]) -> list[str]:
    module, (features, labels) = a_module(), a_batch()
    model = parallelize(module, (features, labels), plan)
    model.eval()
    attempts = [
        lambda: parallelize(module, (features[:8], labels[:8]), plan),
        lambda: parallelize(torch.nn.Sequential(module.first), (features,), plan),
        lambda: parallelize(module, (features, labels), {**plan, "gpus": 8}),
        lambda: parallelize(module, (features, labels), {**plan, "precision": "fp7"}),
        lambda: parallelize(module, (features, labels), _with_another_layout(plan)),
        lambda: model(features, labels),
        lambda: model.train()(features[:7], labels),
        lambda: model.train()(features.double(), labels),
        lambda: model.train()(features),
    ]
    said = []
    for attempt in attempts:
        try:
            attempt()
        except BadInput as error:
            said.append(str(error))
        else:
            said.append("nothing")
    return said


def test_what_does_not_fit_is_refused_in_one_line(four: SharedRanks) -> None:
    words = (
        "its batch is 8, the plan's 16",
        "operator 0",
        "the plan is for 8 devices, there are 4 ranks",
        "unknown precision 'fp7' (expected captured, bf16, fp16, fp8, fp8:tensorwise",
        "but its split gives",
        "training step",
        "features: has the shape [7, 12] (expected [16, 12], the whole batch, or [4, 12]",
        "features: is a torch.float64 (expected a tensor of float32)",
        "1 arguments (expected 2",
    )
    for said in four(_refusals, plans(range(1), micro_batches=1)[0]):
        for line, expected in zip(said, words, strict=True):
            assert expected in line
            assert "\n" not in line
