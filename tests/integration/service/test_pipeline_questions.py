"""Pipelines of a running service: asked, stored, read, explained, refused."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.answers import document
from harness.commands import shardwise
from harness.models.shortened import shortened
from harness.service.service_harness import System
from harness.service.steps import check, upload
from shardwise.answers import Options, pipeline_or_plan
from shardwise.client import AsyncClient, Client
from shardwise.documents import Pipeline, Plan
from shardwise.errors import BadInput
from shardwise.graph import graph_id, write_graph
from shardwise.hardware import load_hardware

GRAPH = shortened("gpt2", 4)
EIGHT = Options(micro_batches=(8,))
ASK: dict[str, Any] = {
    "graph": graph_id(GRAPH), "hardware": "l4", "gpus": 4, "options": {"micro_batches": [8]},
}  # fmt: skip
COMMAND = ("plan", "gpt2.json", "--hardware", "l4", "--gpus", "4", "--micro-batches", "8")


KINDS: dict[str, Any] = {"hardware": "heterog-8", "gpus": "v100=2,p100=2"}
"""Devices of several kinds."""


@pytest.fixture(autouse=True)
def uploaded(system: System) -> str:
    return upload(system.service, GRAPH)


def timeless(answer: Pipeline | Plan) -> dict[str, Any]:
    """Returns an answer's document without what its search took."""
    whole = document(answer)
    del whole["search"]
    return whole


def test_the_answers_are_the_librarys(system: System) -> None:
    hardware = load_hardware("l4")
    with Client(system.service.url) as client:
        pipeline = client.pipeline_or_plan(GRAPH, "l4", 4, stages=[2], options=EIGHT)
        assert isinstance(pipeline, Pipeline)
        here = pipeline_or_plan(GRAPH, hardware, 4, stages=[2], options=EIGHT)
        assert timeless(pipeline) == timeless(here)
        either = client.pipeline_or_plan(GRAPH, "l4", 4, stages=[1, 2], options=EIGHT)
        assert not either.piped, "no pipeline pays here"
        assert client.plan_of(pipeline.id) == pipeline
        with pytest.raises(BadInput, match="cuts and splits of its own"):
            client.export(pipeline.id, to="megatron")
        sbatch = client.export(pipeline.id, format="sbatch")
        assert "--gres=gpu:4" in sbatch.text and pipeline.id in sbatch.text
        with pytest.raises(BadInput, match="3 stages of 4 devices"):
            client.pipeline_or_plan(GRAPH, "l4", 4, stages=[3], options=EIGHT)

    async def ask() -> Pipeline | Plan:
        async with AsyncClient(system.service.url) as client:
            return await client.pipeline_or_plan(GRAPH, "l4", 4, stages=[2, 2], options=EIGHT)

    assert asyncio.run(ask()) == pipeline


def test_stages_on_several_kinds_of_devices(system: System, tmp_path: Path) -> None:
    """Planned, explained, read again and asked by the command, as the library does."""
    hardware = load_hardware("heterog-8")
    asked: dict[str, Any] = {"stages": [2], "options": EIGHT}
    with Client(system.service.url) as client:
        there = client.pipeline_or_plan(GRAPH, "heterog-8", KINDS["gpus"], **asked)
        assert isinstance(there, Pipeline) and there.bundle == KINDS["gpus"]
        here = pipeline_or_plan(GRAPH, hardware, KINDS["gpus"], **asked)
        assert timeless(there) == timeless(here)
        assert {stage.group for stage in there.stages} == {"v100", "p100"}
        assert client.plan_of(there.id) == there
    again = system.client.post("/v1/plans", json={**ASK, **KINDS, "stages": [2]})
    assert again.status_code == 200 and again.json()["result"]["id"] == there.id
    other = system.client.post(
        "/v1/plans", json={**ASK, **KINDS, "gpus": "p100=2,v100=2", "stages": [2]}
    )
    assert other.json()["id"] == again.json()["id"], "groups come in any order"
    write_graph(GRAPH, tmp_path / "gpt2.json")
    arguments = ("plan", "gpt2.json", "--hardware", "heterog-8", "--gpus", KINDS["gpus"])
    printed = shardwise(
        *arguments, "--micro-batches", "8", "--stages", "2", "--json",
        "--server", system.service.url, cwd=tmp_path, env=dict(os.environ),
    )  # fmt: skip
    assert printed.returncode == 0, printed.stderr
    assert json.loads(printed.stdout)["id"] == there.id


def test_stages_and_schedules_are_part_of_the_question(system: System) -> None:
    def job_of(**more: Any) -> str:
        made = system.client.post("/v1/plans", json={**ASK, **more})
        assert made.status_code in (200, 202), made.text
        job = system.service.ended(made.headers["Location"])
        assert job["state"] == "done", job
        return str(job["id"])

    plain = job_of()
    assert job_of(stages=[1]) == plain, "one stage is no pipeline"
    two = job_of(stages=[2])
    assert two != plain
    assert job_of(stages=[2, 2], schedules=["1f1b-eager", "1f1b"]) == two
    gpipe = job_of(stages=[2], schedules=["gpipe"])
    assert gpipe not in (plain, two)
    result = system.client.get(f"/v1/plans/{gpipe}").json()["result"]
    assert (result["schema"], result["schedule"]) == ("shardwise.pipeline/1", "gpipe")
    known = system.client.post("/v1/plans", json={**ASK, "stages": [2]})
    assert known.status_code == 200 and known.json()["id"] == two
    by_id = system.client.get(f"/v1/plans/{result['id']}").json()
    assert by_id["id"] == gpipe and by_id["question"]["stages"] == [2]
    listed = system.client.get("/v1/plans").json()["items"]
    assert {plain, two, gpipe} <= {one["id"] for one in listed}


def test_a_pipeline_that_does_not_fit_is_an_answer(system: System) -> None:
    tiny = {"micro_batches": [8], "memory_limit_bytes": 1e8}
    made = system.client.post("/v1/plans", json={**ASK, "stages": [2], "options": tiny})
    job = system.service.ended(made.headers["Location"])
    assert job["result"]["schema"] == "shardwise.infeasible/1"
    assert "no pipeline of 2 stages fits" in job["result"]["reason"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"stages": []}, "stages"),
    ({"stages": [0]}, "stages[0]"),
    ({"stages": "2,4"}, "stages"),
    ({"stages": "all"}, "stages"),
    ({"stages": [2] * 65}, "stages"),
    ({"stages": [10**7]}, "stages"),
    ({"stages": [2], "schedules": ["dualpipe"]}, "schedules"),
    ({"stages": [2], "schedules": ["gpipe"] * 65}, "schedules"),
    ({"schedules": ["gpipe"]}, "schedules"),
    ({"stages": [2], "space": "megatron", "objective": "mini-memory"}, "objective"),
    ({"stages": "auto", "order": "rank"}, "order"),
    ({"stages": [2], "point": "sha256:0"}, "point"),
    ({"stages": [2], "schedules": ["zbv"], **KINDS}, "schedules"),
    ({"stages": [2], "gpus": "v100=2,p100=2"}, "gpus"),
    ({"stages": [2], "options": {"overlap": False}}, "options.overlap"),
]


@pytest.mark.parametrize(("more", "field"), REFUSED)
def test_refusals_name_the_field(system: System, more: dict[str, Any], field: str) -> None:
    problem = check(system.client.post("/v1/plans", json={**ASK, **more}), 422, "invalid")
    assert problem["field"] == field, problem


MISTAKES = (
    ("--stages", "x"),
    ("--stages", "3"),
    ("--stages", "2", "--schedules", "dualpipe"),
    ("--stages", "2", "--objective", "sum"),
    ("--stages", "2", "--memory", "100MB"),
)


def test_commands_answer_and_fail_as_they_do_locally(system: System, tmp_path: Path) -> None:
    write_graph(GRAPH, tmp_path / "gpt2.json")
    server = ("--server", system.service.url)

    def run(*arguments: str) -> Any:
        return shardwise(*arguments, cwd=tmp_path, env=dict(os.environ))

    here, there = (run(*COMMAND, "--stages", "2", "--json", *more) for more in ((), server))
    assert (here.returncode, there.returncode) == (0, 0), here.stderr + there.stderr
    ours, theirs = (json.loads(one.stdout) for one in (here, there))
    for whole in (ours, theirs):
        del whole["search"]
    assert ours == theirs
    drawn = run("explain", ours["id"], "--plot", "step.svg", *server)
    assert drawn.returncode == 0 and "Stage 1 (" in drawn.stdout, drawn.stderr
    assert (tmp_path / "step.svg").stat().st_size > 5000
    for arguments in MISTAKES:
        here, there = (run(*COMMAND, "--quiet", *arguments, *more) for more in ((), server))
        assert here.returncode in (1, 2) and "Traceback" not in here.stderr
        assert (here.returncode, here.stderr) == (there.returncode, there.stderr)
    asked = (*COMMAND, "--quiet", "--json", "--stages", "2", "--space", "megatron")
    ours, theirs = (json.loads(run(*asked, *more).stdout) for more in ((), server))
    for whole in (ours, theirs):
        del whole["search"]
    assert ours == theirs and ours["trainer"]["name"] == "megatron"
