"""The schedulers' own code reads what we write: AdaptDL's policy, Ray's and SkyPilot's parsers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.answers import curve
from harness.schedulers.environments import QUIET, Environment, ray_environment, skypilot
from shardwise.answers import Options, plan
from shardwise.capture import shipped_graph
from shardwise.documents.plan import Plan
from shardwise.graph import read_graph
from shardwise.hardware import load_hardware
from shardwise.schedulers.formats import export, export_plan

pytestmark = pytest.mark.full


def curve_of(graph: str, hardware: str, gpus: int) -> dict[str, Any]:
    """By sums, so that a small one does not fit on a single GPU."""
    sums = Options(overlap=False)
    document = curve(read_graph(shipped_graph(graph)), load_hardware(hardware), gpus, sums)
    # As it comes out of a file or over HTTP.
    return dict(msgspec.json.decode(msgspec.json.encode(document)))


@pytest.fixture(scope="module")
def vgg() -> dict[str, Any]:
    """Fits on 2 GPUs and more."""
    return curve_of("vgg16", "dgx-v100-16gb", 16)


@pytest.fixture(scope="module")
def gpt() -> dict[str, Any]:
    """Fits on 6 GPUs and more."""
    return curve_of("gpt2", "dgx-v100-16gb", 16)


def fitting(document: dict[str, Any]) -> set[int]:
    return {p["gpus"] for p in document["points"] if p["feasible"]}


def test_adaptdls_policy_allocates_by_our_speedups(
    vgg: dict[str, Any], gpt: dict[str, Any], tmp_path: Path
) -> None:
    environment = Environment(
        "adaptdl", "numpy==1.23.5", "scipy==1.10.1", "autograd==1.6.2",
        bare=("pymoo==0.5.0", "adaptdl==0.2.11", "adaptdl-sched==0.2.11"),
    )  # fmt: skip
    curves = [vgg, gpt, gpt]
    small = curve_of("vgg16", "dgx-a100-80gb", 16)
    given = {
        "jobs": [json.loads(export(c, "adaptdl")) for c in curves],
        "sia": json.loads(export(small, "sia", gpu_type="v100")),
        "nodes": 3,
        "node_gpus": 8,
    }
    answer = environment.run("pollux.py", given, tmp_path)
    nodes = answer["allocations"]
    running = {int(job): at for job, at in nodes.items() if at}
    # Its search is random: which jobs wait is its choice, not that none runs.
    assert len(running) >= 2
    for job, at in running.items():
        assert len(at) in fitting(curves[job])
        # On as few nodes as hold them: the placement that the curve has priced.
        assert len(set(at)) == -(-len(at) // 8)
    for name in {name for at in running.values() for name in at}:
        assert sum(at.count(name) for at in running.values()) <= 8
    # One GPU of an A100 holds it, so AdaptDL's own wrapper and ours agree on speedups.
    assert answer["wrapped"] == pytest.approx(answer["ours"])
    one = small["points"][0]["time_s"]
    assert answer["ours"] == pytest.approx(
        [one / small["points"][n - 1]["time_s"] for n in (1, 4, 16, 3)]
    )


def test_ray_takes_the_bounds(vgg: dict[str, Any], gpt: dict[str, Any], tmp_path: Path) -> None:
    environment = ray_environment()
    documents = [json.loads(export(c, "ray")) for c in (vgg, gpt)]
    for document, (low, high, gpu) in zip(
        (vgg, gpt), environment.run("ray_scaling.py", documents, tmp_path), strict=True
    ):
        assert gpu
        assert set(range(low, high + 1)) <= fitting(document)
        assert low < high


def test_skypilot_parses_the_task(vgg: dict[str, Any], gpt: dict[str, Any], tmp_path: Path) -> None:
    texts = [export(vgg, "skypilot"), export(gpt, "skypilot", efficiency=0.9)]
    read = skypilot().run("skypilot_task.py", texts, tmp_path, **QUIET)
    for document, (name, nodes, accelerators) in zip((vgg, gpt), read, strict=True):
        assert name == document["graph_name"]
        for wanted in accelerators:
            ((kind, count),) = wanted.items()
            assert kind == "V100"
            assert nodes * count in fitting(document)


@pytest.fixture(scope="module")
def mixed() -> Plan:
    """On a host of 2 V100, one of 2 GTX 1080 Ti, one with one of them, and one of 2 P100."""
    return plan(
        read_graph(shipped_graph("vgg16")),
        load_hardware("heterog-8"),
        "v100=2,1080ti=3,p100=2",
        options=Options(micro_batches=(1,), time_limit_s=40.0),
    )


def test_ray_holds_a_plans_hosts(mixed: Plan, tmp_path: Path) -> None:
    """On nodes in another order, with what Ray itself calls GPUs of these names."""
    names = "1080ti=GeForce-GTX-1080-Ti"
    v100, ti, p100 = "Tesla V100-PCIE-16GB", "NVIDIA GeForce GTX 1080 Ti", "Tesla P100-PCIE-12GB"
    given = {
        "nodes": [(p100, 2), (ti, 2), (v100, 2), (ti, 2)],
        "group": json.loads(export_plan(mixed, "ray", gpu_type=names)),
    }
    assert ray_environment().run("ray_group.py", given, tmp_path) == [v100, ti, ti, p100]


def test_jobsets_types_take_a_plans_hosts(mixed: Plan, tmp_path: Path) -> None:
    environment = Environment("jobset", "kubeflow-trainer-api==2.3.0", "pydantic==2.10.4")
    document = json.loads(export_plan(mixed, "kueue"))
    read = environment.run("jobset_types.py", document, tmp_path)
    # What JobSet's types do not know they leave out.
    assert read == document
    assert [job["template"]["spec"]["parallelism"] for job in read["spec"]["replicatedJobs"]] == [
        1, 1, 1, 1,
    ]  # fmt: skip
