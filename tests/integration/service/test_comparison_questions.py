"""Comparisons with other systems of a running service."""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.answers import document
from harness.commands import shardwise
from harness.service.service_harness import System
from harness.service.steps import HARDWARE, check, mlp, upload
from shardwise.answers import Infeasible, Options
from shardwise.capture import shipped_graph
from shardwise.client import AsyncClient, Client
from shardwise.documents import Comparison, read
from shardwise.documents.questions import MOST_PROPOSALS, MOST_SEED
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware
from shardwise.peers import compare

GRAPH = mlp(48, "compared")
ONE = Options(micro_batches=(1,))
FEW = {"micro_batches": [1]}


def timeless(answer: Comparison) -> dict[str, Any]:
    """Returns a comparison's document without the seconds that each system took."""
    whole = document(answer)
    for method in whole["methods"]:
        del method["seconds"]
    return whole


def test_the_answer_is_the_librarys(system: System) -> None:
    heard: list[str] = []

    def listen(stage: str, fraction: float) -> bool:
        heard.append(stage)
        return True

    with Client(system.service.url) as client:
        there = client.compare(GRAPH, HARDWARE, 4, ONE, listen, proposals=700, seed=3)
        here = compare(GRAPH, load_hardware(HARDWARE), 4, ONE, proposals=700, seed=3)
        assert timeless(there) == timeless(here)
        assert {"data-parallel", "fsdp", "megatron", "optcnn", "shardwise"} <= {
            method.method for method in there.methods
        }
        job = next(client.jobs(kind="compare"))
        assert job.location.startswith("/v1/comparisons/") and job.kind == "compare"
        assert job.document["question"]["proposals"] == 700
        mixed = client.compare(GRAPH, "l40s-4+a100-4", "l40s=1,a100=1", ONE, proposals=20)
        assert "ev-ar" in {method.method for method in mixed.methods} and mixed.bundle

    async def ask() -> Comparison:
        async with AsyncClient(system.service.url) as client:
            return await client.compare(GRAPH, HARDWARE, 4, ONE, proposals=700, seed=3)

    assert asyncio.run(ask()) == there, "it is stored"


@pytest.mark.full
def test_pipelines_are_compared_where_they_are_asked_for(system: System) -> None:
    graph, hardware = read_graph(shipped_graph("gpt2")), load_hardware("l4")
    few = {"graph": "shipped:gpt2", "hardware": "l4", "gpus": 2}
    eight = Options(micro_batches=(8,))
    with Client(system.service.url) as client:
        there = client.compare("shipped:gpt2", "l4", 2, eight, proposals=50, stages=[1, 2])
    here = compare(graph, hardware, 2, eight, proposals=50, stages=[2])
    assert timeless(there) == timeless(here)
    piped = {method.method for method in there.methods if any(p.pipeline for p in method.points)}
    assert piped >= {"megatron-3d", "gpipe", "shardwise-pipelines"}
    job = next(iter(system.client.get("/v1/comparisons").json()["items"]))
    body = {**few, "options": {"micro_batches": [8]}, "proposals": 50}
    again = system.client.post("/v1/comparisons", json={**body, "stages": [2, 1, 2]})
    assert again.status_code == 200 and again.json()["id"] == job["id"]
    ask = partial(system.client.post, "/v1/comparisons")
    ids = {ask(json={**body, **more}).json()["id"] for more in ({}, {"stages": [1]})}
    assert len(ids) == 1 and job["id"] not in ids, "one stage is no pipeline"


@pytest.mark.full
def test_comparisons_take_schedules_that_split_backward(system: System, tmp_path: Path) -> None:
    """As the library, by the client and by the command; they are part of the question."""
    eight = Options(micro_batches=(8,))
    asked: dict[str, Any] = {"stages": [2], "schedules": ["zbv"]}
    with Client(system.service.url) as client:
        there = client.compare("shipped:gpt2", "l4", 2, eight, proposals=50, **asked)
    graph, hardware = read_graph(shipped_graph("gpt2")), load_hardware("l4")
    here = compare(graph, hardware, 2, eight, proposals=50, **asked)
    assert timeless(there) == timeless(here)
    schedules = {
        method.method: point.pipeline.schedule
        for method in there.methods
        for point in method.points
        if point.pipeline
    }
    assert schedules["zero-bubble"] == schedules["shardwise-pipelines"] == "zbv"
    assert schedules["alpa"] == "1f1b" and "dualpipe" not in schedules
    (job, *_) = system.client.get("/v1/comparisons").json()["items"]
    body: dict[str, Any] = {"graph": "shipped:gpt2", "hardware": "l4", "gpus": 2, "proposals": 50}
    ask = partial(system.client.post, "/v1/comparisons")
    again = ask(json={**body, "options": {"micro_batches": [8]}, **asked})
    assert again.status_code == 200 and again.json()["id"] == job["id"]
    for more in ({"stages": [2], "schedules": ["zb-h2"]}, {"schedules": ["zbv"]}):
        problem = check(ask(json={**body, **more}), 422, "invalid")
        assert problem["field"] == "schedules"
    arguments = ["compare", "shipped:gpt2", "--hardware", "l4", "--gpus", "2", "--quiet"]
    arguments += ["--micro-batches", "8", "--proposals", "50", "--stages", "2"]
    arguments += ["--schedules", "zbv", "--server", system.service.url, "--json"]
    printed = shardwise(*arguments, cwd=tmp_path, env=dict(os.environ))
    assert printed.returncode == 0, printed.stderr
    assert json.loads(printed.stdout)["ranking"] == there.ranking


def test_a_known_comparison_is_not_computed_again(system: System) -> None:
    body = {"graph": upload(system.service, GRAPH), "hardware": HARDWARE, "gpus": 2, "options": FEW}
    made = system.client.post("/v1/comparisons", json=body)
    assert made.status_code == 202
    job = system.service.ended(made.headers["Location"])
    assert job["state"] == "done" and job["result"]["schema"] == "shardwise.compare/1"
    known = system.client.post("/v1/comparisons", json={**body, "seed": 0})
    assert known.status_code == 200 and known.json()["id"] == job["id"]
    for path, query in (("/v1/jobs", {"kind": "compare"}), ("/v1/comparisons", {})):
        listed = system.client.get(path, params=query).json()["items"]
        assert job["id"] in {one["id"] for one in listed}
        assert {one["kind"] for one in listed} == {"compare"}
    other = system.client.post("/v1/comparisons", json={**body, "seed": 1})
    assert other.json()["id"] != job["id"], "another seed is another question"
    gone = system.client.delete(other.headers["Location"])
    assert gone.status_code == 200
    system.service.ended(other.headers["Location"])
    check(system.client.get(f"/v1/plans/{job['id']}"), 404, "not-found")


def test_where_nothing_fits_the_least_of_each_is_compared(system: System) -> None:
    """As the library: there is no plan, but still an answer."""
    tight = Options(micro_batches=(1,), memory_limit_bytes=1000.0)
    with Client(system.service.url) as client:
        with pytest.raises(Infeasible):
            client.plan(GRAPH, HARDWARE, 2, options=tight)
        there = client.compare(GRAPH, HARDWARE, 2, tight)
    assert there.ranking == [] and any(method.points for method in there.methods)
    assert timeless(there) == timeless(compare(GRAPH, load_hardware(HARDWARE), 2, tight))


ASK: dict[str, Any] = {"graph": "shipped:vgg16", "hardware": HARDWARE, "gpus": 2}
SEVERAL = {"overlap": False, "micro_batches": [1, 2]}
MIXED = {**ASK, "hardware": "heterog-8", "gpus": "v100=2,p100=2"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**ASK, "gpus": 0}, "gpus"),
    ({**ASK, "gpus": 100_000}, "gpus"),
    ({**ASK, "proposals": 0}, "proposals"),
    ({**ASK, "proposals": MOST_PROPOSALS + 1}, "proposals"),
    ({**ASK, "proposals": 1.5}, "proposals"),
    ({**ASK, "seed": -1}, "seed"),
    ({**ASK, "seed": MOST_SEED + 1}, "seed"),
    ({**ASK, "options": {"pins": ["*:zero=1"]}}, "options.pins"),
    ({**ASK, "options": {"method": "tofu"}}, "options.method"),
    ({**ASK, "options": SEVERAL}, "options.micro_batches"),
    ({**ASK, "options": {"micro_batches": [7]}}, "options.micro_batches"),
    ({**MIXED, "options": {"overlap": False}}, "options.overlap"),
    ({**ASK, "objective": "mini-time"}, "objective"),
    ({**ASK, "priority": 99}, "priority"),
    ({**ASK, "stages": [0]}, "stages[0]"),
    ({**ASK, "stages": []}, "stages"),
    ({**ASK, "stages": "all"}, "stages"),
    ({**ASK, "stages": [100_000]}, "stages"),
    ({**ASK, "stages": [2], "schedules": ["zb-h2"]}, "schedules"),
    ({**ASK, "stages": [2], "options": {"overlap": False}}, "options.overlap"),
    ({**MIXED, "stages": [2]}, "gpus"),
]


@pytest.mark.parametrize(("body", "field"), REFUSED)
def test_refusals_name_the_field(system: System, body: dict[str, Any], field: str) -> None:
    problem = check(system.client.post("/v1/comparisons", json=body), 422, "invalid")
    assert problem["field"] == field, problem


WHERE = ("compare", "shipped:vgg16", "--hardware", HARDWARE, "--gpus")
COMMANDS = (
    (
        "compare",
        "shipped:gpt2",
        *WHERE[2:],
        "2",
        "--micro-batches",
        "8",
        "--proposals",
        "50",
        "--stages",
        "2",
    ),
    (*WHERE, "2", "--micro-batches", "1", "--proposals", "500"),
    (*WHERE, "2", "--objective", "sum", "--seed", "5"),
)
MISTAKES = (
    (*WHERE, "2", "--pin", "*:zero=1"),
    (*WHERE, "2", "--stages", "two"),
    (*WHERE, "2", "--stages", "8"),
)


@pytest.mark.full
def test_the_command_answers_as_it_does_locally(system: System, tmp_path: Path) -> None:
    server = ("--server", system.service.url)

    def run(*arguments: str) -> Any:
        return shardwise(*arguments, cwd=tmp_path, env=dict(os.environ))

    for arguments in COMMANDS:
        here, there = run(*arguments, "--json"), run(*arguments, "--json", *server)
        assert (here.returncode, there.returncode) == (0, 0), here.stderr + there.stderr
        ours, theirs = (read(json.loads(one.stdout), Comparison) for one in (here, there))
        assert timeless(ours) == timeless(theirs)
    shown = run(*COMMANDS[1], "--plot", "picture.svg", *server)
    assert "the best of each system" in shown.stdout, shown.stderr
    assert (tmp_path / "picture.svg").read_text().startswith("<?xml")


def test_the_command_fails_as_it_does_locally(system: System, tmp_path: Path) -> None:
    server = ("--server", system.service.url)

    def run(*arguments: str) -> Any:
        return shardwise(*arguments, cwd=tmp_path, env=dict(os.environ))

    for arguments in MISTAKES:
        here, there = run(*arguments, "--quiet"), run(*arguments, "--quiet", *server)
        assert here.returncode == 2 and "Traceback" not in here.stderr
        assert (here.returncode, here.stderr) == (there.returncode, there.stderr)
