"""The program that an answer is about, as answers name it."""

from __future__ import annotations

import pytest

from harness.graph_builder import mlp
from shardwise.advise import curve, frontier, plan
from shardwise.cost.options import Options
from shardwise.cost.program import program_text
from shardwise.cost.step_settings import StepSettings
from shardwise.hardware import load_hardware

L4 = load_hardware("l4")
HINT = ". Large models are mostly trained compiled (--framework compiled) or by a trainer"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (Options(), f"eager torch; adam, float32 state, foreach update{HINT}"),
        (Options(framework="compiled"), "compiled torch; adam, float32 state, foreach update"),
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
            Options(step=StepSettings(device="cpu", update="for-loop")),
            "eager torch; adam, float32 state, for-loop update",
        ),
    ],
)
def test_a_program_in_words(options: Options, text: str) -> None:
    assert program_text(options, L4) == text


def test_every_answer_names_its_program() -> None:
    options = Options(framework="compiled", micro_batches=(1,), zero=(0,))
    text = program_text(options, L4)
    assert plan(mlp(), L4, 2, options=options).program == text
    assert frontier(mlp(), L4, 2, options).program == text
    assert curve(mlp(), L4, 2, options).program == text
