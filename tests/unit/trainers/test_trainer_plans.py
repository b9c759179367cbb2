"""Plans that a trainer can run: the fastest of its space, and what that costs."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner
from msgspec import UNSET

import shardwise
from harness.models.comparison_models import residual_block
from harness.models.shortened import shortened
from harness.strategies import problem_of
from shardwise import answers as advice
from shardwise import documents
from shardwise.answers import Infeasible, Options
from shardwise.answers.explain import strategy_text
from shardwise.cli.plan import plan as plan_command
from shardwise.documents import Plan
from shardwise.documents.parallelism import Parallelism, PlannedTrainer, trainer_text
from shardwise.errors import BadInput
from shardwise.graph import Graph, write_graph
from shardwise.hardware import load_hardware
from shardwise.peers.evaluate import Step
from shardwise.peers.practitioners import practitioners, replayed
from shardwise.replay.replay import Replayer
from shardwise.trainers.curve import curve_for
from shardwise.trainers.plan import plan_for
from shardwise.trainers.spaces import SPACES
from shardwise.trainers.stated import with_stated

GPUS, GIB = 8, 2**30
MACHINE = load_hardware("dgx-h100").with_devices_per_node(4)
OPTIONS = Options(micro_batches=(1, 2), memory_limit_bytes=3 * GIB, simplest="never")
"""GPT-2 then needs shards or recomputation."""
BLOCK = residual_block()
BLOCK_OPTIONS = Options(micro_batches=(1, 2, 4), simplest="never")


def every(graph: Graph, options: Options) -> dict[Parallelism, list[Step]]:
    """Every strategy of the whole model, replayed with its fastest and its smallest copies."""
    steps: dict[Parallelism, list[Step]] = {}
    for count in options.micro_batches:
        problem = problem_of(graph, MACHINE, GPUS, options, count)
        known = practitioners(problem, allowed=lambda one: True)
        for one in replayed(Replayer(problem, options.step), known, 0.0):
            steps.setdefault(one.practice.parallelism, []).append(one.step)
    return steps


@cache
def of_block(trainer: str) -> Plan:
    return plan_for(BLOCK, MACHINE, GPUS, trainer, options=BLOCK_OPTIONS)


def trainer_of(plan: Plan) -> PlannedTrainer:
    assert isinstance(plan.trainer, PlannedTrainer)
    return plan.trainer


@pytest.mark.parametrize("name", ["torchtitan", "deepspeed"])
def test_it_is_the_fastest_of_its_space(name: str, gpt2: Graph) -> None:
    plan = plan_for(gpt2, MACHINE, GPUS, name, options=OPTIONS)
    trainer, predicted = trainer_of(plan), plan.predicted
    known = every(gpt2, with_stated(OPTIONS, SPACES[name].implies, ()))
    fitting = {
        parallelism: min(step.time_s for step in steps if step.peak_bytes <= 3 * GIB)
        for parallelism, steps in known.items()
        if SPACES[name].allows(parallelism) and min(step.peak_bytes for step in steps) <= 3 * GIB
    }
    assert predicted.replayed_time_s == min(fitting.values())
    assert fitting[trainer.parallelism] == predicted.replayed_time_s
    assert predicted.peak_bytes <= 3 * GIB
    assert trainer.parallelism.gpus == GPUS
    assert trainer.parallelism.micro_batches == plan.micro_batches
    assert (trainer.name, trainer.sequence_length) == (name, 1024)
    # What is proven of all strategies holds of these.
    bound = plan.certificate.time_lower_bound_s
    assert isinstance(bound, float) and bound <= predicted.replayed_time_s
    assert predicted.gap == pytest.approx(predicted.replayed_time_s / bound - 1.0)
    assert trainer.any_time_s is not None and bound <= trainer.any_time_s
    assert trainer.slower == predicted.replayed_time_s / trainer.any_time_s - 1.0 >= 0.0


@pytest.mark.parametrize(
    ("name", "epsilon", "zero"),
    [
        ("deepspeed", 0.0, 3),
        ("deepspeed", 0.01, 1),
        ("deepspeed", 0.05, 0),
        ("torchtitan", 0.01, 2),
        ("torchtitan", 0.05, 0),
        ("megatron", 0.01, 1),
        ("megatron", 0.05, 0),
    ],
)
def test_it_is_the_simplest_within_the_tolerance(name: str, epsilon: float, zero: int) -> None:
    graph = shortened("gpt2", 1)
    options = Options(micro_batches=(1,), epsilon=epsilon)
    plan = plan_for(graph, MACHINE, GPUS, name, options=options)
    fastest = plan_for(graph, MACHINE, GPUS, name, options=replace(options, simplest="never"))
    one, predicted, faster = trainer_of(plan).parallelism, plan.predicted, plan.predicted.faster
    other = trainer_of(fastest).parallelism
    assert (one.zero, one.data, one.recompute) == (zero, GPUS, "none")
    assert (faster is UNSET) == (one == other) and fastest.predicted.faster is UNSET
    least_s = fastest.predicted.replayed_time_s
    assert least_s <= predicted.replayed_time_s <= least_s * (1.0 + epsilon)
    assert predicted.gap == plan.certificate.epsilon
    if faster is not UNSET:
        assert faster.replayed_time_s == least_s
        assert strategy_text(predicted).endswith(
            f"{faster.saves:.1%} faster is possible: {faster.label}, see explain"
        )
        # It is one change away here, so that the neighbours have it.
        assert min(n.replayed_time_s for n in plan.neighbours or []) == least_s
    curve = curve_for(graph, MACHINE, options=options, trainer=name, counts=(GPUS,))
    assert curve.points[0].replayed_time_s == predicted.replayed_time_s


@pytest.mark.parametrize("name", list(SPACES))
def test_the_plan_is_what_its_trainer_says(name: str) -> None:
    plan = of_block(name)
    one = trainer_of(plan).parallelism
    assert SPACES[name].allows(one)
    members = json.loads(msgspec.json.encode(plan))
    jsonschema.validate(members, documents.json_schema("plan"))
    assert documents.read(members, Plan) == plan
    for group in plan.groups:
        assert group.zero in (0, one.zero)
        sharing = 1
        for axis in plan.mesh.axes:
            sharing *= axis.size if axis.name in group.zero_axes else 1
        assert sharing in (1, one.shards)
        assert one.recompute != "none" or not group.recompute


@pytest.mark.parametrize(
    ("inner", "outer"),
    [("torchtitan", "fsdp2"), ("nanotron", "megatron"), ("deepspeed", "accelerate")],
)
def test_a_larger_space_is_no_slower(inner: str, outer: str) -> None:
    """Of the same program, that of the inner trainer."""
    options = with_stated(BLOCK_OPTIONS, SPACES[inner].implies, ())
    wide = plan_for(BLOCK, MACHINE, GPUS, outer, options=options, given=SPACES[outer].implies)
    of_inner, of_outer = of_block(inner).predicted, wide.predicted
    assert of_outer.replayed_time_s <= of_inner.replayed_time_s
    unrestricted = advice.plan(BLOCK, MACHINE, GPUS, options=options)
    any_time_s = trainer_of(wide).any_time_s
    assert any_time_s == unrestricted.predicted.replayed_time_s <= of_outer.replayed_time_s


def test_the_program_is_the_trainers_unless_it_is_given() -> None:
    plan = of_block("megatron")
    assert trainer_of(plan).implied == ["framework megatron-core", "gradients float32"]
    assert (plan.framework, plan.kernels) == ("megatron-core", "fused")
    assert "with framework megatron-core, gradients float32" in trainer_text(trainer_of(plan))
    eager = replace(BLOCK_OPTIONS, framework="eager")
    given = plan_for(BLOCK, MACHINE, GPUS, "megatron", options=eager, given=("gradients",))
    assert trainer_of(given).implied is UNSET and given.framework == "eager"
    other = replace(BLOCK_OPTIONS, framework="graphs")
    assert plan_for(BLOCK, MACHINE, GPUS, "torchtitan", options=other).framework == "graphs"
    assert trainer_of(of_block("deepspeed")).implied == ["framework eager"]
    assert trainer_of(of_block("fsdp2")).implied is UNSET


def test_one_device() -> None:
    for name in SPACES:
        plan = plan_for(BLOCK, MACHINE, 1, name, options=BLOCK_OPTIONS)
        one = trainer_of(plan).parallelism
        assert (one.gpus, one.zero) == (1, 0)


def test_any_is_the_search_as_it_was() -> None:
    chosen = {"micro_batches": (1, 2, 4)}
    asked = shardwise.plan(BLOCK, MACHINE, GPUS, space="any", **chosen).to_dict()
    before = shardwise.plan(BLOCK, MACHINE, GPUS, **chosen).to_dict()
    for document in (asked, before):
        document["search"] = None  # seconds
    assert asked == before and "trainer" not in asked
    restricted = shardwise.plan(BLOCK, MACHINE, GPUS, space="nanotron", simplest="never", **chosen)
    assert restricted.trainer == of_block("nanotron").trainer


def test_nothing_fits() -> None:
    few = replace(BLOCK_OPTIONS, memory_limit_bytes=1e6)
    with pytest.raises(Infeasible, match="no strategy of nanotron fits on 8 GPUs: the nearest"):
        plan_for(BLOCK, MACHINE, GPUS, "nanotron", options=few)
    none_left = replace(BLOCK_OPTIONS, zero=(3,))
    with pytest.raises(Infeasible, match="nanotron has no strategy for 8 GPUs"):
        plan_for(BLOCK, MACHINE, GPUS, "nanotron", options=none_left)


def test_a_slower_search_of_any_kind_does_not_win() -> None:
    """The unrestricted search may end early; the trainer's answer is then as fast as any known."""
    said = PlannedTrainer("nanotron", Parallelism(replicas=8), None, 0.5, 0.0)
    assert trainer_text(said).endswith("as fast as the fastest strategy of any kind that was found")
    said = msgspec.structs.replace(said, slower=0.0137)
    assert trainer_text(said) == "nanotron: dp 8; 1.4% slower than the fastest strategy of any kind"
    said = msgspec.structs.replace(said, any_time_s=None, slower=None)
    assert trainer_text(said) == "nanotron: dp 8"


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"trainer": "deepspead"}, "space"),
        ({"objective": "fastest"}, "objective"),
        ({"options": Options(overlap=False)}, "objective"),
        ({"order": "rank"}, "order"),
    ],
)
def test_what_trainers_do_not_take(asked: dict[str, object], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        plan_for(BLOCK, MACHINE, GPUS, **{"trainer": "deepspeed", **asked})  # type: ignore[arg-type]
    assert refused.value.field == field


def test_several_kinds_of_devices() -> None:
    with pytest.raises(BadInput, match="devices of several kinds") as refused:
        plan_for(BLOCK, load_hardware("heterog-8"), "v100=2,1080ti=4", "deepspeed")
    assert refused.value.field == "space"


def test_the_command_says_what_the_space_costs(tmp_path: Path) -> None:
    graph, output = tmp_path / "graph.json", tmp_path / "plan.json"
    write_graph(BLOCK, graph)
    asked = [str(graph), "--hardware", "dgx-h100", "--gpus", "8", "--space", "deepspeed"]
    some = ["--micro-batches", "1,2", "--quiet"]
    runner = CliRunner()
    result = runner.invoke(plan_command, [*asked, *some, "-o", str(output)])
    assert result.exit_code == 0, result.output
    trainer = trainer_of(advice.read_plan(output))
    assert trainer_text(trainer) in " ".join(result.output.split())
