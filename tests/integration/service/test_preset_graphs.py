"""Presets by name: the service's own graphs, else captured by who asks."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.service.service_harness import ROOT, Service
from harness.service.steps import HARDWARE, mlp
from service.base.problems import Problem
from service.questions.preset_graphs import PresetGraphs
from shardwise.answers import Options
from shardwise.capture import load_graph
from shardwise.capture.shipped import PRESETS_FOLDER
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


SIZES = {"batch": 32, "seq": 512}


def test_a_question_has_its_own_batch_and_sequence(service: Service) -> None:
    """As members, in the name, in a query and through the client: one graph, one question."""
    wanted = graph_id(load_graph("gpt2", batch=32, seq=512))
    body = {"hardware": HARDWARE, "gpus": 1, "options": {"overlap": False}}
    named = {**body, "graph": "gpt2:batch=32,seq=512"}
    ids = set()
    for question in ({**body, "graph": "preset:gpt2", **SIZES}, named, {**named, "batch": None}):
        answer = service.client.post("/v1/frontiers", json=question)
        assert answer.status_code in (200, 202), answer.text
        assert answer.json()["question"]["graph"] == wanted
        ids.add(answer.json()["id"])
    assert len(ids) == 1
    query = {"graph": "preset:gpt2", "hardware": HARDWARE, "max_gpus": "1", "overlap": "false"}
    answer = service.client.get("/v1/curves", params={**query, **SIZES})
    assert answer.json()["question"]["graph"] == wanted
    many = [
        {"graph": "preset:gpt2", "hardware": HARDWARE, "max_gpus": 1, "batch": batch}
        for batch in (32, 64)
    ]
    answer = service.client.post("/v1/curves/bulk", json={"questions": many})
    graphs = [item["job"]["question"]["graph"] for item in answer.json()["items"]]
    assert graphs == [graph_id(load_graph("gpt2", batch=batch)) for batch in (32, 64)]
    with Client(service.url) as client:
        job = client.submit("frontier", "gpt2:batch=32,seq=512", HARDWARE, gpus=1, options=QUICK)
        assert job.document["question"]["graph"] == wanted


@pytest.mark.parametrize(
    ("graph", "sizes", "field", "said"),
    [
        ("preset:gpt2", {"seq": 4096}, "seq", "16 to 1024"),
        ("preset:gpt2", {"batch": 0}, "batch", ">= 1"),
        ("preset:gpt2:batch=8", {"batch": 9}, "batch", "given twice"),
        ("preset:our-model", {"batch": 9}, "batch", "has the graph of batch"),
        (graph_id(THERE), {"batch": 9}, "batch", "/v1/graphs"),
    ],
)
def test_sizes_that_a_graph_does_not_hold_for_are_refused(
    service: Service, graph: str, sizes: dict[str, int], field: str, said: str
) -> None:
    body = {"graph": graph, "hardware": HARDWARE, "gpus": 1, **sizes}
    answer = service.client.post("/v1/plans", json=body)
    assert answer.status_code == 422
    assert answer.json()["field"] == field
    assert re.search(said, answer.text)
    assert "/shardwise/data" not in answer.text


def test_an_upload_with_symbols_is_of_the_sizes_that_it_asks_for(service: Service) -> None:
    content = (PRESETS_FOLDER / "gpt2.json.gz").read_bytes()
    with Client(service.url) as client:
        stored = client.upload_graph(content, batch=5, seq=100)
        assert stored["id"] == graph_id(load_graph("gpt2", batch=5, seq=100))
        with pytest.raises(Refused, match="16 to 1024"):
            client.upload_graph(content, seq=2000)
        assert client.upload_graph(content)["batch_size"] == 64
        with pytest.raises(BadInput, match="only to ONNX files"):
            client.upload_graph(content, sizes={"height": 3})


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
