"""Frontiers, curves and quotes with pipelines, asked of a running service.

That every way returns the library's answers is in test_kept_answers.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from harness.commands import shardwise
from harness.graph_builder import layers
from harness.service.answered import Answered
from harness.service.service_harness import System
from harness.service.steps import check
from harness.stored import content, stored
from shardwise.answers import Options
from shardwise.client import Client
from shardwise.cost.pins import parse_pin
from shardwise.errors import BadInput
from shardwise.graph import write_graph
from shardwise.hardware import Offer, load_hardware

L4 = load_hardware("l4")
CHAIN = layers(10, 64, 2048)
OPTIONS = Options(
    micro_batches=(8,),
    zero=(0,),
    recompute="never",
    memory_limit_bytes=2.0**28,
    pins=(parse_pin("inside!=out"), parse_pin("inside!=in")),
)
"""Weights are on every device of a stage: the chain fits as a pipeline only."""
FLAGS = (
    "--micro-batches", "8", "--zero", "0", "--recompute", "never", "--memory", "256MiB", "--quiet",
    "--pin", "inside!=out", "--pin", "inside!=in",
)  # fmt: skip
OFFERS = [Offer("cloud", "five", 5, "L4", "here", False, 5.0, "2026-11-01", "x", "l4")]
OFFERS_CSV = (
    "Provider,InstanceType,AcceleratorName,AcceleratorCount,Price,Region,Hardware\n"
    "cloud,five,L4,5,5.0,here,l4\n"
)
COLLECTIONS = ("frontiers", "curves", "quotes")
SPLIT: dict[str, Any] = {"stages": [2], "schedules": ["1f1b", "zbv"]}
BUNDLES: dict[str, Any] = {
    "hardware": "heterog-8", "max_gpus": None, "bundles": ["v100=2,p100=2", "v100=1"],
}  # fmt: skip


@pytest.fixture
def client(system: System) -> Iterator[Client]:
    with Client(system.service.url) as client:
        client.upload_graph(CHAIN)
        yield client


def bodies() -> dict[str, dict[str, Any]]:
    """Returns a question of each collection, without stages."""
    options = {
        "micro_batches": [8], "zero": [0], "recompute": "never", "memory_limit_bytes": 2.0**28,
        "pins": ["inside!=out", "inside!=in"],
    }  # fmt: skip
    common = {"graph": chain_id(), "options": options}
    return {
        "frontiers": {**common, "hardware": "l4", "gpus": 5},
        "curves": {**common, "hardware": "l4", "max_gpus": 5},
        "quotes": {**common, "offers_csv": OFFERS_CSV, "max_instances": 1},
    }


def chain_id() -> str:
    from shardwise.graph import graph_id

    return graph_id(CHAIN)


def test_what_is_known_of_a_pipeline_answers_other_questions(client: Client) -> None:
    asked: dict[str, Any] = {"stages": [5], "schedules": ["gpipe"]}
    curve = client.curve(CHAIN, L4, 5, OPTIONS, **asked)
    last = curve.points[-1]
    assert last.pipeline is not UNSET and last.pipeline.schedule == "gpipe"
    assert client.curve(CHAIN, L4, 5, OPTIONS).points[-1].best_gpus is None
    quoted: dict[str, Any] = {"max_instances": 1, "options": OPTIONS}
    assert not client.quote(CHAIN, OFFERS, **quoted).offers
    quote = client.quote(CHAIN, OFFERS, **asked, **quoted)
    assert quote.offers[0].pipeline is not UNSET and quote.offers[0].pipeline.stages == 5
    assert client.pipeline_or_plan(CHAIN, L4, 5, options=OPTIONS, **asked).id == last.pipeline.id


def test_a_query_of_bundles_has_the_answer_that_is_kept(answered: Answered) -> None:
    query = {
        "graph": chain_id(), "hardware": "heterog-8", "bundles": ["v100=2,p100=2", "p100=1"],
        "stages": "4", "micro_batches": "8", "zero": "0", "memory_limit_bytes": 2.0**28,
        "pins": ["inside!=out", "inside!=in"],
    }  # fmt: skip
    got = answered.client.get("/v1/curves", params=query)
    assert got.status_code == 200 and got.content == content("bundles-pipelines")
    one, four = sorted(stored("bundles-pipelines").points, key=lambda point: point.gpus)
    assert one.pipeline is UNSET and not one.feasible
    assert sorted(four.pipeline.groups) == ["p100", "p100", "v100", "v100"]


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_stages_and_schedules_are_part_of_the_question(
    system: System, client: Client, collection: str
) -> None:
    asked = set[str]()

    def job_of(**more: Any) -> dict[str, Any]:
        made = system.client.post(f"/v1/{collection}", json={**bodies()[collection], **more})
        assert made.status_code in (200, 202), made.text
        asked.add(made.headers["Location"])
        return dict(made.json())

    plain = job_of()
    assert not {"stages", "schedules"} & plain["question"].keys()
    assert job_of(stages=[1])["id"] == plain["id"], "one stage is no pipeline"
    two = job_of(stages=[5, 2])
    assert two["id"] != plain["id"]
    assert two["question"]["stages"] == [2, 5]
    same = ({"stages": [2, 5, 2]}, {"stages": [1, 2, 5], "schedules": ["1f1b-eager", "1f1b"]})
    assert {job_of(**more)["id"] for more in same} == {two["id"]}
    others = ({"stages": [2]}, {"stages": "auto"}, {"stages": [2, 5], "schedules": ["gpipe"]})
    different = [job_of(**more)["id"] for more in others]
    assert len({*different, plain["id"], two["id"]}) == 5
    for location in asked:  # nobody waits for the answers
        system.client.delete(location)


def test_a_curves_query_asks_the_same(system: System, client: Client) -> None:
    body = {**bodies()["curves"], "stages": [1, 5], "schedules": ["1f1b"]}
    made = system.client.post("/v1/curves", json=body)
    job = system.service.ended(made.headers["Location"])
    options = body["options"]
    query: dict[str, Any] = {
        "graph": body["graph"], "hardware": "l4", "max_gpus": "5", "micro_batches": "8",
        "zero": "0", "recompute": "never", "memory_limit_bytes": options["memory_limit_bytes"],
        "pins": options["pins"], "stages": "5", "schedules": "1f1b",
    }  # fmt: skip
    got = system.client.get("/v1/curves", params=query)
    assert got.status_code == 200 and got.json() == job["result"]
    tag = {"If-None-Match": got.headers["etag"]}
    assert system.client.get("/v1/curves", params=query, headers=tag).status_code == 304
    other = system.client.get("/v1/curves", params={**query, "stages": "auto"}, headers=tag)
    assert other.status_code == 202, "another question, known or not"
    system.client.delete(other.headers["Location"])
    for name, wrong in (("stages", "five"), ("stages", ""), ("schedules", "dualpipe")):
        refused = system.client.get("/v1/curves", params={**query, name: wrong})
        assert check(refused, 422, "invalid")["field"] == name


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((collection, more, field) for collection in COLLECTIONS for more, field in (
        ({"stages": []}, "stages"),
        ({"stages": [0]}, "stages[0]"),
        ({"stages": "2,4"}, "stages"),
        ({"stages": [2] * 65}, "stages"),
        ({"stages": [10**7]}, "stages"),
        ({"stages": [2], "schedules": ["dualpipe"]}, "schedules"),
        ({"schedules": ["gpipe"]}, "schedules"),
        ({"stages": "auto", "options": {"overlap": False}}, "options.overlap"),
        ({"stages": "auto", "options": {"gradients_applied_at_once": True}}, "stages"),
    )),
    ("frontiers", {**SPLIT, "hardware": "heterog-8", "gpus": "v100=2,p100=2"}, "schedules"),
    ("curves", {"stages": [6]}, "stages"),
    ("curves", {**SPLIT, **BUNDLES}, "schedules"),
    ("curves", {"stages": [5], **BUNDLES}, "stages"),
    ("quotes", {**SPLIT, "combine": 2}, "schedules"),
    ("quotes", {**SPLIT, "hardware": "heterog-8", "offers_csv": None}, "schedules"),
]  # fmt: skip


@pytest.mark.parametrize(("collection", "more", "field"), REFUSED)
def test_refusals_name_the_field(
    system: System, client: Client, collection: str, more: dict[str, Any], field: str
) -> None:
    body = {**bodies()[collection], **more}
    problem = check(system.client.post(f"/v1/{collection}", json=body), 422, "invalid")
    assert problem["field"] == field, problem


def test_more_stages_than_units_are_refused_by_the_answer(client: Client) -> None:
    for ask in (
        lambda: client.frontier(CHAIN, L4, 4, OPTIONS, stages=[3]),
        lambda: client.curve(CHAIN, L4, 21, OPTIONS, stages=[21]),
        lambda: client.quote(CHAIN, OFFERS, options=OPTIONS, stages=[21]),
    ):
        with pytest.raises(BadInput, match=r"stages: (3|21) stages of "):
            ask()


def test_allocations_and_watches_count_pipelines(system: System, client: Client) -> None:
    job = {"name": "chain", "graph": CHAIN, "hardware": L4, "options": OPTIONS}
    shared = client.allocate([{**job, "stages": [4], "schedules": ["gpipe"]}], 4)
    curve = client.curve(CHAIN, L4, 4, OPTIONS, stages=[4], schedules=["gpipe"])
    pipeline = curve.points[3].pipeline
    assert pipeline is not UNSET
    assert (shared.jobs[0].gpus, shared.jobs[0].time_s) == (4, pipeline.step_s)
    assert client.allocate([{"name": "x", "curve": curve}], 4).jobs[0].time_s == pipeline.step_s
    assert client.allocate([job], 4).gpus_used == 0
    with pytest.raises(BadInput, match=r"jobs\[0\]\.stages"):
        client.allocate([{**job, "stages": [5]}], 4)
    body = bodies()["curves"] | {"max_gpus": 4, "stages": [4], "schedules": ["gpipe"]}
    made = system.client.post("/v1/watches", json={**body, "name": "piped"})
    assert made.status_code == 201 and made.json()["job"]["state"] == "done", made.text
    text = system.client.get("/v1/watches/metrics").text
    step = 'shardwise_watch_iteration_time_seconds{gpus="4",watch="piped"} '
    (line,) = (line for line in text.splitlines() if line.startswith(step))
    assert float(line.removeprefix(step)) == pipeline.step_s
    assert 'shardwise_watch_fewest_gpus{watch="piped"} 4.0' in text


COMMANDS: list[tuple[str, ...]] = [
    ("frontier", "--hardware", "l4", "--gpus", "5", "--stages", "5"),
    ("frontier", "--hardware", "l4", "--gpus", "5", "--stages", "2"),
    ("frontier", "--hardware", "l4", "--gpus", "5", "--stages", "5", "--schedules", "dualpipe"),
    ("frontier", "--hardware", "l4", "--gpus", "5", "--stages", "5", "--objective", "sum"),
    ("curve", "--hardware", "l4", "--max-gpus", "5", "--stages", "auto"),
    ("curve", "--hardware", "l4", "--max-gpus", "5", "--stages", "6"),
    ("curve", "--hardware", "heterog-8", "--bundle", "v100=2,p100=2", "--stages", "4"),
    ("quote", "--offers", "offers.csv", "--max-instances", "1", "--stages", "5"),
    ("quote", "--offers", "offers.csv", "--combine", "2", "--stages", "5"),
    ("quote", "--offers", "offers.csv", "--hardware", "heterog-8", "--stages", "5"),
]


@pytest.mark.full
def test_commands_answer_and_fail_as_they_do_locally(system: System, tmp_path: Path) -> None:
    write_graph(CHAIN, tmp_path / "chain.json")
    (tmp_path / "offers.csv").write_text(OFFERS_CSV)

    def run(*arguments: str) -> Any:
        return shardwise(*arguments, cwd=tmp_path, env=dict(os.environ))

    failed = 0
    for command, *arguments in COMMANDS:
        asked = (command, "chain.json", *arguments, *FLAGS, "--json")
        here, there = run(*asked), run(*asked, "--server", system.service.url)
        assert "Traceback" not in here.stderr + there.stderr
        assert (here.returncode, here.stderr) == (there.returncode, there.stderr), asked
        failed += here.returncode
        if here.stdout:
            ours, theirs = json.loads(here.stdout), json.loads(there.stdout)
            ours.pop("search", None), theirs.pop("search", None)
            assert ours == theirs
    assert failed == 2 * 5
