"""Plans under torch.compile: the same result, compiled once, the same order; what is refused.

`aot_eager` traces regions, forward and backward, and runs what it traced; only inductor writes and
compiles C++, which takes seconds for every region.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("timm")

from harness.execute import compiled  # noqa: E402
from harness.execute.bounds import DOUBLE_TOLERANCE, KINDS, TOLERANCE  # noqa: E402
from harness.execute.families import TOYS  # noqa: E402
from harness.execute.keeper import SharedRanks, keeper  # noqa: E402
from harness.execute.remembered import parallelize  # noqa: E402
from harness.execute.strategies import Strategies  # noqa: E402
from harness.tiers import some  # noqa: E402
from shardwise.capture.model import Model  # noqa: E402
from shardwise.errors import BadInput  # noqa: E402
from shardwise.execute.captured import capture_module  # noqa: E402
from shardwise.execute.instruction import Instruction  # noqa: E402
from shardwise.execute.local import LocalOperator  # noqa: E402
from shardwise.execute.region import Region  # noqa: E402
from shardwise.execute.regions import in_regions  # noqa: E402

pytestmark = pytest.mark.torch
STEPS = 3

COMPILED = [("MLP", 2), ("GPT-2", 2), ("Llama", 0), ("VGG", 1), ("ResNet float64", 0)]
"""Families and seeds that inductor compiles; the first two have two micro-batches."""

TRACED = [(family, seed) for seed in (0, 2) for family in TOYS]
"""Families and seeds that are traced; those of seed 2 have two micro-batches, where they can."""

KINKED = ("EfficientNet", "ResNet", "WideResNet", "Wav2Vec2-BERT", "SDXL U-Net")
"""Families in which rounding decides: with units near the kink of their ReLU (bounds.py), or with
gradients so small that Adam divides by little more than their rounding."""

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on CPUs: g++"
)


def trained(family: str, seed: int, backend: str) -> dict[str, Any]:
    result: dict[str, Any] = keeper().run(compiled.result, family, seed, 2, STEPS, backend)
    return result


def check(result: dict[str, Any]) -> None:
    """Checks that it computes what one device does, and compiled every region once in all steps."""
    assert "failed" not in result, result["failed"]
    bound = DOUBLE_TOLERANCE if "float64" in result["family"] else TOLERANCE
    assert max(result[kind] for kind in KINDS) <= bound, result
    for rank in result["ranks"]:
        assert rank["regions"] > 0 and rank["compiled"] >= 2 * rank["regions"]
        assert (rank["graphs"], rank["breaks"], rank["refused"]) == (rank["regions"], 0, [])


@needs_compiler
@pytest.mark.parametrize(("family", "seed"), some(COMPILED, lambda case: case == COMPILED[0]))
def test_compiled_plans_compute_what_one_device_computes(family: str, seed: int) -> None:
    result = trained(family, seed, "inductor")
    assert result["micro_batches"] == (2 if seed == 2 else 1)
    check(result)


@pytest.mark.full
@pytest.mark.parametrize(("family", "seed"), TRACED)
def test_traced_plans_compute_what_one_device_computes(family: str, seed: int) -> None:
    name = f"{family} float64" if family in KINKED else family
    result = trained(name, seed, "aot_eager")
    check(result)


def a_module() -> Any:
    torch.manual_seed(3)

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(12, 20)
            self.drop = torch.nn.Dropout(0.5)
            self.last = torch.nn.Linear(20, 8)

        def forward(self, features: Any, labels: Any) -> Any:
            x = self.drop(torch.tanh(self.first(features)).square())
            return torch.nn.functional.cross_entropy(self.last(x).sin(), labels)

    return Net()


def a_batch() -> tuple[Any, Any]:
    return torch.linspace(0, 1, 16 * 12).view(16, 12), torch.arange(16) % 8


def plans(seeds: range, **options: Any) -> list[dict[str, Any]]:
    strategies = Strategies(capture_module(Model(a_module(), a_batch()), "net").graph)
    return [strategies.plan(2, seed, **options) for seed in seeds]


def _programs(rank: int, plan: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The programs of a plan for eager and for compiled kernels, and what refuses to compile it."""
    eager = parallelize(a_module(), a_batch(), {**plan, "kernels": "eager"})
    asked = parallelize(a_module(), a_batch(), {**plan, "kernels": "compiled"})
    try:
        parallelize(a_module(), a_batch(), plan, compile=True)
    except BadInput as error:
        return eager.program, asked.program, str(error)
    return eager.program, asked.program, None


def test_a_plan_for_compiled_kernels_is_compiled(two: SharedRanks) -> None:
    (plan,) = plans(range(1), zero=(0,), recompute="never", reuse=False)
    for eager, asked, refused in two(_programs, plan):
        assert refused is None and eager.regions == () and asked.obstacle is None
        assert {"tanh", "square"} <= {name for region in asked.regions for name in region}
        assert "draws random numbers" in asked.uncompiled["drop.dropout"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"zero": (3,), "recompute": "never", "reuse": False}, "is under ZeRO 3"),
        ({"zero": (0,), "recompute": "always"}, "runs forward again in backward"),
    ],
)
def test_what_cannot_be_compiled_is_refused(two: SharedRanks, options: Any, why: str) -> None:
    """Asked for by the plan alone, it runs eagerly and says so."""
    for _, asked, refused in two(_programs, plans(range(1), **options)[0]):
        assert asked.regions == () and why in asked.obstacle
        assert refused is not None and why in refused and "compile" in refused


def test_moves_in_backward_are_refused(two: SharedRanks) -> None:
    (plan,) = plans(range(1), zero=(0,), recompute="never", reuse=False)
    moved = next(edge for edge in plan["edges"] if edge["forward"])
    moved["kept"], moved["again"] = "before", moved["forward"]
    for _, asked, refused in two(_programs, plan):
        assert moved["tensors"][0] in asked.obstacle and "--pin" in refused


def _total(*inputs: Any) -> list[Any]:
    return [sum(inputs)]


def operator(*slots: int, early: bool = False, untraced: str | None = None) -> Instruction:
    """An operator that makes the last of these slots of the others."""
    *inputs, output = slots
    run: Any = _total if early else LocalOperator(_total, "plain", False, untraced=untraced)
    return Instruction(f"to {output}", run, tuple(inputs), (output,), early=early)


def shape(program: list[Instruction]) -> list[Any]:
    """The operators of each region, and the names of other instructions."""
    return [i.run.operators if isinstance(i.run, Region) else i.name for i in program]


def test_a_region_ends_where_ranks_wait_and_not_where_an_input_is_cut() -> None:
    given = [
        operator(0, 1),
        operator(9, 2, early=True),
        operator(1, 2, 3),
        operator(3, 4, untraced="communicates"),
        operator(4, 5),
        operator(5, 6, early=True),
        operator(6, 7),
    ]
    program = in_regions(given, {7}, {}, 100)
    assert shape(program) == ["to 2", ("to 1", "to 3"), "to 4", "to 5", "to 6", "to 7"]
    region = program[1]
    assert (region.inputs, region.outputs, region.dead) == ((0, 2), (3,), (0, 2))


def test_a_region_ends_where_gradients_are_worth_a_collective() -> None:
    parameters = {20: 60, 21: 60, 22: 60}
    given = [operator(0, 20, 1), operator(1, 2), operator(2, 21, 3), operator(3, 4)]
    given += [operator(4, 22, 5), operator(5, 6)]
    names = [f"to {n}" for n in range(1, 7)]
    assert shape(in_regions(given, {6}, parameters, 100)) == [tuple(names[:4]), tuple(names[4:])]
    assert shape(in_regions(given, {6}, parameters, 200)) == [tuple(names)]


def test_what_torch_cannot_trace_runs_eagerly_after_a_warning() -> None:
    def untraceable(x: Any) -> list[Any]:
        torch._dynamo.graph_break()
        return [x * 1]

    run = LocalOperator(untraceable, "plain", False)
    region = Region("region_0", [Instruction("strange", run, (0,), (1,))], (0,), (1,))
    with pytest.warns(UserWarning, match="torch.compile refuses the operators from strange"):
        (first,) = region(torch.ones(3))
    (second,) = region(torch.ones(3))
    assert first.tolist() == second.tolist() == [1, 1, 1] and region.refused
