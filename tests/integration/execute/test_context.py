"""Attention whose keys are elsewhere computes what one device computes: rings, gathered keys,
and both with heads elsewhere, in zigzag order and as they are."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness.execute.keeper import SharedRanks  # noqa: E402
from harness.execute.pipelines import Pipelines  # noqa: E402
from harness.execute.remembered import parallelize  # noqa: E402
from harness.execute.strategies import Strategies  # noqa: E402
from shardwise.capture.model import Model  # noqa: E402
from shardwise.execute.captured import capture_module  # noqa: E402

pytestmark = pytest.mark.torch

BATCH, HEADS, GROUPS, WIDTH, WORDS = 4, 4, 2, 16, 24
SPLITS = {
    "gather": ("query", "query"),
    "ring": ("ring", "ring"),
    "Ulysses × ring": ("head", "ring"),
    "ring × Ulysses": ("ring", "head"),
    "samples × ring": ("batch", "ring"),
    "heads": ("head", None),
}


def a_module(causal: bool = True) -> Any:
    """Two layers of grouped-query attention with a table of positions, and the loss."""
    torch.manual_seed(3)

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            part = WIDTH // HEADS * GROUPS
            self.query = torch.nn.Linear(WIDTH, WIDTH)
            self.key = torch.nn.Linear(WIDTH, part, bias=False)  # its gradient would be zero
            self.value = torch.nn.Linear(WIDTH, part)
            self.last = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            q, k, v = (
                of(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)
                for of in (self.query, self.key, self.value)
            )
            seen = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=True
            )
            return x + self.last(seen.transpose(1, 2).reshape(batch, length, WIDTH))

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(WORDS, WIDTH)
            self.places = torch.nn.Embedding(64, WIDTH)
            self.layers = torch.nn.ModuleList(Layer() for _ in range(2))
            self.scores = torch.nn.Linear(WIDTH, WORDS)

        def forward(self, ids: Any, labels: Any) -> Any:
            x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
            for layer in self.layers:
                x = layer(x)
            scores = self.scores(x).transpose(1, 2)
            return torch.nn.functional.cross_entropy(scores, labels)

    return Net().double()


def a_batch(length: int) -> tuple[Any, Any]:
    """Ids and labels."""
    random = torch.Generator().manual_seed(5)
    ids, labels = torch.randint(0, WORDS, (2, BATCH, length), generator=random)
    return ids, labels


def a_plan(
    length: int, splits: tuple[str | None, ...], seed: int, causal: bool = True, **options: Any
) -> dict[str, Any]:
    """A random plan of the module whose attention is split so."""
    graph = capture_module(Model(a_module(causal), a_batch(length)), "net").graph
    pins = tuple(
        f"layers.*scaled_dot*:m{axis}={'none' if name is None else name}"
        for axis, name in enumerate(splits)
    )
    return Strategies(graph, pins=pins).plan(4, seed, **options)


def _worst_gradient(model: Any, module: Any) -> float:
    """The largest relative error of this rank's gradients against those of one device."""
    worst = 0.0
    for name, parameter in model.named_parameters():
        whole = model.store.whole(name, parameter.grad)
        wanted = module.get_parameter(name).grad
        worst = max(worst, float((whole - wanted).abs().max() / wanted.abs().max()))
    return worst


def _errors(
    rank: int, length: int, causal: bool, plan: dict[str, Any]
) -> tuple[float, float, bool]:
    """The errors of loss and gradients, and whether sequences lie in zigzag order."""
    module, batch = a_module(causal), a_batch(length)
    loss = module(*batch)
    loss.backward()
    model = parallelize(copy.deepcopy(module), batch, plan)
    model.zero_grad()
    computed = model(*batch)
    computed.backward()
    worst = _worst_gradient(model, module)
    off = abs(float(computed.detach() - loss.detach()))
    orders = any(one.name.startswith("order ") for one in model._programs[0].instructions)
    return off, worst, orders


def _split(plan: dict[str, Any]) -> list[list[str | None]]:
    return [
        operator["split"]
        for group in plan["groups"]
        for operator in group["operators"]
        if "scaled_dot" in operator["kind"]
    ]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", SPLITS)
def test_attention_split_by_positions_computes_what_one_device_computes(
    four: SharedRanks, name: str, causal: bool
) -> None:
    splits = SPLITS[name]
    parts = 2 ** sum(split in ("query", "ring") for split in splits)
    for seed, length in enumerate((16, 12, 15)):
        if length % 2 and parts == 1:
            continue
        plan = a_plan(length, splits, seed, causal)
        assert all(found[1] == splits[1] for found in _split(plan))
        for off, worst, zigzag in four(_errors, length, causal, plan):
            assert off < 1e-11 and worst < 1e-9, (length, off, worst)
            assert zigzag is (causal and parts > 1 and length % (2 * parts) == 0)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_ring_goes_with_zero_recomputation_and_micro_batches(
    four: SharedRanks, zero: int
) -> None:
    options = {"zero": (zero,), "recompute": "always", "micro_batches": 2}
    plan = a_plan(16, SPLITS["ring"], zero, **options)
    assert plan["micro_batches"] == 2
    for off, worst, zigzag in four(_errors, 16, True, plan):
        assert off < 1e-11 and worst < 1e-9 and zigzag


def _errors_of_pipeline(rank: int, pipeline: dict[str, Any]) -> tuple[float, float, bool]:
    """The errors of loss and gradients of this rank's stages, and whether sequences lie in zigzag
    order."""
    module, batch = a_module(), a_batch(16)
    wanted = module(*batch)
    wanted.backward()
    model = parallelize(copy.deepcopy(module), batch, pipeline)
    loss = model(*batch)
    loss.backward()
    worst = _worst_gradient(model, module)
    orders = any(o.name.startswith("order ") for p in model._programs for o in p.instructions)
    return abs(float(loss.detach() - wanted.detach())), worst, orders


def test_stages_of_a_pipeline_lie_in_zigzag_order_too(four: SharedRanks) -> None:
    graph = capture_module(Model(a_module(), a_batch(16)), "net").graph
    random = Pipelines(graph)
    drawn = (random.pipeline(4, 2, seed, micro_batches=2) for seed in range(60))
    both = [p for p in drawn if all({*of} & {"ring", "query"} for of in _split(p))][:2]
    assert both
    for pipeline in both:
        found = four(_errors_of_pipeline, pipeline)
        assert all(off < 1e-11 and worst < 1e-9 for off, worst, _ in found)
        assert any(zigzag for _, _, zigzag in found)
