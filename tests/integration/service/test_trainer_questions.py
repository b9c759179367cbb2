"""Plans for trainers, priced configurations and exports of a running service."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.answers import document
from harness.commands import shardwise
from harness.service.service_harness import System
from harness.service.steps import HARDWARE, check, mlp, upload
from shardwise.answers import Options
from shardwise.client import AsyncClient, Client, Missing
from shardwise.documents import Plan, Pricing
from shardwise.documents.questions import MOST_CONFIGURATION_BYTES
from shardwise.errors import BadInput
from shardwise.graph import write_graph
from shardwise.hardware import load_hardware
from shardwise.schedulers.exported import exported
from shardwise.trainers.plan import plan_for
from shardwise.trainers.price import price_configuration
from shardwise.trainers.read import configuration_of

GRAPH = mlp(48, "trained")
ZERO_1 = json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 1}})
ZERO_9 = ZERO_1.replace("1}", "9}")
OTHER_BATCH = ZERO_1.replace("8", "80")
WHERE = ("--hardware", HARDWARE, "--gpus", "2")
ONE: dict[str, Any] = {"options": Options(micro_batches=(1,))}
"""Options of searches that are over at once."""


def timeless(answer: Plan | Pricing) -> dict[str, Any]:
    """Returns an answer's document without what its search took."""
    whole = document(answer)
    for one in (whole, whole.get("plan", {})):
        if isinstance(one, dict):
            one.pop("search", None)
    return whole


def test_the_answers_are_the_librarys(system: System) -> None:
    hardware = load_hardware(HARDWARE)
    heard: list[str] = []

    def listen(stage: str, fraction: float) -> bool:
        heard.append(stage)
        return True

    with Client(system.service.url) as client:
        plan = client.plan(GRAPH, HARDWARE, 4, space="deepspeed", progress=listen, **ONE)
        assert timeless(plan) == timeless(plan_for(GRAPH, hardware, 4, "deepspeed", **ONE))
        assert plan.trainer.name == "deepspeed"
        asked = {"file": "mine.json", **ONE}
        priced = client.pricing(GRAPH, HARDWARE, 4, ZERO_1, progress=listen, **asked)
        configuration = configuration_of(ZERO_1, 4, "mine.json")
        here = price_configuration(GRAPH, hardware, 4, configuration, **asked)
        assert timeless(priced) == timeless(here) and priced.alternatives
        for said in ({"to": "deepspeed"}, {"format": "sbatch"}):
            ours = exported(plan, said.get("format"), said.get("to"), None)
            assert client.export(plan.id, **said) == ours
        job = next(client.jobs(kind="pricing"))
        assert job.answer is not None and job.location.startswith("/v1/pricings/")
        free = client.plan(GRAPH, HARDWARE, 4, **ONE)
        assert free.trainer is not plan.trainer, "another question"

    async def ask() -> tuple[Any, Any]:
        async with AsyncClient(system.service.url) as client:
            once_more = await client.pricing(GRAPH, HARDWARE, 4, ZERO_1, **asked)
            return once_more, await client.export(plan.id, to="accelerate")

    again, accelerate = asyncio.run(ask())
    assert again == priced
    assert accelerate.filename == "accelerate.yaml" and accelerate.unsaid


def test_a_known_price_is_not_computed_again(system: System) -> None:
    upload(system.service, GRAPH)
    body = {"graph": upload(system.service, GRAPH), "hardware": HARDWARE, "gpus": 2,
            "configuration": ZERO_1, "options": {"micro_batches": [1]}}  # fmt: skip
    made = system.client.post("/v1/pricings", json=body)
    assert made.status_code == 202
    job = system.service.ended(made.headers["Location"])
    assert job["state"] == "done" and job["result"]["trainer"] == "deepspeed"
    known = system.client.post("/v1/pricings", json=body)
    assert known.status_code == 200 and known.json()["id"] == job["id"]
    listed = system.client.get("/v1/jobs", params={"kind": "pricing"}).json()["items"]
    assert job["id"] in {one["id"] for one in listed}
    other = system.client.post("/v1/pricings", json={**body, "configuration": ZERO_1 + " "})
    assert other.json()["id"] != job["id"], "another text is another question"
    system.service.ended(other.headers["Location"])


def test_what_the_configuration_says_wrong_is_named(system: System) -> None:
    with Client(system.service.url) as client:
        for text, part in (
            (ZERO_9, "mine.json: zero_optimization.stage"),
            (OTHER_BATCH, "mine.json: its global batch is 80"),
            ("nothing at all", "mine.json: not a trainer's configuration"),
        ):
            with pytest.raises(BadInput) as caught:
                client.pricing(GRAPH, HARDWARE, 2, text, file="mine.json")
            assert part in str(caught.value) and "Traceback" not in str(caught.value)


ASK: dict[str, Any] = {"graph": "shipped:vgg16", "hardware": HARDWARE, "gpus": 2}
SUMS = {"options": {"overlap": False}}
PRICE = {**ASK, "configuration": ZERO_1}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("plans", {**ASK, "space": "abacus"}, "space"),
    ("plans", {**ASK, "space": "megatron", "order": "rank"}, "order"),
    ("plans", {**ASK, "space": "deepspeed", "stages": [2]}, "space"),
    ("plans", {**ASK, "space": "megatron", "point": "sha256:" + "0" * 64}, "point"),
    ("plans", {**ASK, "space": "megatron", **SUMS}, "options.overlap"),
    ("plans", {**ASK, "space": "megatron", "options": {"pins": ["*:zero=1"]}}, "options.pins"),
    (
        "plans",
        {**ASK, "space": "megatron", "hardware": "heterog-8", "gpus": "v100=2,p100=2"},
        "space",
    ),
    ("pricings", {**PRICE, **SUMS}, "options.overlap"),
    ("pricings", {**PRICE, "gpus": 0}, "gpus"),
    ("pricings", {**PRICE, "gpus": "2"}, "gpus"),
    ("pricings", {**PRICE, "configuration": ""}, "configuration"),
    ("pricings", {**PRICE, "configuration": "x" * (MOST_CONFIGURATION_BYTES + 1)}, "configuration"),
    ("pricings", {**PRICE, "configuration": "é" * MOST_CONFIGURATION_BYTES}, "configuration"),
    ("pricings", {**PRICE, "file": "a\nb"}, "file"),
    ("pricings", {**PRICE, "file": "x" * 256}, "file"),
    ("pricings", {**PRICE, "trainer": "megatron"}, "trainer"),
]


@pytest.mark.parametrize(("path", "body", "field"), REFUSED)
def test_refusals_name_the_field(
    system: System, path: str, body: dict[str, Any], field: str
) -> None:
    problem = check(system.client.post(f"/v1/{path}", json=body), 422, "invalid")
    assert problem["field"] == field, problem


def test_exports_that_are_refused(system: System) -> None:
    with Client(system.service.url) as client:
        plan = client.plan(GRAPH, HARDWARE, 4, space="deepspeed", **ONE)
        free = client.plan(GRAPH, HARDWARE, 4, **ONE)
        with pytest.raises(Missing):
            client.export("sha256:" + "0" * 64, to="deepspeed")
        nothing = client.submit("plan", GRAPH, HARDWARE, gpus=1, options=_tiny())
        client.wait(nothing)
    get = system.client.get
    where = f"/v1/plans/{plan.id}/export"
    for query, field in (
        ("", "to"),
        ("?to=deepspeed&format=sbatch", "to"),
        ("?to=abacus", "to"),
        ("?format=gavel", "format"),
        ("?to=deepspeed&gpu_type=H100", "gpu_type"),
        ("?format=sbatch&gpu_type=" + "x" * 81, "gpu_type"),
    ):
        assert check(get(where + query), 422, "invalid")["field"] == field
    check(get(f"/v1/plans/{free.id}/export?to=deepspeed"), 422, "invalid")
    problem = check(get(f"{nothing.location}/export?to=deepspeed"), 404, "not-found")
    assert "GiB" in problem["detail"]
    answer = get(f"{where}?to=deepspeed")
    assert answer.json()["schema"] == "shardwise.export/1" and "ETag" not in answer.headers


def _tiny() -> Options:
    return Options(memory_limit_bytes=1000.0)


COMMANDS = (
    ("plan", "small.json", *WHERE, "--space", "deepspeed", "--micro-batches", "1"),
    ("explain", "small.json", *WHERE, "--like", "mine.json", "--micro-batches", "1"),
)
MISTAKES = (
    ("plan", "small.json", *WHERE, "--space", "deepspeed", "--objective", "sum"),
    ("plan", "small.json", *WHERE, "--space", "deepspeed", "--pin", "*:zero=1"),
    ("plan", "small.json", *WHERE, "--space", "deepspeed", "--memory", "1kB"),
    ("explain", "small.json", *WHERE, "--like", "wrong.json"),
    ("explain", "small.json", *WHERE, "--like", "none.json"),
    ("explain", "small.json", *WHERE, "--like", "mine.json", "--pin", "*:zero=1"),
)


def test_commands_answer_and_fail_as_they_do_locally(system: System, tmp_path: Path) -> None:
    write_graph(GRAPH, tmp_path / "small.json")
    (tmp_path / "mine.json").write_text(ZERO_1)
    (tmp_path / "wrong.json").write_text(ZERO_9)
    server = ("--server", system.service.url)

    def run(*arguments: str) -> Any:
        return shardwise(*arguments, cwd=tmp_path, env=dict(os.environ))

    for arguments in COMMANDS:
        here, there = run(*arguments, "--json"), run(*arguments, "--json", *server)
        assert (here.returncode, there.returncode) == (0, 0), here.stderr + there.stderr
        kind = Plan if arguments[0] == "plan" else Pricing
        ours, theirs = (json.loads(one.stdout) for one in (here, there))
        for whole in (ours, theirs):
            (whole if kind is Plan else whole["plan"]).pop("search")
        assert ours == theirs
    shown = run(*COMMANDS[1], *server)
    assert "one change at a time" in shown.stdout, shown.stderr
    for arguments in MISTAKES:
        here, there = run(*arguments, "--quiet"), run(*arguments, "--quiet", *server)
        assert here.returncode in (1, 2) and "Traceback" not in here.stderr
        assert (here.returncode, here.stderr) == (there.returncode, there.stderr)


def test_a_large_file_is_not_sent(system: System, tmp_path: Path) -> None:
    (tmp_path / "large.json").write_text(ZERO_1 + " " * MOST_CONFIGURATION_BYTES)
    refused = shardwise(
        "explain", "shipped:vgg16", *WHERE, "--like", "large.json", "--server", system.service.url,
        cwd=tmp_path,
    )  # fmt: skip
    assert refused.returncode == 2 and "large.json" in refused.stderr
