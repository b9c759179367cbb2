"""The client and `--server` against a real service with keys: the same documents as locally."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardwise
from harness import answers
from harness.service.service_harness import ROOT, Service, free_port, wait_until
from harness.service.steps import HARDWARE, keys, mlp
from shardwise import answers as advice
from shardwise.answers import Options
from shardwise.capture import shipped_graph
from shardwise.cli.main import cli
from shardwise.client import AsyncClient, Client, Denied, Missing, Refused
from shardwise.cost.pins import parse_pin
from shardwise.errors import BadInput, Cancelled
from shardwise.graph import Graph, graph_document, graph_id, read_graph, write_graph
from shardwise.hardware import hardware_document, load_hardware, parse_offers

OPTIONS = Options(
    epsilon=0.02, zero=(0, 1), micro_batches=(1, 2), pins=(parse_pin("partial!=reduce_scatter"),)
)
ONE = Options(micro_batches=(1,))
"""Options of searches that are over at once."""
OFFERS = (
    "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region,PriceAsOf\n"
    "small,V100,1,2.5,0.75,here,2026-11-01\nlarge,V100,8,20,,here,\n"
)


class Keyed:
    """A service that needs a key, and one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        created = keys(folder, "create", "--json", "--tenant", "research")
        self.key: str = json.loads(created)["key"]
        self.service = Service(folder, auth_cache_s="0")
        self.url = self.service.url

    def client(self, **keywords: Any) -> Client:
        return Client(self.url, **{"key": self.key, **keywords})


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    started = Keyed(tmp_path_factory.mktemp("client"))
    yield started
    started.service.stop()


def timeless(document: dict[str, Any]) -> dict[str, Any]:
    """Without what a search took."""
    return {key: value for key, value in document.items() if key != "search"}


def graph() -> Graph:
    return mlp(36, "asked-by-client")


def test_documents_are_the_librarys(keyed: Keyed) -> None:
    here, hardware = graph(), load_hardware(f"{HARDWARE}*2")
    heard: list[tuple[str, float]] = []

    def listen(stage: str, fraction: float) -> bool:
        heard.append((stage, fraction))
        return True

    with keyed.client() as client:
        for name, arguments, keywords in (
            ("frontier", (here, hardware, 4, OPTIONS), {}),
            ("curve", (here, hardware, 3, OPTIONS), {}),
            ("plan", (here, hardware, 4), {"objective": "mini-memory", "options": OPTIONS}),
            (
                "quote",
                (here, parse_offers(OFFERS, "my.csv")),
                {"steps": 10, "max_instances": 2, "options": ONE},
            ),
        ):
            expected = getattr(answers, name)(*arguments, **keywords)
            given = getattr(client, name)(*arguments, **keywords, progress=listen)
            assert timeless(answers.document(given)) == timeless(
                json.loads(json.dumps(expected))
            ), name
            if name == "plan":
                assert client.plan_of(given.id) == given
        assert all(0 <= fraction <= 1 for _, fraction in heard)
        assert [item["name"] for item in client.graphs()] == ["asked-by-client"]
        assert {job.kind for job in client.jobs(graph=graph_id(here))} == {
            "frontier", "curve", "plan", "quote",
        }  # fmt: skip


def test_async_documents_are_the_librarys(keyed: Keyed) -> None:
    async def run() -> list[dict[str, Any]]:
        async with AsyncClient(keyed.url, key=keyed.key) as client:
            results = await asyncio.gather(
                *(client.frontier(mlp(44), HARDWARE, 2, ONE) for _ in range(8)),
                client.curve(mlp(44), HARDWARE, 2, ONE),
            )
            assert [item async for item in client.graphs()]
            return [answers.document(answer) for answer in results]

    *frontiers, curve = asyncio.run(run())
    asked = (mlp(44), load_hardware(HARDWARE), 2, ONE)
    expected = json.loads(json.dumps(answers.frontier(*asked)))
    assert all(timeless(computed) == timeless(expected) for computed in frontiers)
    assert timeless(curve)["points"] == answers.curve(*asked)["points"]


def test_graphs_and_profiles_go_up_and_away(keyed: Keyed, tmp_path: Path) -> None:
    small = mlp(60, "files")
    write_graph(small, tmp_path / "g.json.gz")
    write_graph(small, tmp_path / "g.json")
    profile = {**hardware_document(load_hardware("l4")), "name": "of-a-file"}
    (tmp_path / "h.json").write_text(json.dumps(profile))
    with keyed.client() as client:
        sources: tuple[Any, ...] = (
            small, graph_document(small), tmp_path / "g.json.gz", tmp_path / "g.json",
            (tmp_path / "g.json").read_bytes(), (tmp_path / "g.json.gz").read_bytes(),
        )  # fmt: skip
        assert {client.upload_graph(source)["id"] for source in sources} == {graph_id(small)}
        assert client.graph_document(graph_id(small)) == json.loads(
            json.dumps(graph_document(small))
        )
        client.delete_graph(graph_id(small))
        with pytest.raises(Missing):
            client.graph(graph_id(small))
        hardware = client.upload_hardware(tmp_path / "h.json")["id"]
        assert client.hardware_document(hardware)["name"] == "of-a-file"
        assert {HARDWARE, "of-a-file"} <= {item["name"] for item in client.hardware()}
        client.delete_hardware(hardware)
        with pytest.raises(BadInput, match=re.escape("nosuch.json")):
            client.upload_graph(tmp_path / "nosuch.json")
        with pytest.raises(BadInput, match="a file with symbols"):
            client.upload_graph(small, batch=3)


def test_an_onnx_file_goes_up(keyed: Keyed, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    w = helper.make_tensor("w", TensorProto.FLOAT, [16, 4], [0.5] * 64)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y], [w]), opset_imports=[helper.make_opsetid("", 17)]
    )
    path = tmp_path / "tiny.onnx"
    path.write_bytes(model.SerializeToString())
    with keyed.client() as client:
        uploaded = client.upload_graph(path, batch=8)
        assert (uploaded["name"], uploaded["batch_size"]) == ("tiny.onnx", 8)
        assert client.upload_graph(path.read_bytes(), name="tiny.onnx", batch=8) == uploaded
        with pytest.raises(Refused, match="batch"):
            client.upload_graph(path)


def test_allocations_wait_for_their_curves(keyed: Keyed) -> None:
    hardware = load_hardware(HARDWARE)
    known = advice.curve(mlp(52), hardware, 2, ONE)
    jobs = [
        {"name": "known", "curve": known},
        {"name": "asked", "graph": mlp(68), "hardware": hardware, "weight": 2.0, "options": ONE},
    ]
    with keyed.client() as client:
        shared = client.allocate(jobs, 4, "max-min")
    asked = advice.curve(mlp(68), hardware, 4, ONE)
    expected = advice.allocate(
        [
            advice.job_from_curve(known, "known"),
            advice.job_from_curve(asked, "asked", weight=2.0),
        ],
        4,
        "max-min",
    )
    assert shared == expected


def test_jobs_are_submitted_watched_and_cancelled(keyed: Keyed) -> None:
    with keyed.client() as client:
        slow = client.submit("curve", "shipped:llama-8b", "dgx-h100", max_gpus=1000)
        assert slow.asked_here
        again = client.submit("curve", "shipped:llama-8b", "dgx-h100", max_gpus=1000)
        assert (again.id, again.asked_here) == (slow.id, False)
        with pytest.raises(TimeoutError):
            client.wait(slow, timeout_s=0.3)
        assert client.job(slow.id).state in ("queued", "running")
        with pytest.raises(Cancelled):
            client.wait(slow, lambda stage, fraction: False)
        assert client.wait(slow, timeout_s=30).state == "cancelled"
        assert client.health()["status"] == "ready"


def test_errors_are_typed(keyed: Keyed) -> None:
    with keyed.client() as client:
        with pytest.raises(advice.Infeasible, match="GiB"):
            client.plan(graph(), HARDWARE, 1, options=Options(memory_limit_bytes=1000.0))
        with pytest.raises(Refused) as caught:
            client.frontier(graph(), HARDWARE, 10**6)
        assert caught.value.field == "gpus"
        with pytest.raises(BadInput, match="matches no operator"):
            client.plan(graph(), HARDWARE, 2, options=Options(pins=(parse_pin("no:zero=1"),)))
    with pytest.raises(Denied), keyed.client(key=None) as client:
        list(client.graphs())


def command(capfd: Any, *arguments: str) -> tuple[int, str, str]:
    """A command in this process: exit code, standard output, standard error."""
    capfd.readouterr()
    try:
        code = cli.main(list(arguments), standalone_mode=False)
    except shardwise.ShardwiseError as error:
        return error.exit_code, "", f"{error}\n"
    sys.stdout.flush()
    out, err = capfd.readouterr()
    return code if isinstance(code, int) else 0, out, err


VGG = ("shipped:vgg16", "--hardware", HARDWARE)
SMALL = ("small.json", "--hardware", HARDWARE)
AT_ONCE = ("--micro-batches", "1")
COMMANDS: list[tuple[str, ...]] = [
    ("frontier", *SMALL, "--gpus", "2", "--zero", "0", "--objective", "sum"),
    ("curve", *SMALL, "--max-gpus", "2", *AT_ONCE),
    ("plan", *SMALL, "--gpus", "2", "--objective", "turning-point", *AT_ONCE),
    (
        "quote",
        "small.json",
        "--offers",
        "my.csv",
        "--steps",
        "10",
        "--max-instances",
        "1",
        *AT_ONCE,
    ),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=[c[0] for c in COMMANDS])
def test_commands_print_what_they_print_locally(
    keyed: Keyed,
    capfd: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_graph(mlp(64, "small"), Path("small.json"))
    Path("my.csv").write_text(OFFERS)
    Path("key").write_text(keyed.key + "\n")
    code, out, err = command(capfd, *arguments, "--json")
    there = command(capfd, *arguments, "--json", "--server", keyed.url, "--key-file", "key")
    assert (code, there[0]) == (0, 0), err + there[2]
    assert timeless(json.loads(there[1])) == timeless(json.loads(out))
    monkeypatch.setenv("SHARDWISE_SERVER", keyed.url)
    monkeypatch.setenv("SHARDWISE_KEY", keyed.key)
    there = command(capfd, *arguments)
    here = command(capfd, *arguments, "--server", "")
    took = re.compile(r"\d+\.\d\d s, \d+\.\d\d GiB")
    progress = re.compile(r"^… .*\n", re.MULTILINE)  # of questions that take long
    texts = [(code, took.sub("", out), progress.sub("", err)) for code, out, err in (there, here)]
    assert texts[0] == texts[1]


def test_commands_fail_as_they_fail_locally(
    keyed: Keyed, capfd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_graph(mlp(64, "small"), Path("small.json"))
    server = ("--server", keyed.url, "--key-file", str(tmp_path / "key"))
    (tmp_path / "key").write_text(keyed.key)
    for arguments in (
        ("plan", *SMALL, "--gpus", "1", "--memory", "1kB"),
        ("plan", *SMALL, "--gpus", "2", "--pin", "nobody:zero=1"),
        ("plan", *SMALL, "--gpus", "2", "--micro-batches", "7"),
        ("frontier", "shipped:nosuch", "--hardware", "l4", "--gpus", "1"),
        ("frontier", "shipped:vgg16", "--hardware", "abacus", "--gpus", "1"),
    ):
        here = command(capfd, *arguments)
        assert here[0] in (1, 2)
        assert command(capfd, *arguments, *server) == here
    code, _, err = command(capfd, "frontier", *VGG, "--gpus", "1", "--threads", "2", *server)
    assert (code, "threads" in err) == (2, True)
    (tmp_path / "key").write_text("sw_0000000000000000_" + "x" * 43)
    code, _, err = command(capfd, "frontier", *VGG, "--gpus", "1", *server)
    assert (code, err) == (2, "the key is not in force\n")


def test_explain_takes_a_plan_of_the_service(keyed: Keyed, capfd: Any) -> None:
    with keyed.client() as client:
        plan = client.plan(graph(), HARDWARE, 2)
    os.environ["SHARDWISE_KEY"] = keyed.key
    try:
        code, out, _ = command(capfd, "explain", plan.id, "--json", "--server", keyed.url)
    finally:
        del os.environ["SHARDWISE_KEY"]
    assert code == 0
    assert json.loads(out) == json.loads(json.dumps(answers.document(advice.explain(plan))))


def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "shardwise.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def test_an_unreachable_service_is_exit_code_three() -> None:
    server = f"http://127.0.0.1:{free_port()}"
    with run("frontier", *VGG, "--gpus", "1", "--server", server) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (3, "")
    assert err == f"shardwise: error: {server}: connection refused\n"


def test_ctrl_c_cancels_the_job_and_progress_is_shown(keyed: Keyed) -> None:
    arguments = ("curve", "shipped:gpt2", "--hardware", "dgx-h100", "--max-gpus", "1000")
    environment = {"SHARDWISE_SERVER": keyed.url, "SHARDWISE_KEY": keyed.key}
    with run(*arguments, **environment) as process, keyed.client() as client:
        assert process.stderr is not None
        first = process.stderr.readline()
        while first == "… starting: 0%\n":
            first = process.stderr.readline()
        assert re.match(r"… \d+ GPUs? \(\d+ of 1000\): \d+%\n", first), first
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (130, "")
        assert err.splitlines()[-1] == "shardwise: error: interrupted"
        job = next(client.jobs(kind="curve"))
        assert job.document["question"]["graph"] == graph_id(read_graph(shipped_graph("gpt2")))
        wait_until(lambda: client.job(job.id).state == "cancelled", "the job is cancelled")
