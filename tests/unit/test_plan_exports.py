"""Exports of answers on several kinds of devices: every host with its kind, in the order of ranks,
and nothing where a scheduler cannot say it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.graph_builder import mlp
from harness.kinds import FAST, SLOW, profile
from harness.schedulers.fake_hosts import FakeHosts
from shardwise.answers import Options, plan
from shardwise.cli.main import cli
from shardwise.documents.plan import Plan, PlannedBlock, PlannedCluster
from shardwise.errors import BadInput, NotFound
from shardwise.hardware import Blocks, Devices, load_hardware
from shardwise.outfiles import write_json
from shardwise.schedulers.counts import Counts
from shardwise.schedulers.formats import FORMS, PLAN_FORMS, export, export_plan
from shardwise.schedulers.goodput import goodputs_of

GROUPS = [("v100", "fast", 2, 4), ("p100", "slow", 3, 2)]
HARDWARE = profile(GROUPS, {"fast": FAST, "slow": SLOW})
QUICK = Options(micro_batches=(1,), time_limit_s=5.0)


@cache
def planned(bundle: str) -> Plan:
    return plan(mlp(64, 64, 2), HARDWARE, bundle, options=QUICK)


def plan_on(bundle: str) -> Plan:
    """A plan with the blocks of a bundle; what is trained is that of another one."""
    known = planned("v100=4,p100=4")
    blocks = Blocks.of(HARDWARE, Devices.parse(bundle, HARDWARE))
    assert isinstance(known.cluster, PlannedCluster)
    of_group = {place.group: place for place in known.cluster.places}
    cluster = replace(
        known.cluster,
        block_size=blocks.size,
        blocks=[PlannedBlock(block.group, block.node) for block in blocks.blocks],
        places=[
            replace(
                place, blocks=[n for n, block in enumerate(blocks.blocks) if block.group == group]
            )
            for group, place in of_group.items()
        ],
    )
    return replace(known, cluster=cluster, gpus=blocks.gpus, nodes=blocks.nodes)


def hosts_of(bundle: str) -> list[tuple[str, int]]:
    """Per node of a bundle its group and devices, counted rank by rank."""
    blocks = Blocks.of(HARDWARE, Devices.parse(bundle, HARDWARE))
    nodes: dict[int, list[str]] = {}
    for rank in range(blocks.gpus):
        block = blocks.blocks[rank // blocks.size]
        nodes.setdefault(block.node, []).append(block.group)
    return [(groups[0], len(groups)) for _, groups in sorted(nodes.items())]


bundles = st.builds("v100={},p100={}".format, st.integers(1, 8), st.integers(1, 6))
slow = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def component_nodes(script: str) -> list[tuple[str, int, int]]:
    """Per component of a script its GPU type, nodes, and GPUs of a node."""
    found = []
    for part in script.split("#SBATCH hetjob\n"):
        nodes = re.search(r"^#SBATCH --nodes=(\d+)$", part, re.M)
        gres = re.search(r"^#SBATCH --gres=gpu:([a-z0-9]+):(\d+)$", part, re.M)
        assert nodes and gres
        found.append((gres[1], int(nodes[1]), int(gres[2])))
    return found


@given(bundles)
@slow
def test_slurm_starts_every_host_with_its_kind_and_its_number(
    tmp_path_factory: pytest.TempPathFactory, bundle: str
) -> None:
    """The script runs as Slurm would run it, on hosts that are called by their place."""
    folder = tmp_path_factory.mktemp("slurm")
    script, wanted = export_plan(plan_on(bundle), "sbatch"), hosts_of(bundle)
    (folder / "train.sbatch").write_text(script)
    lists, first = {}, 0
    components = component_nodes(script)
    for number, (kind, nodes, gpus) in enumerate(components):
        assert wanted[first : first + nodes] == [(kind, gpus)] * nodes
        lists[f"SLURM_JOB_NODELIST_HET_GROUP_{number}"] = ",".join(
            f"h{i}" for i in range(first, first + nodes)
        )
        first += nodes
    assert first == len(wanted)
    hosts = FakeHosts(folder / "bin")
    hosts.run(["sh", "-eu", str(folder / "train.sbatch"), "train.py", "two words"], **lists)
    assert len(hosts.started) == len(wanted)
    for host, options, rest in hosts.started:
        number = int(options["node-rank"])
        assert host == f"h{number}"
        assert options["nproc-per-node"] == str(wanted[number][1])
        assert options["nnodes"] == str(len(wanted)) and options["master-addr"] == "h0"
        assert rest == ["train.py", "two words"]


def test_two_components_may_share_a_host(tmp_path: Path) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(export_plan(plan_on("v100=4,p100=3"), "sbatch"))
    hosts = FakeHosts(tmp_path / "bin")
    lists = {f"SLURM_JOB_NODELIST_HET_GROUP_{i}": name for i, name in enumerate(("a", "b", "b"))}
    hosts.run(["sh", "-eu", str(script)], **lists)
    assert [(host, o["node-rank"], o["nproc-per-node"]) for host, o, _ in hosts.started] == [
        ("a", "0", "4"), ("b", "1", "2"), ("b", "2", "1"),
    ]  # fmt: skip


@given(bundles)
@slow
def test_a_jobset_has_a_pod_for_every_host(
    tmp_path_factory: pytest.TempPathFactory, bundle: str
) -> None:
    names = "v100=Tesla-V100-PCIE-16GB,p100=Tesla-P100-PCIE-12GB"
    document = json.loads(export_plan(plan_on(bundle), "kueue", gpu_type=names))
    hosts, started = FakeHosts(tmp_path_factory.mktemp("pods")), []
    for job in document["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        # Kubernetes' own schema of a Job with this template.
        whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}}
        kubernetes_validate.validate({**whole, "spec": spec}, "1.32", strict=True)
        (container,) = spec["template"]["spec"]["containers"]
        gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
        assert spec["completionMode"] == "Indexed" and job["replicas"] == 1
        assert spec["parallelism"] == spec["completions"]
        product = spec["template"]["spec"]["nodeSelector"]["nvidia.com/gpu.product"]
        group = {name: group for group, name in (p.split("=") for p in names.split(","))}[product]
        for index in range(spec["completions"]):
            pod = f"{document['metadata']['name']}-{job['name']}-0-{index}"
            assert len(pod) <= 63
            command = [*container["command"], *container["args"]]
            hosts.run(command, JOB_COMPLETION_INDEX=str(index), POD=pod)
            started.append((pod, group, gpus))
    wanted = hosts_of(bundle)
    assert [(group, gpus) for _, group, gpus in started] == wanted
    for number, (host, options, rest) in enumerate(hosts.started):
        assert host == started[number][0] and options["node-rank"] == str(number)
        assert options["nproc-per-node"] == str(wanted[number][1])
        assert options["nnodes"] == str(len(wanted)) and rest == ["train.py"]
        # The first pod's name in the JobSet's own service.
        assert options["master-addr"] == f"{started[0][0]}.{document['metadata']['name']}"


@given(bundles)
@slow
def test_ray_has_a_bundle_for_every_host(bundle: str) -> None:
    group = json.loads(export_plan(plan_on(bundle), "ray", gpu_type="p100=P-100"))
    names = {"v100": "V100", "p100": "P-100"}
    assert group["strategy"] == "STRICT_SPREAD"
    assert [
        (next(name for name in one if name.startswith("accelerator_type:")), one["GPU"])
        for one in group["bundles"]
    ] == [(f"accelerator_type:{names[kind]}", gpus) for kind, gpus in hosts_of(bundle)]


def test_skypilot_has_one_kind_of_hosts() -> None:
    with pytest.raises(BadInput, match=r"4 v100, 2 p100.*one kind") as error:
        export_plan(plan_on("v100=4,p100=4"), "skypilot")
    assert error.value.field == "cluster.blocks"
    task = json.loads(export_plan(plan_on("p100=6"), "skypilot"))
    assert task["num_nodes"] == 3 and task["resources"] == {"accelerators": {"P100": 2}}
    with pytest.raises(BadInput, match="2 p100, 1 p100"):
        export_plan(plan_on("p100=3"), "skypilot")


def test_a_plan_on_one_kind_has_like_hosts() -> None:
    document = plan(mlp(64, 64, 2), load_hardware("dgx-v100-16gb"), 16, options=QUICK)
    assert document.nodes == 2
    script = export_plan(document, "sbatch")
    assert "hetjob" not in script and "--het-group" not in script
    assert "#SBATCH --nodes=2\n" in script and "#SBATCH --gres=gpu:8\n" in script
    assert json.loads(export_plan(document, "skypilot"))["resources"] == {
        "accelerators": {"V100": 8}
    }
    assert "--gres=gpu:V100:8" in export_plan(document, "sbatch", gpu_type="V100")
    assert len(json.loads(export_plan(document, "kueue"))["spec"]["replicatedJobs"]) == 1


def test_a_plan_of_one_group_alone_asks_for_its_kind() -> None:
    """Other groups of the cluster have GPUs too."""
    document = plan(mlp(64, 64, 2), HARDWARE.of_group("p100"), 6, options=QUICK)
    assert document.nodes == 3
    assert "#SBATCH --gres=gpu:p100:2\n" in export_plan(document, "sbatch")
    assert json.loads(export_plan(document, "skypilot"))["resources"] == {
        "accelerators": {"P100": 2}
    }
    (one, *_) = json.loads(export_plan(document, "ray"))["bundles"]
    assert "accelerator_type:P100" in one
    # Whoever names all kinds need not know which one the plan will take.
    named = export_plan(document, "sbatch", gpu_type="v100=V,p100=P")
    assert "#SBATCH --gres=gpu:P:2\n" in named
    assert "#SBATCH --gres=gpu:p100:2\n" in export_plan(document, "sbatch", gpu_type="v100=V")
    with pytest.raises(BadInput) as error:
        export_plan(document, "sbatch", gpu_type="v100=V,p100=")
    assert error.value.field == "gpu_type"
    alike = plan(mlp(64, 64, 2), load_hardware("dgx-v100-16gb"), 4, options=QUICK)
    with pytest.raises(BadInput, match="one name: the plan has one kind"):
        export_plan(alike, "sbatch", gpu_type="v100=V")


@pytest.mark.parametrize("form", sorted(set(FORMS) - set(PLAN_FORMS)))
def test_what_reads_curves_refuses_plans(form: str) -> None:
    with pytest.raises(BadInput, match=f"{form} reads curves, not plans") as error:
        export_plan(planned("v100=4,p100=4"), form)
    assert error.value.field == "format"


@pytest.mark.parametrize(
    "names",
    ["V100", "k80=K80", "v100=", "v100=X,p100=X", "v100=a b", "v100=x;reboot"],
)
def test_bad_gpu_types_are_refused(names: str) -> None:
    with pytest.raises(BadInput) as error:
        export_plan(planned("v100=4,p100=4"), "sbatch", gpu_type=names)
    assert error.value.field == "gpu_type"


def test_names_from_outside_stay_names(tmp_path: Path) -> None:
    known = planned("v100=4,p100=4")
    nasty = replace(known, graph_name="a'; $(reboot)\n#SBATCH --uid=0", hardware="`x`\nreboot")
    script = export_plan(nasty, "sbatch")
    assert "reboot)" not in script and "\n#SBATCH --uid" not in script and "`" not in script
    assert not re.search(r"^reboot", script, re.M)


def test_the_command_writes_what_the_library_writes(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_json(planned("v100=4,p100=4"), str(path))
    done = CliRunner().invoke(cli, ["export", str(path), "--format", "sbatch"])
    assert done.output == export_plan(planned("v100=4,p100=4"), "sbatch")
    done = CliRunner().invoke(cli, ["export", str(path), "--format", "sbatch", "--json"])
    assert json.loads(done.output) == {"script": export_plan(planned("v100=4,p100=4"), "sbatch")}
    named = ["--gpu-type", "v100=V100,p100=P100", "--json"]
    done = CliRunner().invoke(cli, ["export", str(path), "--format", "ray", *named])
    assert json.loads(done.output)["bundles"][0]["accelerator_type:V100"] == 0.001


def curve(times: Mapping[str, float | None]) -> dict[str, Any]:
    """A curve over bundles; None: that one does not fit."""
    points = []
    for bundle, time_s in times.items():
        counts = [int(part.partition("=")[2]) for part in bundle.split(",")]
        points.append(
            {
                "bundle": bundle,
                "gpus": sum(counts),
                "nodes": len(counts),
                "feasible": time_s is not None,
                "time_s": None if time_s is None else 2 * time_s,
                "replayed_time_s": time_s,
                **({"reason": "too large"} if time_s is None else {}),
            }
        )
    head = {"schema": "shardwise.curve/1", "graph_name": "net", "hardware": "heterog-8"}
    return {**head, "batch_size": 64, "overlap": True, "points": points}


ALONE = {"v100=1": 4.0, "v100=2": 2.0, "p100=1": None, "p100=2": 8.0}


def test_throughputs_are_those_of_each_group_alone() -> None:
    rates = json.loads(export(curve(ALONE), "gavel"))
    assert rates == {
        "v100": {
            "('net (batch size 64)', 1)": {"null": 0.25},
            "('net (batch size 64)', 2)": {"null": 0.5},
        },
        "p100": {"('net (batch size 64)', 2)": {"null": 0.125}},
    }
    functions = goodputs_of(json.loads(export(curve(ALONE), "sia")))
    assert functions["v100"].get_goodput(1, 2) == 32.0
    assert functions["p100"].get_goodput(1, 2) == 8.0
    assert functions["p100"].get_goodput(1, 1) == 0.0
    assert list(json.loads(export(curve(ALONE), "gavel", gpu_type="v100=V,p100=P"))) == ["v", "p"]


def test_adaptdl_has_one_gpu_type() -> None:
    with pytest.raises(BadInput, match="adaptdl has one GPU type, and the curve v100, p100"):
        export(curve(ALONE), "adaptdl")
    only = {bundle: time_s for bundle, time_s in ALONE.items() if bundle.startswith("v100")}
    table = json.loads(export(curve(only), "adaptdl"))
    assert table["gpu_type"] == "v100" and table["max_replicas"] == 2


@pytest.mark.parametrize("form", ["gavel", "sia", "adaptdl"])
def test_a_bundle_of_several_groups_is_refused(form: str) -> None:
    with pytest.raises(BadInput, match="v100=2,p100=2") as error:
        export(curve({"v100=1": 1.0, "v100=2,p100=2": 0.5}), form)
    assert error.value.field == "points[1].bundle"


@pytest.mark.parametrize("form", PLAN_FORMS)
def test_a_curve_over_bundles_starts_no_hosts(form: str) -> None:
    with pytest.raises(BadInput, match="shardwise export PLAN") as error:
        export(curve(ALONE), form)
    assert error.value.field == "format"


def test_where_nothing_fits_nothing_is_written() -> None:
    with pytest.raises(NotFound, match="too large"):
        export(curve({"v100=1": None, "p100=1": None}), "gavel")


def test_what_reads_counts_refuses_bundles() -> None:
    with pytest.raises(BadInput, match="over counts, not over bundles") as error:
        Counts.of(curve(ALONE))
    assert error.value.field == "points[0].bundle"
