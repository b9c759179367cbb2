"""Presets by name: the service's own graphs, else captured by who asks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.service.service_harness import ROOT, Service
from harness.service.steps import HARDWARE, mlp
from service.base.problems import Problem
from service.questions.preset_graphs import PresetGraphs
from shardwise.advise import Options
from shardwise.capture import load_graph
from shardwise.client import AsyncClient, Client, Missing, Refused
from shardwise.client import preset as client_preset
from shardwise.errors import BadInput
from shardwise.graph import graph_id, write_graph

SMALL = "gpt2:n_layer=1,n_embd=64,n_head=2,vocab_size=128"
THERE = mlp(24)
QUICK = Options(overlap=False, micro_batches=(1,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An operator's folder: a small graph under a preset's name, one of his own, other files."""
    made = tmp_path_factory.mktemp("graphs")
    write_graph(THERE, made / "bert-large.json.gz")
    write_graph(mlp(32), made / "our-model.json")
    (made / "README.txt").write_text("not a graph")
    (made / ".hidden.json").write_text("{")
    return made


@pytest.fixture(scope="module")
def service(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = Service(tmp_path_factory.mktemp("presets"), graphs_dir=str(folder))
    yield started
    started.stop()


def _ask(service: Service, graph: str) -> tuple[int, dict[str, object]]:
    body = {"graph": graph, "hardware": HARDWARE, "gpus": 2, "options": {"overlap": False}}
    answer = service.client.post("/v1/plans", json=body)
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    "name",
    ["preset:bert-large", "bert-large", "BERT-large", "preset:google-bert/bert-large-uncased"],
)
def test_a_graph_of_the_folder_is_asked_about_by_name(service: Service, name: str) -> None:
    status, job = _ask(service, name)
    assert status in (200, 202)
    question = job["question"]
    assert isinstance(question, dict)
    assert question["graph"] == graph_id(THERE)


def test_the_operators_own_names_and_every_kind_of_question(service: Service) -> None:
    graph = {"graph": "preset:our-model"}
    for path, body in (
        (
            "/v1/frontiers",
            {**graph, "hardware": HARDWARE, "gpus": 2, "options": {"overlap": False}},
        ),
        (
            "/v1/quotes",
            {**graph, "max_instances": 1, "options": {"overlap": False, "pins": ["*:data=1"]}},
        ),
    ):
        assert service.client.post(path, json=body).status_code in (200, 202, 422)
    query = {**graph, "hardware": HARDWARE, "max_gpus": "2", "overlap": "false"}
    assert service.client.get("/v1/curves", params=query).status_code in (200, 202)
    page = service.client.get("/").text
    assert '<option value="preset:our-model">our-model</option>' in page
    assert "README" not in page


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("preset:gpt2:n_layer=2", 404, "run `shardwise capture gpt2:n_layer=2 -o graph.json.gz`"),
        ("llama3-8b:hidden_act=relu", 404, "there is no graph"),
        ("preset:bert-large:num_hidden_layers=2", 404, "bert-large:num_hidden_layers=2 -o"),
        ("preset:lama3-8b", 422, "llama3-8b"),
        ("preset:../graphs/bert-large", 422, "there is no preset"),
        ("preset:", 422, "there is no preset"),
        ("preset:.hidden", 422, "there is no preset"),
    ],
)
def test_what_is_not_there_is_answered_with_what_to_do(
    service: Service, name: str, status: int, said: str
) -> None:
    given, problem = _ask(service, name)
    assert given == status
    assert said in str(problem["detail"])


@pytest.mark.full
def test_a_client_captures_what_the_service_lacks(service: Service) -> None:
    """Both clients, and the command; what the service has is not captured."""
    pytest.importorskip("transformers")

    async def awaited() -> object:
        async with AsyncClient(service.url) as client:
            return (await client.curve(f"preset:{SMALL}", HARDWARE, 1, QUICK)).graph_name

    with Client(service.url) as client:
        assert client.plan("bert-large", HARDWARE, 2, options=QUICK).graph == graph_id(THERE)
        assert client.plan(SMALL, HARDWARE, 2, options=QUICK).graph_name == SMALL
    assert asyncio.run(awaited()) == SMALL
    command = ["plan", SMALL, "--hardware", HARDWARE, "--gpus", "2", "--server", service.url]
    command += ["--objective", "sum", "--micro-batches", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "shardwise", *command], cwd=ROOT, capture_output=True, text=True,
        timeout=300, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert SMALL in done.stdout


def test_a_client_without_torch_says_so(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_preset, "NEEDED", ("no_such_package",))
    with Client(service.url) as client:
        assert client.plan("bert-large", HARDWARE, 2, options=QUICK).graph == graph_id(THERE)
        with pytest.raises(BadInput, match="neither this service nor this machine"):
            client.plan("gpt2:n_layer=2", HARDWARE, 2)
        with pytest.raises(Refused, match="no preset"):
            client.plan("preset:nothing-like-it", HARDWARE, 2)
        with pytest.raises(Missing, match="there is no graph"):
            client.plan("sha256:" + "0" * 64, HARDWARE, 2)


def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    graphs = PresetGraphs(str(tmp_path), max_operators=1000)
    with pytest.raises(Problem, match="no graph of the preset gpt2:n_layer=2"):
        graphs.upload("gpt2:n_layer=2")
    assert graphs.upload("gpt2").id == graph_id(load_graph("gpt2"))
    for hidden in (16, 48):
        write_graph(mlp(hidden), tmp_path / "gpt2.json")
        assert graphs.upload("gpt2").id == graph_id(mlp(hidden))
    with pytest.raises(BadInput, match="at most 1"):
        PresetGraphs(str(tmp_path), max_operators=1).upload("gpt2")
    (tmp_path / "gpt2.json").write_text("{")
    with pytest.raises(BadInput, match=r"gpt2\.json"):
        graphs.upload("gpt2")
