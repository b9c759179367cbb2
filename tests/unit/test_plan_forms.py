"""One type of plan: what readers ask of it is the same in both written forms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from harness.stored import stored
from shardwise import documents
from shardwise.answers.explain import explain
from shardwise.cli.plan_page import Asked, plan_page
from shardwise.documents import Plan, by_form
from shardwise.measure.measurement import PREDICTED, predicted_values

STORED = ["plan", "plan-2", "plan-bundle", "trainer", "pipeline"]


@pytest.mark.parametrize("name", STORED)
def test_stages_share_the_groups_and_the_devices(name: str) -> None:
    plan: Plan = stored(name)
    assert sorted(group for stage in plan.stages for group in stage.groups) == list(
        range(len(plan.groups))
    )
    assert len({stage.first_device for stage in plan.stages}) == plan.ranks
    own = plan.stages[: plan.ranks]
    assert sum(stage.devices for stage in own) == plan.gpus
    assert max(stage.peak_bytes for stage in plan.stages) == plan.predicted.peak_bytes
    assert plan.piped is (len(plan.stages) > 1) is bool(plan.pipeline_schedule)
    assert plan.kinds == [] or len(plan.kinds) == plan.gpus


@pytest.mark.parametrize("name", STORED)
def test_every_member_of_the_type_is_answered_in_each_form(name: str) -> None:
    plan: Plan = stored(name)
    for member in (name for name in dir(Plan) if not name.startswith("_")):
        getattr(plan, member)


@pytest.mark.parametrize("name", STORED)
def test_a_plan_is_read_in_the_form_in_which_it_is_written(name: str) -> None:
    plan: Plan = stored(name)
    whole = msgspec.to_builtins(plan)
    read = documents.read(whole, Plan)
    assert type(read) is type(plan) and read == plan
    assert (
        by_form(plan, lambda _: "shardwise.plan/1", lambda _: "shardwise.pipeline/1")
        == (whole["schema"])
    )


@pytest.mark.parametrize("name", STORED)
def test_an_explanation_has_the_groups_of_each_stage(name: str) -> None:
    plan: Plan = stored(name)
    explained = explain(plan)
    counted = [0] * len(plan.stages)
    for stage, row in explained.rows:
        counted[stage] += row.repeats
    assert counted == [len(stage.groups) for stage in plan.stages]
    assert len(explained.rows) == len(explained.groups)


@pytest.mark.parametrize("name", STORED)
def test_what_a_run_is_compared_with_is_the_replayed_step(name: str) -> None:
    plan: Plan = stored(name)
    expected = predicted_values(msgspec.to_builtins(plan.predicted))
    assert [*expected] == [*PREDICTED]
    assert expected["iteration"] == plan.replayed_s
    assert expected["peak"] == plan.predicted.peak_bytes
    assert (expected["compute"] is None) is plan.piped


def test_published_schemas_keep_their_names() -> None:
    for kind, title in (
        ("plan", "Plan"),
        ("pipeline", "Pipeline"),
        ("explanation", "Explanation"),
        ("pipeline-explanation", "PipelineExplanation"),
    ):
        schema: dict[str, Any] = documents.json_schema(kind)
        assert schema["$ref"] == f"#/$defs/{title}" and title in schema["$defs"]


@pytest.mark.parametrize("name", STORED)
def test_the_page_of_every_form_says_what_comes_next(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan: Plan = stored(name)
    plan_page(plan, explain(plan), Asked("graph.json", "l4", "4", 0.0, "p.json"))
    page = capsys.readouterr().out
    assert "shardwise explain p.json" in page
    assert f"pipeline   {len(plan.stages)} stages" in page if plan.piped else "strategy " in page
    if plan.trainer is not UNSET:
        assert f"shardwise export p.json --to {plan.trainer.name}" in page
    else:
        assert "shardwise run p.json --graph graph.json" in page
