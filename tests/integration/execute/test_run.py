"""`shardwise run`: on this host, as ranks of srun, as an agent's entry point; what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.commands import as_ranks, shardwise
from harness.tiers import some
from shardwise.documents import unfolded

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SOURCE = "zoo:mlp:layers=2,inputs=32,hidden=64,classes=8,batch=16"
RANK = [sys.executable, "-m", "shardwise.execute"]


def call(
    *arguments: str, cwd: Path, code: int = 0, **more: str
) -> subprocess.CompletedProcess[str]:
    done = shardwise(*arguments, cwd=cwd, env={**os.environ, **more})
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


ASKED = ("--hardware", "dgx-v100-16gb", "--gpus", "2", "--pin", "split=batch")
EAGER = ("--framework", "eager")
"""What runs on CPUs, where compiled kernels that are assumed of GPUs are not compiled."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for two devices with its graph."""
    work = tmp_path_factory.mktemp("run")
    call("capture", SOURCE, "-o", "graph.json", cwd=work)
    call("plan", "graph.json", *ASKED, *EAGER, "-o", "plan.json", cwd=work)
    return work


def check(document: dict[str, Any], folder: Path, steps: int, planned: str = "plan.json") -> None:
    plan = json.loads((folder / planned).read_text())
    assert document["schema"] == "shardwise.measurement/1"
    assert (document["plan"], document["graph"]) == (plan["id"], plan["graph"])
    assert document["steps"] == len(document["iteration_s"]["all"]) == steps
    assert document["backend"] == "gloo"
    assert len(document["peak_bytes"]["per_rank"]) == 2
    # CPU tensors are not a GPU's, but their sizes are.
    assert abs(document["errors"]["peak"]) < 0.1
    assert sum(document["collectives"].values()) >= 1
    for quantity, measured in (
        ("iteration", document["iteration_s"]["median"]),
        ("compute", document["compute_s"]),
        ("communication", document["communication_s"]),
    ):
        member = {"iteration": "replayed_time_s"}.get(quantity, f"{quantity}_s")
        predicted = plan["predicted"][member]
        assert document["errors"][quantity] == pytest.approx(measured / predicted - 1)


WAYS = [("--graph", "graph.json"), ("--source", SOURCE)]


@pytest.mark.parametrize(("flag", "value"), some(WAYS, lambda way: way[0] == "--graph"))
def test_on_this_host(folder: Path, flag: str, value: str) -> None:
    arguments = ("run", "plan.json", flag, value, "--steps", "4", "-o", "m.json", "--json")
    done = call(*arguments, cwd=folder)
    document = json.loads(done.stdout)
    assert document == json.loads((folder / "m.json").read_text())
    check(document, folder, 4)


def on_ranks(world: int, *arguments: str, cwd: Path, **more: str) -> str:
    """Runs a plan on ranks that start as torchrun's do, but fast; returns what rank 0 shows."""
    environment = {"MASTER_PORT": free_port(), **more}
    done = as_ranks(world, "run", *arguments, cwd=cwd, env=environment)
    assert [rank.returncode for rank in done] == [0] * world, [rank.stderr for rank in done]
    return done[0].stdout


def refused_by(world: int, *arguments: str, cwd: Path) -> str:
    """Returns what the first of some ranks that refuse a run says."""
    done = as_ranks(world, "run", *arguments, cwd=cwd, env={"MASTER_PORT": free_port()})
    assert {rank.returncode for rank in done} == {2}, [rank.stderr for rank in done]
    assert not any("Traceback" in rank.stderr for rank in done)
    return done[0].stderr


def test_micro_batches_of_a_graph_alone(folder: Path) -> None:
    more = (*EAGER, "--micro-batches", "4", "-o", "parts.json")
    call("plan", "graph.json", *ASKED, *more, cwd=folder)
    arguments = ("parts.json", "--graph", "graph.json", "--steps", "3", "-o", "parts-run.json")
    on_ranks(2, *arguments, cwd=folder)
    document = json.loads((folder / "parts-run.json").read_text())
    assert json.loads((folder / "parts.json").read_text())["micro_batches"] == 4
    check(document, folder, 3, "parts.json")


@pytest.mark.full
def test_on_this_host_it_shows_a_table_and_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    more = ("run", "plan.json", "--graph", "graph.json", "--steps", "2")
    shown = call(*more, cwd=folder, TMPDIR=str(tmp_path)).stdout
    assert "predicted" in shown and "measured" in shown and "peak memory" in shown
    left = {file.name for file in tmp_path.iterdir()}
    # What torch leaves there by itself, from 2.15 on when it is imported.
    assert {name for name in left if not name.startswith("torchinductor_")} == set()


@pytest.mark.full
def test_a_plan_in_16_bits_of_a_graph_in_32(folder: Path) -> None:
    more = (*EAGER, "--precision", "bf16", "-o", "narrow.json")
    call("plan", "graph.json", *ASKED, *more, cwd=folder)
    arguments = ("run", "narrow.json", "--graph", "graph.json", "--steps", "2", "--json")
    narrow = json.loads(call(*arguments, cwd=folder).stdout)
    check(narrow, folder, 2, "narrow.json")


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on CPUs")
def test_a_plan_for_compiled_kernels(folder: Path) -> None:
    more = ("--kernels", "compiled", "-o", "kernels.json")
    call("plan", "graph.json", *ASKED, *more, cwd=folder)
    arguments = ("run", "kernels.json", "--graph", "graph.json", "--steps", "2", "--json")
    compiled = json.loads(call(*arguments, cwd=folder).stdout)
    check(compiled, folder, 2, "kernels.json")
    assert compiled["compiled_operators"] >= 2 and compiled["not_compiled"] is None
    eager = json.loads(call(*arguments, "--no-compile", cwd=folder).stdout)
    assert eager["compiled_operators"] == 0 and eager["not_compiled"] is None


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def ranks(folder: Path, arguments: list[str], variables: list[dict[str, str]]) -> None:
    started = [
        subprocess.Popen(
            [*RANK, *arguments],
            cwd=folder,
            env={**os.environ, **mine},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for mine in variables
    ]
    for process in started:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said


@pytest.mark.full
def test_as_tasks_of_srun(folder: Path) -> None:
    """The variables that srun sets in each task of a step of two on one node."""
    port = free_port()
    common = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": "7",
              "SLURM_STEP_NODELIST": "127.0.0.1", "MASTER_PORT": port}  # fmt: skip
    tasks = [{**common, "SLURM_PROCID": str(r), "SLURM_LOCALID": str(r)} for r in range(2)]
    arguments = ["plan.json", "--graph", "graph.json", "--steps", "3", "--output", "s.json"]
    ranks(folder, arguments, tasks)
    check(json.loads((folder / "s.json").read_text()), folder, 3)


def test_as_an_agents_entry_point(folder: Path, tmp_path: Path) -> None:
    """The plan and the graph are in the run's folder, and the report goes there."""
    for name in ("plan.json", "graph.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    on_ranks(2, "--steps", "3", cwd=folder, SHARDWISE_RUN_DIR=str(tmp_path))
    check(json.loads((tmp_path / "report" / "measurement.json").read_text()), folder, 3)


@pytest.mark.full
def test_a_refusal_of_ranks_is_that_of_the_command(folder: Path) -> None:
    other = call("run", "plan.json", "--graph", "shipped:vgg16", cwd=folder, code=2)
    assert "the graph is not the one that the plan was made for" in other.stderr


def test_what_is_refused(folder: Path) -> None:
    other = refused_by(2, "plan.json", "--graph", "shipped:vgg16", cwd=folder)
    assert "the graph is not the one that the plan was made for" in other
    unnamed = call("run", "plan.json", cwd=folder, code=2)
    assert "--graph FILE" in unnamed.stderr
    plan = unfolded(json.loads((folder / "plan.json").read_text()))
    for group in plan["groups"]:
        for op in group["operators"]:
            op.pop("moves")
    (folder / "old.json").write_text(json.dumps(plan))
    old = call("run", "old.json", "--graph", "graph.json", cwd=folder, code=2)
    assert "groups" in old.stderr
    lone = call(
        "run", "plan.json", "--graph", "graph.json", cwd=folder, code=2,
        RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(),
    )  # fmt: skip
    assert "the plan is for 2 devices, there are 1 ranks" in lone.stderr


IMPATIENT = """
import sys
from shardwise.cli.main import main
from shardwise.measure import rank
rank.JOIN_S = 1.0
sys.argv[1:1] = ["run"]
main()
"""


@pytest.mark.full
def test_a_rank_that_no_other_rank_joins_says_so(folder: Path) -> None:
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT, "plan.json", "--graph", "graph.json"],
        cwd=folder, env={**os.environ, **alone}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("shardwise: error: rank 0 found no others")


@pytest.mark.full
def test_launchers_that_do_not_meet_are_one_line(folder: Path) -> None:
    launcher = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}",
                "--rdzv-conf=is_host=0,read_timeout=1")  # fmt: skip
    arguments = ("run", "plan.json", "--graph", "graph.json", "--", *launcher)
    alone = call(*arguments, cwd=folder, code=1)
    assert "shardwise: error: torchrun lost its store" in alone.stderr


@pytest.fixture(scope="module")
def deep_graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a graph with activations that are larger than anything else."""
    file = tmp_path_factory.mktemp("deep") / "graph.json"
    source = "zoo:mlp:layers=4,inputs=256,hidden=256,classes=8,batch=2048"
    call("capture", source, "-o", str(file), cwd=file.parent)
    return str(file)


@pytest.mark.parametrize("stages", [2, 4])
def test_a_pipeline_is_measured_beside_its_prediction(
    deep_graph: str, tmp_path: Path, stages: int
) -> None:
    asked = ("--hardware", "l4", "--gpus", "4", "--stages", str(stages))
    asked += ("--micro-batches", "4", *EAGER)
    call("plan", deep_graph, *asked, "-o", "pipeline.json", cwd=tmp_path)
    given = ("--graph", deep_graph, "--steps", "3", "--warm-up", "1")
    shown = on_ranks(4, "pipeline.json", *given, cwd=tmp_path, SHARDWISE_RUN_DIR=str(tmp_path))
    pipeline = json.loads((tmp_path / "pipeline.json").read_text())
    document = json.loads((tmp_path / "report" / "measurement.json").read_text())
    assert (document["plan"], document["steps"]) == (pipeline["id"], 3)
    errors, median_s = document["errors"], document["iteration_s"]["median"]
    predicted_s = pipeline["predicted"]["step_s"]
    assert errors["iteration"] == pytest.approx(median_s / predicted_s - 1)
    assert errors["compute"] is errors["communication"] is None
    assert "peak memory of stage 1" in shown
    assert len(document["peak_bytes"]["per_rank"]) == 4
    for number, (stage, planned) in enumerate(
        zip(document["stages"], pipeline["stages"], strict=True)
    ):
        assert stage["stage"] == number
        assert stage["predicted_peak_bytes"] == planned["peak_bytes"]
        assert -0.3 < stage["peak_error"] < 0.1
        assert 0 <= stage["idle"] < 1
    refused = refused_by(4, "pipeline.json", "--graph", deep_graph, "--compile", cwd=tmp_path)
    assert "not compiled" in refused


@pytest.mark.full
@pytest.mark.parametrize("gpus", [2, 4])
def test_interleaved_stages_are_measured_beside_their_prediction(tmp_path: Path, gpus: int) -> None:
    model = "n_layer=4,n_embd=128,n_head=4,vocab_size=512"
    source = f"hf:GPT2Config:{model},resid_pdrop=0.0,embd_pdrop=0.0,attn_pdrop=0.0"
    call("capture", source, "--batch", "32", "--seq", "64", "-o", "graph.json", cwd=tmp_path)
    asked = ("--hardware", "l4", "--gpus", str(gpus), "--stages", "2", "--micro-batches", "8")
    asked += ("--update", "foreach", "--schedules", "interleaved", "--space", "megatron")
    call("plan", "graph.json", *asked, "-o", "pipeline.json", cwd=tmp_path)
    given = ("--steps", "3", "--warm-up", "1", "-o", "measured.json")
    call("run", "pipeline.json", "--graph", "graph.json", *given, cwd=tmp_path)
    pipeline = json.loads((tmp_path / "pipeline.json").read_text())
    document = json.loads((tmp_path / "measured.json").read_text())
    assert (pipeline["schedule"], pipeline["stages_per_rank"]) == ("interleaved", 2)
    assert len(document["stages"]) == 4
    for stage, planned in zip(document["stages"], pipeline["stages"], strict=True):
        assert stage["predicted_peak_bytes"] == planned["peak_bytes"]
        assert abs(stage["peak_error"]) < 0.05
