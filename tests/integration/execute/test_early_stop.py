"""What runs again in backward: what torch's own checkpoint of the same layers runs again."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from harness.execute.keeper import SharedRanks, keeper  # noqa: E402
from harness.execute.strategies import Strategies  # noqa: E402
from shardwise import documents  # noqa: E402
from shardwise.capture.model import Model  # noqa: E402
from shardwise.execute.captured import Captured, capture_module  # noqa: E402
from shardwise.execute.parallel import ParallelModule, mesh_of  # noqa: E402

pytestmark = pytest.mark.torch

COUNTED = ("mm", "silu", "mul", "mean", "rsqrt", "neg", "cat", "pow")
"""Operators of which torch runs the same ones whichever way a graph was captured."""

LAYERS = 3


class _Count(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.kinds: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.kinds[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class _Loss(torch.nn.Module):  # type: ignore[misc]
    """A small Llama with its loss."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.LlamaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=4,
            vocab_size=64,
            use_cache=False,
        )
        torch.manual_seed(1)
        self.model = transformers.LlamaForCausalLM(config)

    def forward(self, tokens: Any) -> Any:
        return self.model(input_ids=tokens).logits.square().mean()


def _tokens() -> Any:
    return torch.arange(32).reshape(2, 16)


@cache
def _captured() -> Captured:
    return capture_module(Model(_Loss(), (_tokens(),), {}, "", ("tokens",)), "Llama")


def _backward(loss: Any) -> Counter[str]:
    count = _Count()
    with count:
        loss.backward()
    return count.kinds


def _added(again: Counter[str], once: Counter[str]) -> dict[str, int]:
    return {kind: again[kind] - once[kind] for kind in COUNTED}


@cache
def _of_checkpoint() -> dict[str, int]:
    """Operators that torch's checkpoint of every layer adds to backward."""
    plain, checkpointed = _Loss(), _Loss()
    checkpointed.model.activation_checkpointing_enable({"use_reentrant": False})
    checkpointed.train()
    return _added(_backward(checkpointed(_tokens())), _backward(plain(_tokens())))


def _layers_again() -> dict[str, Any]:
    """A plan on one device that recomputes every group of a layer, and no other."""
    strategies = Strategies(_captured().graph)
    problem = strategies.problem(1, (0,), "auto")
    groups = Counter(problem.context.segments)
    choices = [
        int(cost.recompute.argmax()) if groups[segment] > 1 else int(cost.recompute.argmin())
        for cost, segment in zip(problem.costs, problem.context.segments, strict=True)
    ]
    return strategies.chosen(1, problem, choices)


def _executed(rank: int, plan: dict[str, Any]) -> Counter[str]:
    checked = documents.read(plan, documents.Plan)
    model = ParallelModule(_captured(), checked, mesh_of(checked, rank), "cpu")
    inputs, _ = model.share(*_captured().model.args)
    return _backward(model(*inputs))


def test_a_plan_runs_again_what_torchs_checkpoint_does() -> None:
    never = Strategies(_captured().graph).plan(1, 0, zero=(0,), recompute="never", micro_batches=1)
    one = SharedRanks(keeper(), 1)
    (again,), (once,) = one(_executed, _layers_again()), one(_executed, never)
    found = _added(again, once)
    assert found == _of_checkpoint()
    # Of seven products of a layer the last, the down projection, does not run again.
    assert found["mm"] == 6 * LAYERS


def test_the_replayed_step_has_the_same_operators_again() -> None:
    strategies = Strategies(_captured().graph)
    problem = strategies.problem(1, (0,), "auto")
    rerun = problem.context.rerun
    again = [
        member.operator
        for pattern in problem.patterns
        for member in pattern.members
        if Counter(problem.context.segments)[problem.context.segments[pattern.group.index]] > 1
        and rerun.computes(member)
    ]
    kinds = Counter(operator.kind for operator in again)
    expected = _of_checkpoint()
    assert kinds["aten.linear.default"] == expected["mm"]
    assert kinds["aten.silu.default"] == expected["silu"]
    assert kinds["aten.mul.Tensor"] == expected["mul"]
    assert kinds["aten.rsqrt.default"] == expected["rsqrt"]
