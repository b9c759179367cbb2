"""The program that an answer is about: what is assumed where nobody says it, and its words."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from harness.graph_builder import mlp
from shardwise.answers import curve, frontier, plan, quote
from shardwise.answers.pipelines import pipeline_or_plan
from shardwise.cost.options import Options
from shardwise.cost.program import assumed, program_text
from shardwise.cost.step_settings import StepSettings
from shardwise.execute.regions import is_compiled
from shardwise.hardware import Hardware, load_hardware, read_offers
from shardwise.peers import compare
from shardwise.trainers.curve import curve_for
from shardwise.trainers.plan import plan_for
from shardwise.trainers.stated import as_configured

L4 = load_hardware("l4")
CPU = replace(L4, host=None)
ASSUMED = "compiled torch; adam, float32 state, fused update (assumed; or --framework eager)"
EAGER = "eager torch; adam, float32 state, foreach update"
FEW = Options(micro_batches=(1,), zero=(0,), simplest="never")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (Options(), EAGER),
        (
            Options(framework="compiled", step=StepSettings(update="fused")),
            "compiled torch; adam, float32 state, fused update",
        ),
        (
            Options(
                framework="megatron-core",
                kernels="eager",
                optimizer="sgd",
                step=StepSettings(update="fused", gradients="float32"),
            ),
            "Megatron, unfused kernels; sgd, fused update, float32 gradients",
        ),
        (
            Options(framework="graphs", step=StepSettings(state="8bit")),
            "torch in CUDA graphs; adam, 8-bit state, foreach update",
        ),
        (
            Options(step=StepSettings(state="16:16:8")),
            "eager torch; adam, state of 16:16:8 bits, foreach update",
        ),
        (
            Options(step=StepSettings(device="cpu", update="for-loop")),
            "eager torch; adam, float32 state, for-loop update",
        ),
    ],
)
def test_a_program_in_words(options: Options, text: str) -> None:
    assert program_text(options, mlp()) == text


@pytest.mark.parametrize(
    ("hardware", "given", "framework", "kernels", "update", "is_assumed"),
    [
        (L4, {}, "compiled", "compiled", "fused", True),
        (CPU, {}, "eager", "eager", "foreach", False),
        (L4, {"framework": "eager"}, "eager", "eager", "foreach", False),
        (L4, {"framework": "compiled"}, "compiled", "compiled", "fused", False),
        (L4, {"framework": "megatron-core"}, "megatron-core", "fused", "fused", False),
        (L4, {"kernels": "compiled"}, "compiled", "compiled", "fused", False),
        (L4, {"kernels": "eager"}, "eager", "eager", "foreach", False),
        (L4, {"kernels": "fused"}, "eager", "fused", "foreach", False),
        (L4, {"loss": "chunked"}, "compiled", "compiled", "fused", True),
        (CPU, {"kernels": "compiled"}, "eager", "compiled", "foreach", False),
        (L4, {"step": StepSettings(update="foreach")}, "compiled", "compiled", "foreach", True),
    ],
)
def test_what_is_assumed(
    hardware: Hardware,
    given: dict[str, Any],
    framework: str,
    kernels: str,
    update: str,
    is_assumed: bool,
) -> None:
    found = assumed(Options(**given), hardware)
    chosen = (found.launched_by, found.light_kernels, found.step.update)
    assert chosen == (framework, kernels, update)
    assert found.assumes_compiled is is_assumed
    assert assumed(found, hardware) == found


def test_every_answer_names_the_program_that_it_assumes() -> None:
    offers = [o for o in read_offers() if o.hardware and o.profile().devices[0] == L4.devices[0]]
    assert plan(mlp(), L4, 2, options=FEW).program == ASSUMED
    assert frontier(mlp(), L4, 2, FEW).program == ASSUMED
    assert curve(mlp(), L4, 2, FEW).program == ASSUMED
    assert compare(mlp(), L4, 2, FEW).program == ASSUMED
    assert pipeline_or_plan(mlp(), L4, 2, options=FEW).program == ASSUMED
    assert quote(mlp(), offers[:1], max_instances=1, options=FEW).program == ASSUMED
    assert plan(mlp(), CPU, 2, options=FEW).program == EAGER


def test_what_is_assumed_decides_the_answer() -> None:
    usual = plan(mlp(), L4, 2, options=FEW)
    said = plan(mlp(), L4, 2, options=replace(FEW, framework="compiled"))
    eager = plan(mlp(), L4, 2, options=replace(FEW, framework="eager"))
    assert usual.predicted.replayed_time_s == said.predicted.replayed_time_s
    assert usual.predicted.replayed_time_s < eager.predicted.replayed_time_s
    assert usual.predicted.peak_bytes <= eager.predicted.peak_bytes
    assert (usual.assumed, bool(said.assumed), bool(eager.assumed)) == (True, False, False)
    assert usual.execution and usual.execution.update == "fused"


@pytest.mark.parametrize(
    ("trainer", "framework"),
    [
        ("torchtitan", "compiled"),
        ("megatron", "megatron-core"),
        ("deepspeed", "eager"),
        ("accelerate", "eager"),
        ("nanotron", "eager"),
        ("fsdp2", "compiled"),
    ],
)
def test_trainers_run_their_own_program(trainer: str, framework: str) -> None:
    assert plan_for(mlp(), L4, 2, trainer, options=FEW).framework == framework


def test_points_of_trainers_run_their_own_program() -> None:
    program = str(curve_for(mlp(), L4, 2, FEW, trainer="deepspeed").program)
    assert program.startswith("eager torch")


def test_a_file_that_does_not_compile_is_eager() -> None:
    stated = as_configured(Options(), {}, ())
    assert assumed(stated, L4).framework == "eager"
    assert as_configured(Options(), {"framework": "compiled"}, ()).framework == "compiled"
    assert as_configured(Options(), {}, ("framework",)).framework is None


@pytest.mark.parametrize(
    ("kernels", "is_assumed", "device", "asked", "compiles"),
    [
        ("compiled", True, "cuda", None, True),
        ("compiled", True, "cpu", None, False),
        ("compiled", True, "cpu", True, True),
        ("compiled", True, "cuda", False, False),
        ("compiled", False, "cuda", None, True),
        ("compiled", False, "cpu", None, True),
        ("eager", False, "cuda", None, False),
        ("eager", False, "cuda", True, True),
        ("fused", False, "cuda", None, False),
    ],
)
def test_runs_compile_what_the_plan_counts_on(
    kernels: str, is_assumed: bool, device: str, asked: bool | None, compiles: bool
) -> None:
    plan: Any = SimpleNamespace(kernels=kernels, assumed=is_assumed)
    found, why_not = is_compiled(plan, device, asked)
    assert found is compiles
    assert (why_not is not None) == (kernels == "compiled" and not compiles and asked is None)
