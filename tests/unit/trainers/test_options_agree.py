"""What a plan counts on is what its exported file says, for every trainer: or it is listed.

A plan is varied in one option at a time. The file says it, and a reader of the file finds it; or
the export lists it as not in the file.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from harness.trainer_plans import plan_of, tiny_plan
from shardwise.documents.parallelism import Parallelism, PlannedTrainer
from shardwise.documents.plan import Plan
from shardwise.errors import BadInput
from shardwise.trainers.facts import facts_of_preset
from shardwise.trainers.formats import TRAINERS, write_for
from shardwise.trainers.job import Written
from shardwise.trainers.models import MODELS
from shardwise.trainers.read import configuration_of

BASE: dict[str, Any] = {
    "optimizer": "adam",
    "state": "float32",
    "gradients": "float32",
    "kernels": "eager",
    "recompute": {},
    "dropout": 0.0,
}
VARIED: tuple[tuple[str, Any, str], ...] = (
    ("optimizer", "sgd", "optimizer"),
    ("optimizer", "momentum", "optimizer"),
    ("state", "8bit", "optimizer's state"),
    ("gradients", "captured", "Gradients"),
    ("kernels", "compiled", "Kernels"),
    ("kernels", "fused", "ernels"),
    ("recompute", {"recompute": "full"}, "Recomputation"),
    ("recompute", {"recompute": "selective"}, "recomputation"),
    ("recompute", {"recompute": "full", "recompute_layers": 3}, "Recomputation"),
    ("recompute", {"recompute": "full", "recompute_every": 2}, "Recomputation"),
    ("dropout", 0.1, "dropout"),
)
"""An option, another value of it, and how it is called where a file does not say it."""

ZERO = {"megatron": 1, "nanotron": 1}
CONSTANT = r"^(?:\w+, )?{}(?:, \w+)? = (.*)$"


def written(trainer: str, **varied: Any) -> Written:
    """Returns what is written of a plan for Llama 3 8B in 16 bits with these options."""
    options = {**BASE, **varied}
    given = Parallelism(shards=4, zero=ZERO.get(trainer, 3), **options["recompute"])
    llama = facts_of_preset(MODELS["llama3-8b"])
    dropout = options["dropout"]
    shown = PlannedTrainer(
        trainer,
        given,
        128,
        None,
        None,
        "bfloat16",
        gradients=options["gradients"],
        model=replace(llama, dropout=dropout, attention_dropout=dropout),
    )
    execution = tiny_plan().execution
    assert execution is not UNSET
    plan: Plan = plan_of(
        given,
        graph_name="llama3-8b",
        optimizer=options["optimizer"],
        kernels=options["kernels"],
        execution=replace(execution, state=options["state"]),
    )
    return write_for(replace(plan, trainer=shown), trainer)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(("option", "value", "called"), VARIED)
def test_an_option_is_in_the_file_or_listed(
    trainer: str, option: str, value: Any, called: str
) -> None:
    text, unsaid = written(trainer)
    try:
        other, listed = written(trainer, **{option: value})
    except BadInput as error:
        assert option == "recompute" and error.field == "trainer.parallelism.recompute"
        return
    assert other != text or set(listed) != set(unsaid), f"{trainer} drops {option} {value}"
    if other == text:
        assert any(called in sentence for sentence in set(listed) ^ set(unsaid)), listed


@pytest.mark.parametrize("trainer", [name for name in TRAINERS if name != "fsdp2"])
@pytest.mark.parametrize(("option", "value", "called"), VARIED)
def test_what_a_reader_finds_is_what_was_planned(
    trainer: str, option: str, value: Any, called: str
) -> None:
    try:
        text, unsaid = written(trainer, **{option: value})
    except BadInput:
        return
    read = configuration_of(text, 4, "file")
    words = " ".join(unsaid)
    options = {**BASE, option: value}
    for name in ("recompute_layers", "recompute_every"):
        assert getattr(read.parallelism, name) == options["recompute"].get(name, UNSET)
    assert read.parallelism.recompute == options["recompute"].get("recompute", "none")
    assert read.stated.get("optimizer", options["optimizer"]) == options["optimizer"] or (
        "The optimizer" in words
    )
    assert (read.stated.get("gradients", "captured") == options["gradients"]) or (
        "Gradients" in words or trainer == "torchtitan"
    )
    compiled = options["kernels"] == "compiled"
    assert (read.stated.get("framework") == "compiled") == compiled or "ernels" in words


def test_parallelize_py_has_every_option() -> None:
    for varied, constant, value in (
        ({}, "REDUCED", "torch.bfloat16, torch.float32"),
        ({"gradients": "captured"}, "REDUCED", "torch.bfloat16, torch.bfloat16"),
        ({"kernels": "compiled"}, "COMPILE", "True"),
        ({}, "COMPILE", "False"),
        ({"recompute": {"recompute": "selective"}}, "RECOMPUTE", '"selective", slice(None, None)'),
        (
            {"recompute": {"recompute": "full", "recompute_layers": 3}},
            "RECOMPUTE",
            '"full", slice(None, 3)',
        ),
        (
            {"recompute": {"recompute": "full", "recompute_every": 2}},
            "RECOMPUTE",
            '"full", slice(1, None, 2)',
        ),
    ):
        text = written("fsdp2", **varied).text
        found = re.search(CONSTANT.format(constant), text, re.MULTILINE)
        assert found is not None and found[1] == value
        compile(text, "parallelize.py", "exec")
