"""Every combination of a question's members is answered, or is in the table of refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.models.shortened import shortened
from shardwise.answers import Infeasible, Options
from shardwise.cost.pins import parse_pin
from shardwise.cost.step_settings import StepSettings
from shardwise.documents import Pipeline
from shardwise.errors import BadInput, NotFound
from shardwise.hardware import Hardware, devices_of, load_hardware
from shardwise.pipeline.asked import ANY, OBJECTIVES, PIPED_TRAINERS
from shardwise.question.question import Question
from shardwise.question.refusals import REFUSALS, check
from shardwise.solve import solve
from shardwise.trainers.pipelines import SCHEDULES as TRAINER_SCHEDULES

GRAPH = shortened("gpt2", 4)
ALIKE, SEVERAL = load_hardware("dgx-h100"), load_hardware("heterog-8")
FEW = Options(micro_batches=(4,), zero=(0, 3), recompute="never", time_limit_s=20.0)

OPTIONS: dict[str, Options] = {
    "replayed": FEW,
    "sums": dataclasses.replace(FEW, overlap=False),
    "rules": dataclasses.replace(FEW, pins=(parse_pin("zero=0"),)),
    "offloaded": dataclasses.replace(FEW, zero=(1, 3), step=StepSettings(offload="states")),
    "applied at once": dataclasses.replace(
        FEW, micro_batches=(1,), optimizer="sgd", gradients_applied_at_once=True
    ),
}

MEMBERS: dict[str, tuple[Any, ...]] = {
    "objective": OBJECTIVES,
    "point": (None, f"sha256:{'0' * 64}"),
    "order": (None, "program", "rank"),
    "space": (ANY, "torchtitan", "megatron", "deepspeed"),
    "stages": ((1,), (2,), None),
    "schedules": (None, ("1f1b",), ("zbv",)),
}


@st.composite
def combinations(draw: Any) -> tuple[Hardware, str, Options, dict[str, Any]]:
    """Draws a question on two devices."""
    hardware = draw(st.sampled_from((ALIKE, SEVERAL)))
    gpus = "v100=1,p100=1" if hardware.groups else "2"
    others = draw(st.sets(st.sampled_from((*MEMBERS, "options")), max_size=3))
    members = {
        name: draw(st.sampled_from(values[1:])) if name in others else values[0]
        for name, values in MEMBERS.items()
    }
    options = draw(st.sampled_from(sorted(OPTIONS))) if "options" in others else "replayed"
    return hardware, gpus, OPTIONS[options], members


def refused(hardware: Hardware, gpus: str, options: Options, members: dict[str, Any]) -> str | None:
    """Returns why the table refuses a question, None where it does not."""
    try:
        check(Question.of(options, "plan", devices_of(gpus, hardware), **members))
    except BadInput as error:
        return str(error)
    return None


@given(asked=combinations())
def test_what_is_not_in_the_table_is_answered(
    asked: tuple[Hardware, str, Options, dict[str, Any]],
) -> None:
    hardware, gpus, options, members = asked
    reason = refused(*asked)
    try:
        answer = solve(GRAPH, hardware, gpus, options=options, **members)
    except BadInput as error:
        assert reason == str(error)
        return
    except Infeasible:
        assert reason is None
        return
    except NotFound:
        assert reason is None and members["point"] is not None
        return
    assert reason is None
    assert answer.gpus == 2
    if members["stages"] == (1,):
        assert not isinstance(answer, Pipeline)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.what)
def test_every_row_refuses_something_that_no_earlier_row_does(refusal: Any) -> None:
    names = {"plan", "frontier", "curve", "quote", "compare", "pricing"}
    extra = {
        "policy": dataclasses.replace(FEW, policy="weights.npz"),
        "tofu": dataclasses.replace(FEW, method="tofu"),
        "many sums": dataclasses.replace(FEW, overlap=False, micro_batches=(1, 2)),
    }
    found = False
    for kind in sorted(names):
        for several in (False, True):
            for options in [*OPTIONS.values(), *extra.values()]:
                for space in MEMBERS["space"]:
                    for stages in MEMBERS["stages"]:
                        for member, value in _single():
                            question = Question.of(
                                options,
                                kind,  # type: ignore[arg-type]
                                several_kinds=several,
                                space=space,
                                stages=stages,
                                **({member: value} if member else {}),
                            )
                            first = next((r for r in REFUSALS if r.refuses(question)), None)
                            found = found or first is refusal
    assert found


def _single() -> list[tuple[str | None, Any]]:
    """Returns no member, and each of some with a value that is not its default."""
    some = ("objective", "point", "order", "schedules")
    return [
        (None, None),
        *((name, MEMBERS[name][-1]) for name in some),
        ("objective", "mini-memory"),
    ]


def test_the_trainers_of_the_table_are_those_with_schedules() -> None:
    assert set(PIPED_TRAINERS) == set(TRAINER_SCHEDULES)
