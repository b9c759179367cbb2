"""SkyPilot's own policy client against a running service, with and without keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.answers import curve, quote
from harness.schedulers.environments import QUIET, skypilot
from harness.service.service_harness import Service
from harness.service.steps import keys, mlp, upload
from shardwise.capture import shipped_graph
from shardwise.graph import graph_id, read_graph
from shardwise.hardware import load_hardware, read_offers

pytestmark = pytest.mark.full

ASKS = {"SHARDWISE_GRAPH": "shipped:vgg16"}
ON_V100 = {**ASKS, "SHARDWISE_HARDWARE": "dgx-v100-16gb", "SHARDWISE_MAX_GPUS": "8"}
CASES: dict[str, dict[str, Any]] = {
    "by curve": {"task": {"envs": ON_V100, "run": "echo hi", "resources": {"disk_size": 300}}},
    "by label": {
        "task": {"resources": {"labels": {k.lower(): v for k, v in ON_V100.items()}}},
        "request": "jobs.launch",
    },
    "by offer": {"task": {"envs": {"SHARDWISE_GRAPH": graph_id(mlp(24)), "SHARDWISE_STEPS": "9"}}},
    "nothing asked": {"task": {"run": "echo hi", "resources": {"accelerators": {"T4": 1}}}},
    "on a cluster as it is": {"task": {"envs": ON_V100, "num_nodes": 3}, "request": "exec"},
    "nothing fits": {
        "task": {
            "envs": {**ON_V100, "SHARDWISE_GRAPH": "shipped:llama-8b", "SHARDWISE_MAX_GPUS": "1"}
        }
    },
    "no such graph": {"task": {"envs": {**ON_V100, "SHARDWISE_GRAPH": "sha256:" + "0" * 64}}},
    "misspelt": {"task": {"envs": {**ON_V100, "SHARDWISE_MAXGPUS": "8"}}},
    "no number": {"task": {"envs": {**ON_V100, "SHARDWISE_MAX_GPUS": "many"}}},
}


LATE = "launch again"
MOST_LAUNCHES = 4
"""On a loaded machine advice takes longer than SkyPilot waits, and one launches again."""


def ask(service_url: str, cases: dict[str, dict[str, Any]], home: Path) -> dict[str, Any]:
    """What SkyPilot's client makes of the service's answers, with the policy in its own config."""
    url = f"{service_url}/v1/skypilot/policy"
    (home / "config.yaml").write_text(json.dumps({"admin_policy": url}))
    variables = {"SKYPILOT_GLOBAL_CONFIG": str(home / "config.yaml"), **QUIET}
    by_case: dict[str, Any] = {}
    for _ in range(MOST_LAUNCHES):
        late = [n for n in cases if n not in by_case or LATE in by_case[n].get("rejected", "")]
        given = {"url": url, "cases": [{"request": "launch", **cases[name]} for name in late]}
        if late:
            answers = skypilot().run("skypilot_policy.py", given, home, **variables)
            by_case |= dict(zip(late, answers, strict=True))
    return by_case


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = Service(tmp_path_factory.mktemp("policy"))
    upload(started, mlp(24))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def answers(service: Service, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ask(service.url, CASES, tmp_path_factory.mktemp("sky"))


def test_a_task_gets_the_fastest_count_of_its_curve(answers: dict[str, Any]) -> None:
    graph, hardware = read_graph(shipped_graph("vgg16")), load_hardware("dgx-v100-16gb")
    points = [p for p in curve(graph, hardware, 8)["points"] if p["feasible"]]
    best = min(points, key=lambda p: p["time_s"])["gpus"]
    for name in ("by curve", "by label"):
        assert answers[name]["num_nodes"] * answers[name]["accelerators"][0]["V100"] == best, name
    assert answers["by curve"]["disk_size"] == [300], "what else was asked for is kept"
    assert answers["by curve"]["run"] == "echo hi"
    assert answers["by curve"]["envs"] == ON_V100


def test_a_task_gets_the_cheapest_offer(answers: dict[str, Any]) -> None:
    first = quote(mlp(24), read_offers(), steps=9)["offers"][0]
    task = answers["by offer"]
    assert task["num_nodes"] == first["instances"]
    assert task["accelerators"] == [{first["gpu_kind"]: first["gpus"] // first["instances"]}]
    assert task["spot"] == [first["spot"]]


def test_other_tasks_pass_through(answers: dict[str, Any]) -> None:
    assert answers["nothing asked"]["accelerators"] == [{"T4": 1}]
    assert answers["on a cluster as it is"]["num_nodes"] == 3
    assert answers["on a cluster as it is"]["accelerators"] == [None]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nothing fits", "GiB per GPU"),
        ("no such graph", "there is no graph"),
        ("misspelt", "SHARDWISE_MAXGPUS"),
        ("no number", "SHARDWISE_MAX_GPUS: 'many'"),
    ],
)
def test_a_rejection_says_why(answers: dict[str, Any], name: str, text: str) -> None:
    assert text in answers[name]["rejected"]


def test_the_key_is_the_password_of_the_url(tmp_path: Path) -> None:
    folder = tmp_path / "keyed"
    folder.mkdir()
    key = json.loads(keys(folder, "create", "--json", "--tenant", "sky"))["key"]
    service = Service(folder)
    try:
        with_key = service.url.replace("://", f"://sky:{key}@")
        case = {"by curve": CASES["by curve"]}
        assert "accelerators" in ask(with_key, case, tmp_path)["by curve"]
        assert "401" in ask(service.url, case, tmp_path)["by curve"]["rejected"]
        # Basic is taken at this one path.
        assert service.client.get("/v1/jobs", auth=("sky", key)).status_code == 401
    finally:
        service.stop()
