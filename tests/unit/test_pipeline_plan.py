"""`shardwise plan --stages`: the page, the document, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from shardwise import documents
from shardwise.answers.pipelines import pipeline_or_plan
from shardwise.cli.plan import plan as plan_command
from shardwise.cost.options import Options
from shardwise.documents import json_schema
from shardwise.errors import BadInput
from shardwise.graph import Graph
from shardwise.hardware import load_hardware

WHERE = ("--hardware", "l4", "--gpus", "4", "--micro-batches", "8", "--quiet")


Ask = Callable[..., Result]


@pytest.fixture
def asked(gpt2_file: str) -> Ask:
    def ask(*arguments: str) -> Result:
        command = [gpt2_file, *WHERE, *arguments]
        return CliRunner().invoke(plan_command, command, env={"COLUMNS": "110"})

    return ask


@pytest.fixture(scope="module")
def answer(gpt2: Graph) -> documents.Pipeline:
    found = pipeline_or_plan(
        gpt2, load_hardware("l4"), 4, stages=[2], options=Options(micro_batches=(8,))
    )
    assert isinstance(found, documents.Pipeline)
    return found


def test_every_group_is_in_one_stage(answer: documents.Pipeline) -> None:
    groups = sorted(group for stage in answer.stages for group in stage.groups)
    assert groups == list(range(len(answer.groups)))
    assert [stage.first_device for stage in answer.stages] == [0, 2]
    assert [stage.kept_micro_batches for stage in answer.stages][-1] == 1
    assert answer.stages[-1].hop_s is None and answer.stages[0].hop_s
    assert answer.predicted.peak_bytes == max(stage.peak_bytes for stage in answer.stages)
    assert (answer.gpus, answer.graph_name) == (4, "gpt2-4")


def test_the_document_is_as_its_schema_says(asked: Ask) -> None:
    result = asked("--stages", "2", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    jsonschema.validate(document, json_schema("pipeline"))
    read = documents.read(document, documents.Pipeline)
    assert read.schedule in ("1f1b", "1f1b-eager")
    assert "without_pipeline" not in document


def test_the_page_names_stages_and_says_what_is_not_compared(asked: Ask, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.json"
    result = asked("--stages", "2", "-o", str(file))
    assert result.exit_code == 0, result.output
    assert "2 stages of 2 GPUs" in result.stdout
    assert "wte.embedding to h." in result.stdout
    assert "--stages auto, or 1 among the numbers" in result.stdout
    assert documents.unfolded(json.loads(file.read_text()))["schema"] == "shardwise.pipeline/1"


def test_where_no_pipeline_pays_the_answer_is_the_plan(asked: Ask) -> None:
    with_one = json.loads(asked("--stages", "1,2", "--json").stdout)
    alone = json.loads(asked("--json").stdout)
    assert with_one["schema"] == "shardwise.plan/1"
    assert with_one["id"] == alone["id"]


def test_a_plan_of_one_stage_does_not_read_a_pipeline(answer: documents.Pipeline) -> None:
    with pytest.raises(BadInput, match=r"unknown schema 'shardwise\.pipeline/1'"):
        documents.read({"schema": "shardwise.pipeline/1"}, documents.WholePlan)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--stages", "two"), "'two' names no numbers of stages"),
        (("--stages", "0"), "'0' names no numbers of stages"),
        (("--stages", "3"), "3 stages of 4 devices"),
        (("--stages", "2", "--schedules", "dualpipe"), "unknown schedule 'dualpipe'"),
        (
            ("--stages", "2", "--space", "deepspeed"),
            "deepspeed: no answer for a trainer's pipelines",
        ),
        (("--stages", "2", "--objective", "sum"), "no answer for a pipeline by sums"),
        (("--stages", "2", "--point", "sha256:0"), "has no pipeline sha256:0"),
        (("--stages", "2", "--order", "rank"), "no answer for an order of execution with stages"),
        (("--stages", "2", "--plot", "step.gif"), "is not a picture format"),
        (("--stages", "2", "--memory", "100MiB"), "no pipeline of 2 stages fits on 4 GPUs"),
    ],
)
def test_what_is_refused(asked: Ask, arguments: tuple[str, ...], says: str) -> None:
    result = asked(*arguments)
    assert result.exit_code != 0
    text = f"{result.output} {result.exception}"
    assert says in text
