"""A Slurm of Debian's packages runs what we write for it, and is never kept from running jobs."""

from __future__ import annotations

import json
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from subprocess import CompletedProcess

import pytest
from msgspec.structs import replace

from harness.answers import curve
from harness.commands import succeed
from harness.containers.faulty_server import FAULTS, faulty_server
from harness.containers.hosts import NONE
from harness.containers.slurm_cluster import SlurmCluster, running_slurm
from harness.graph_builder import mlp
from harness.kinds import FAST, SLOW, profile
from harness.service.service_harness import ROOT, Service, wait_until
from harness.service.steps import keys
from shardwise.answers import Options, plan
from shardwise.documents.plan import PlannedBlock, PlannedCluster
from shardwise.graph import canonical_json, graph_id
from shardwise.hardware import Blocks, Devices, load_hardware
from shardwise.schedulers.formats import export, export_plan

pytestmark = pytest.mark.engine

SAMPLES = ROOT / "deploy" / "slurm"
HARDWARE = "dgx-v100-16gb"
GRAPH = mlp(20, 20, 2)
PATIENCE_S = 3.0
"""How long the filter waits for an answer."""
AROUND_S = 15.0
"""What else sbatch may take on a loaded machine."""
WHERE = """\
import os
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
host = os.environ["SLURMD_NODENAME"]
line = " ".join([host, *(os.environ[name] for name in names)])
open(f"{os.environ['SLURM_JOB_NAME']}-{os.environ['RANK']}", "w").write(line)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    home = tmp_path_factory.mktemp("home")
    for folder in (home, *home.parents[:2]):
        folder.chmod(0o755)
    with running_slurm(home) as cluster:
        for sample in SAMPLES.iterdir():
            shutil.copy(sample, home)
        cluster.script("job.sh", "#!/bin/sh\nhostname\n")
        cluster.script("where.py", WHERE)
        yield cluster


@pytest.fixture(scope="module")
def service(
    slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The variables of a job that asks a service beside the cluster, which knows its curve."""
    folder = tmp_path_factory.mktemp("service")
    key = json.loads(keys(folder, "create", "--tenant", "lab", "--json"))["key"]
    started = Service(folder, "--host", slurm.gateway)
    started.client.headers["Authorization"] = f"Bearer {key}"
    answer = started.client.post("/v1/graphs", content=canonical_json(GRAPH))
    assert answer.status_code == 201, answer.text
    query = {"graph": graph_id(GRAPH), "hardware": HARDWARE, "max_gpus": "4"}
    wait_until(
        lambda: started.client.get("/v1/curves", params=query).status_code == 200, "the curve"
    )
    (slurm.home / "key").write_text(key)
    yield {**asking(started.url), "SHARDWISE_KEY_FILE": "key"}
    started.stop()


def asking(url: str) -> dict[str, str]:
    return {
        "SHARDWISE_SERVER": url, "SHARDWISE_GRAPH": graph_id(GRAPH),
        "SHARDWISE_HARDWARE": HARDWARE, "SHARDWISE_MAX_GPUS": "4",
    }  # fmt: skip


def number_of(done: CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()[-1]


def submit(slurm: SlurmCluster, *arguments: str, variables: Mapping[str, str] = NONE) -> str:
    return number_of(slurm.try_run("sbatch", *arguments, variables=variables))


def succeeded(slurm: SlurmCluster, number: str) -> None:
    state = slurm.ended(number)
    output = slurm.home / f"slurm-{number}.out"
    assert state == "COMPLETED", output.read_text() if output.exists() else state


# What runs on the nodes.


def test_measured_planned_and_run_on_two_hosts(slurm: SlurmCluster) -> None:
    home = slurm.home
    source = "zoo:mlp:layers=2,inputs=32,hidden=64,classes=8,batch=16"
    succeed("capture", source, "-o", str(home / "graph.json"))
    slurm.run(
        "srun", "--nodes=2", "--ntasks-per-node=2", "python", "-m", "shardwise.measure",
        "--time-limit=15", "--max-size=256KiB", "--collectives", "-o", "profile.json",
    )  # fmt: skip
    tables = json.loads((home / "profile.json").read_text())["collectives"]
    assert {(table["nodes"], table["ranks_per_node"]) for table in tables} == {
        (1, 2), (2, 1), (2, 2),
    }  # fmt: skip
    succeed(
        "plan", str(home / "graph.json"), "--hardware", str(home / "profile.json"), "--gpus", "4",
        "--pin", "zero=0", "--micro-batches", "1", "-o", str(home / "plan.json"),
    )  # fmt: skip
    number = submit(
        slurm, "--nodes=2", "--ntasks-per-node=2", "run.sbatch", "plan.json", "graph.json"
    )
    succeeded(slurm, number)
    measured = json.loads((home / f"measurement-{number}.json").read_text())
    print(measured["predicted"]["replayed_time_s"], measured["iteration_s"], measured["errors"])
    assert (measured["gpus"], measured["backend"]) == (4, "gloo")
    assert len(measured["peak_bytes"]["per_rank"]) == 4
    assert abs(measured["errors"]["peak"]) < 0.5
    nodes, tres = slurm.accounted(number, "NNodes", "ReqTRES")
    assert nodes == "2" and "gres/gpu=4" in tres


def test_a_rank_of_the_sample_sees_all_gpus_of_its_node(slurm: SlurmCluster) -> None:
    """The file as it is, with a `python` that says where it runs."""
    slurm.home.joinpath("bin").mkdir()
    slurm.script(
        "bin/python",
        '#!/bin/sh\necho "$SLURM_PROCID $SLURMD_NODENAME $SLURM_LOCALID $CUDA_VISIBLE_DEVICES"\n',
    )
    number = submit(
        slurm, "--nodes=2", "--ntasks-per-node=3", "run.sbatch", "plan.json", "graph.json",
        variables={"PATH": f"{slurm.home}/bin:/usr/bin:/bin"},
    )  # fmt: skip
    succeeded(slurm, number)
    lines = (slurm.home / f"slurm-{number}.out").read_text().splitlines()
    assert sorted(lines) == [
        f"{rank} node{1 + rank // 3} {rank % 3} 0,1,2" for rank in range(6)
    ]  # fmt: skip


def ranks_of(slurm: SlurmCluster, script: str) -> list[str]:
    """Where torchrun starts the ranks of a script, by rank."""
    text = re.sub(r"--job-name=\S+", "--job-name=where", script)
    for left in slurm.home.glob("where-*"):
        left.unlink()
    number = submit(slurm, slurm.script("train.sbatch", text), "where.py")
    succeeded(slurm, number)
    found = slurm.home.glob("where-*")
    return [path.read_text() for path in sorted(found, key=lambda path: path.name)]


def test_a_curves_script_starts_torchrun_on_every_node(slurm: SlurmCluster) -> None:
    document = curve(GRAPH, load_hardware(HARDWARE), 4)
    for point in document["points"]:
        faster = point["gpus"] == 4
        point |= {"nodes": -(-point["gpus"] // 2)}
        point |= {name: 1e-9 for name in ("time_s", "replayed_time_s") if faster}
    ranks = ranks_of(slurm, export(document, "sbatch"))
    # Which node torchrun's store calls the first is its own choice.
    assert [rank.split(" ", 1)[1] for rank in ranks] == ["0 4 0 2", "1 4 1 2", "2 4 0 2", "3 4 1 2"]
    hosts = [rank.split()[0] for rank in ranks]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]


def test_a_plans_script_starts_its_hosts_in_order(slurm: SlurmCluster) -> None:
    """On unlike hosts, so as a heterogeneous job of typed GPUs, the second kind first."""
    groups = [("p100", "slow", 1, 2), ("v100", "fast", 1, 2)]
    hardware = profile(groups, {"fast": FAST, "slow": SLOW})
    options = Options(micro_batches=(1,), time_limit_s=20.0)
    known = plan(mlp(64, 64, 2), hardware, "p100=2,v100=2", options=options)
    blocks = Blocks.of(hardware, Devices.parse("p100=2,v100=1", hardware))
    assert isinstance(known.cluster, PlannedCluster)
    places = [
        replace(place, blocks=[n for n, b in enumerate(blocks.blocks) if b.group == place.group])
        for place in known.cluster.places
    ]
    planned = [PlannedBlock(block.group, block.node) for block in blocks.blocks]
    cluster = replace(known.cluster, block_size=blocks.size, blocks=planned, places=places)
    uneven = replace(known, cluster=cluster, gpus=blocks.gpus, nodes=blocks.nodes)
    kinds = [(b.group, b.node) for b in blocks.blocks for _ in range(blocks.size)]
    ranks = ranks_of(slurm, export_plan(uneven, "sbatch"))
    names = {"v100": "node1", "p100": "node2"}
    assert [rank.split()[0] for rank in ranks] == [names[kind] for kind, _ in kinds]
    assert [rank.split()[1:3] for rank in ranks] == [[str(rank), "3"] for rank in range(3)]


# Advice, and what is recorded of it.


def test_the_filter_advises_and_accounting_says_so(
    slurm: SlurmCluster, service: dict[str, str]
) -> None:
    done = slurm.try_run("sbatch", "job.sh", variables=service)
    number = number_of(done)
    advised = re.search(r"shardwise: (\d) node\(s\) with (\d) GPU\(s\) each", done.stderr)
    assert advised, done.stderr
    nodes, gpus = map(int, advised.groups())
    succeeded(slurm, number)
    row = slurm.accounted(number, "NNodes", "ReqTRES", "Comment", "SubmitLine")
    assert row[0] == str(nodes) and f"gres/gpu={nodes * gpus}," in row[1]
    assert row[2] == (
        f"shardwise: asked for no size; advised nodes={nodes} gres=gpu:{gpus} "
        f"for {graph_id(GRAPH)} on {HARDWARE}"
    )
    assert row[3] == "sbatch job.sh"
    own = submit(slurm, "--comment=mine", "job.sh", variables=service)
    assert slurm.job(own)["Comment"] == "mine"
    assert slurm.job(own)["TresPerNode"] == f"gres:gpu:{gpus}"


def test_a_question_whether_it_would_run_is_advised_too(
    slurm: SlurmCluster, service: dict[str, str]
) -> None:
    done = slurm.try_run("sbatch", "--test-only", "job.sh", variables=service)
    assert done.returncode == 0 and "to start at" in done.stderr
    assert "GPU(s) each" in done.stderr


LEFT_ALONE = {
    "an array": (["--array=0-1", "job.sh"], None),
    "components on the command line": (["--mem=1", ":", "--mem=2", "job.sh"], None),
    "components in the script": (["het.sh"], None),
    "nodes": (["--nodes=1", "job.sh"], None),
    "a range of nodes": (["--nodes=1-2", "job.sh"], None),
    "tasks": (["--ntasks=2", "job.sh"], None),
    "GPUs of a node": (["--gpus-per-node=1", "job.sh"], None),
    "GPUs of a type": (["--gpus=v100:1", "job.sh"], None),
    "a size in the script": (["sized.sh"], None),
    "a script on standard input": ([], "#!/bin/sh\n#SBATCH --mem=1\n#SBATCH hetjob\nhostname\n"),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_the_filter_leaves_alone(slurm: SlurmCluster, service: dict[str, str], case: str) -> None:
    parts = "#SBATCH --mem=1\n#SBATCH hetjob\n#SBATCH --mem=1\n"
    slurm.script("het.sh", f"#!/bin/sh\n{parts}hostname\n")
    slurm.script("sized.sh", "#!/bin/sh\n#SBATCH --gres=gpu:v100:1\nhostname\n")
    arguments, given = LEFT_ALONE[case]
    jobs = []
    for variables in (NONE, service):
        # What a job asked for is shown until it is given what there is.
        done = slurm.try_run("sbatch", "--hold", *arguments, given=given, variables=variables)
        jobs.append(slurm.job(number_of(done)))
        slurm.run("scancel", number_of(done))
        assert "shardwise" not in done.stderr
    asked, filtered = (
        {name: job.get(name) for name in ("NumNodes", "NumTasks", "TresPerNode", "Comment")}
        for job in jobs
    )
    assert filtered == asked and asked["Comment"] is None


def test_commands_that_do_not_submit_scripts_are_left_alone(
    slurm: SlurmCluster, service: dict[str, str]
) -> None:
    for command in (["srun", "hostname"], ["salloc", "hostname"],
                    ["salloc", "--mem=1", ":", "--mem=1", "hostname"]):  # fmt: skip
        done = slurm.try_run(*command, variables=service)
        assert done.returncode == 0 and "shardwise" not in done.stderr, done.stderr
        assert done.stdout.split() in (["node1"], ["head"])


# Nothing that goes wrong keeps a job from being submitted.


def as_asked(slurm: SlurmCluster, started: float, done: CompletedProcess[str]) -> None:
    """The job was submitted as its user asked, not long after."""
    assert time.monotonic() - started < PATIENCE_S + AROUND_S
    job = slurm.job(number_of(done))
    assert "submitted as it was asked for" in done.stderr
    assert "TresPerNode" not in job and job["NumNodes"] == "1" and "Comment" not in job


@pytest.mark.parametrize("fault", [*FAULTS, "down", "no answer of the name server"])
def test_the_filter_never_keeps_a_job_from_being_submitted(slurm: SlurmCluster, fault: str) -> None:
    started = time.monotonic()
    if fault == "down":
        variables = asking(f"http://{slurm.gateway}:1")
        as_asked(slurm, started, slurm.try_run("sbatch", "job.sh", variables=variables))
    elif fault in FAULTS:
        with faulty_server(slurm.gateway, fault) as url:
            as_asked(slurm, started, slurm.try_run("sbatch", "job.sh", variables=asking(url)))
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind((slurm.gateway, 53))
            before = slurm.head.run("cat", "/etc/resolv.conf")
            slurm.head.write("/etc/resolv.conf", f"nameserver {slurm.gateway}\n")
            done = slurm.try_run("sbatch", "job.sh", variables=asking("http://shardwise.example"))
            slurm.head.write("/etc/resolv.conf", before)
            as_asked(slurm, started, done)


def test_a_key_that_cannot_be_read_is_no_obstacle(
    slurm: SlurmCluster, service: dict[str, str]
) -> None:
    """The key belongs to root; without it the service refuses to answer."""
    started = time.monotonic()
    variables = service | {"SHARDWISE_KEY_FILE": "/etc/munge/munge.key"}
    as_asked(slurm, started, slurm.try_run("sbatch", "job.sh", variables=variables))


# The wrapper.


def test_the_wrapper_submits_with_advice(slurm: SlurmCluster, service: dict[str, str]) -> None:
    done = slurm.try_run("./sbatch-shardwise", "--time=5", "job.sh", variables=service)
    number = number_of(done)
    succeeded(slurm, number)
    tres, comment = slurm.accounted(number, "ReqTRES", "Comment")
    assert "gres/gpu=" in tres and comment.startswith("shardwise: advised nodes=")
    given = (slurm.home / "job.sh").read_text()
    piped = number_of(slurm.try_run("./sbatch-shardwise", given=given, variables=service))
    assert slurm.job(piped)["TresPerNode"] == slurm.job(number)["TresPerNode"]
    slurm.run("./sbatch-shardwise", "--mem=1", ":", "--mem=1", "job.sh", variables=service)


def test_each_task_of_an_array_has_the_size_that_the_wrapper_advises(
    slurm: SlurmCluster, service: dict[str, str]
) -> None:
    array = ("./sbatch-shardwise", "--hold", "--array=0-1", "job.sh")
    number = number_of(slurm.try_run(*array, variables=service))
    alone = number_of(slurm.try_run("./sbatch-shardwise", "--hold", "job.sh", variables=service))
    sizes = [
        [slurm.job(job).get(name) for name in ("NumNodes", "TresPerNode")]
        for job in (f"{number}_0", f"{number}_1", alone)
    ]
    slurm.run("scancel", number, alone)
    assert sizes[0] == sizes[1] == sizes[2] and sizes[2][1] is not None


@pytest.mark.parametrize("fault", FAULTS)
def test_the_wrapper_never_keeps_a_job_from_being_submitted(
    slurm: SlurmCluster, fault: str
) -> None:
    with faulty_server(slurm.gateway, fault) as url:
        started = time.monotonic()
        variables = asking(url) | {"SHARDWISE_TIMEOUT": "3"}
        done = slurm.try_run("./sbatch-shardwise", "job.sh", variables=variables)
    as_asked(slurm, started + PATIENCE_S, done)
