"""`shardwise measure` for real: gloo between processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.commands import CODE, as_ranks, shardwise, succeed
from harness.tiers import some

pytest.importorskip("torch")

from harness.answers import frontier
from harness.graph_builder import mlp
from shardwise.hardware import OPERATIONS, Hardware, load_hardware
from shardwise.measure.host import STACKS, passes_of, repeats_s
from shardwise.measure.local import PARENT_VARIABLE
from shardwise.measure.operators.bench import threads_set
from shardwise.measure.real_module import SizedSource, real_module
from shardwise.measure.world import STORE_VARIABLE
from shardwise.torch_operators import load_torch

pytestmark = pytest.mark.torch

PATIENCE_S = 300.0
MEASURE = [sys.executable, "-m", "shardwise.measure"]
SMALL = ["--max-size", "16KiB", "--time-limit", "5"]


def _run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MEASURE, *arguments],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def _measured(tmp_path: Path, *arguments: str) -> Hardware:
    target = tmp_path / "profile.json"
    done = _run(*arguments, "-o", str(target))
    assert done.returncode == 0, done.stderr
    return load_hardware(str(target))


def _keys(hardware: Hardware) -> set[tuple[str, int, int, bool]]:
    return {
        (table.operation, table.nodes, table.ranks_per_node, table.consecutive)
        for table in hardware.collectives
    }


def test_two_ranks_give_a_profile_that_every_command_reads(tmp_path: Path) -> None:
    hardware = _measured(tmp_path, "--ranks", "2", *SMALL, "--name", "pair")
    assert hardware.name == "pair"
    assert _keys(hardware) == {(operation, 1, 2, True) for operation in OPERATIONS}
    for table in hardware.collectives:
        assert table.sizes_bytes[:2] == (1024, 2048)
        assert table.siblings == 1
        assert not table.derived
        for low, middle, high in zip(table.p10_s, table.times_s, table.p90_s, strict=True):
            assert 0 < low <= middle <= high
        assert all(repeats >= 3 for repeats in table.repeats)
    device = hardware.devices[0]
    assert device.kind.startswith("CPU ")
    assert device.count == 2
    # Any processor of the last decade; a unit that is off by 1000 is not in there.
    assert 1e8 < device.peak_flops_per_s["float32"] < 1e14
    assert 1e8 < device.memory_bandwidth_bytes_per_s < 1e13
    assert 1e-8 < device.kernel_latency_s < 1e-2
    assert hardware.overlap is not None
    assert hardware.overlap.computation_slowdown > 0.5
    assert hardware.waiting is not None
    assert len(hardware.waiting.compute_s) >= 1
    # Aimed at 1 ms and more; on a loaded machine work takes longer than it did when it was sized.
    assert 1e-4 < hardware.waiting.compute_s[0] < 0.1
    assert all(0 <= wait < 0.1 for wait in hardware.waiting.wait_s)
    assert hardware.measurement["backend"] == "gloo"
    assert hardware.measurement["links"] == {"inside": "loopback"}
    # A CPU's host is in the times of its operators.
    assert hardware.host is None and "host" not in hardware.sources
    document = frontier(mlp(), hardware, 2)
    assert document["points"]
    assert document["provenance"]["communication"] == "measured tables"
    assert hardware.provenance in document["provenance"]["profile"]
    shown = succeed("hardware", "show", str(tmp_path / "profile.json"))
    assert "reduce_scatter" in shown
    assert "busbw" in shown
    assert "waiting for the latest rank at a collective" in " ".join(shown.split())


@pytest.mark.full
def test_four_ranks_have_consecutive_and_strided_groups(tmp_path: Path) -> None:
    hardware = _measured(
        tmp_path, "--ranks", "4", *SMALL, "--collectives", "--operations", "all_reduce,all_gather"
    )
    shapes = {(1, 2, True), (1, 2, False), (1, 4, True)}
    assert _keys(hardware) == {(op, *s) for op in ("all_reduce", "all_gather") for s in shapes}
    assert {t.siblings for t in hardware.collectives if t.size == 2} == {2}
    assert hardware.overlap is None
    assert hardware.waiting is None


@pytest.mark.full
def test_time_and_memory_are_bounded_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    bounded = _measured(tmp_path, "--ranks", "2", "--memory", "96KiB", "--time-limit", "120")
    assert max(size for t in bounded.collectives for size in t.sizes_bytes) == 2**15
    assert bounded.measurement["left_out"] == []
    hurried = _measured(tmp_path, "--ranks", "2", "--collectives", "--time-limit", "5")
    # The fewest repeats of two sizes are timed in any case, and this machine may be busy.
    assert hurried.measurement["seconds"] < 3 * 5
    ended = [t for t in hurried.collectives if t.sizes_bytes[-1] < 2**24]
    left_out = hurried.measurement["left_out"]
    assert left_out
    for table in ended:
        assert any(line.startswith(table.operation) for line in left_out), table.operation


@pytest.mark.full
def test_two_nodes_under_torchrun_as_an_agent_starts_it(tmp_path: Path) -> None:
    """Two launchers are two nodes; the profile goes to the run's own folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "report").mkdir()
    launchers = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={n}"),
                *("--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}"),
                *("-m", "shardwise.measure", *SMALL, "--collectives"),
                *("--operations", "all_reduce,broadcast"),
            ],
            env={**os.environ, "SHARDWISE_RUN_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for n in range(2)
    ]
    said = [launcher.communicate(timeout=PATIENCE_S)[0] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    hardware = load_hardware(str(tmp_path / "report" / "profile.json"))
    shapes = {(2, 1, False), (1, 2, True), (2, 2, True)}
    assert _keys(hardware) == {(op, *s) for op in ("all_reduce", "broadcast") for s in shapes}
    assert hardware.max_nodes == 2
    across = hardware.tables[("all_reduce", (1, 2), False)]
    assert across.siblings == 2
    assert hardware.levels[1].latency_s > 0


def _ranks_of(starter: int) -> list[int]:
    """Returns the processes that this starter started, whatever their parent is now."""
    mark = f"{PARENT_VARIABLE}={starter}\0".encode()
    pids = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if mark in (process / "environ").read_bytes():
                    pids.append(int(process.name))
            except OSError:
                continue
    return pids


def _wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc")
@pytest.mark.parametrize(
    "way",
    some(["SIGINT", "SIGTERM", "SIGKILL", "a rank"], lambda way: way in ("SIGINT", "SIGKILL")),
)
def test_an_end_in_the_middle_leaves_no_file_and_no_process(tmp_path: Path, way: str) -> None:
    target = tmp_path / "profile.json"
    running = subprocess.Popen(
        [*MEASURE, "--ranks", "2", "--time-limit", "60", "-o", str(target)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Rank 0 has said something: torch is loaded, and the ranks have met.
    _wait_for(lambda: any(p.stat().st_size for p in tmp_path.glob("*/out-0")), "ranks that speak")
    ranks = _ranks_of(running.pid)
    assert len(ranks) == 2
    if way == "a rank":
        os.kill(ranks[1], signal.SIGKILL)
    else:
        running.send_signal(signal.Signals[way])
    said = running.communicate(timeout=PATIENCE_S)[1]
    _wait_for(lambda: not _ranks_of(running.pid), "ranks that end with their starter")
    assert not target.exists()
    assert not list(tmp_path.glob(".profile*"))
    assert "Traceback" not in said
    if way == "a rank":
        assert running.returncode == 1
        assert "signal SIGKILL" in said or "lost another rank" in said
    elif way != "SIGKILL":
        assert running.returncode == 130
        assert said.splitlines()[-1] == "shardwise: error: interrupted"
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "2", "--operations", "gossip"], "operations: unknown operation 'gossip'"),
        (["--ranks", "2", "--memory", "1KiB"], "memory: got 1024 bytes"),
        (["--ranks", "2", "-o", "/nonexistent/profile.json"], "no such folder"),
        (["--ranks", "1", "--backend", "nccl"], "0 GPUs for 1 ranks on a node"),
        ([], "ranks: no GPU here"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments: list[str], message: str) -> None:
    done = shardwise("measure", *arguments, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2, done.stderr
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


TWO_RANKS = """
import sys
from shardwise.measure.exchange import prepare, real_size
from shardwise.measure.options import MeasureOptions
from shardwise.measure.rank import joined
from shardwise.measure.world import find_world
world = find_world()
with joined(world, MeasureOptions(backend="gloo")) as rank:
    # The slowest of each: a rank that is fast in one repeat is slow in another.
    assert rank.worst([float(world.rank), 1.0 - world.rank, 5.0]).tolist() == [1.0, 1.0, 5.0]
    assert rank.gather(f"rank {world.rank}") == ["rank 0", "rank 1"]
    rank.barrier()
    assert rank.time(lambda: None, 10) < 1.0
    # What is called, and with how many elements of which tensors: sizes as in nccl-tests.
    distributed, called = rank.torch.distributed, []
    def spy(name):
        real = getattr(distributed, name)
        def call(*tensors, **keywords):
            called.append((name, *(t.numel() for t in tensors if hasattr(t, "numel"))))
            return real(*tensors, **keywords)
        setattr(distributed, name, call)
    names = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
    for name in (*names, "broadcast"):
        spy(name)
    batch = distributed.batch_isend_irecv
    def watched(operations):
        called.extend((one.op.__name__, one.tensor.numel()) for one in operations)
        return batch(operations)
    distributed.batch_isend_irecv = watched
    group = distributed.new_group([0, 1])
    for operation, expected in {
        "all_reduce": [("all_reduce", 64)],
        "all_gather": [("all_gather_into_tensor", 64, 32)],
        # As torch's gloo does it, without a copy (measure/scatter.py).
        "reduce_scatter": [("all_reduce", 64)],
        "all_to_all": [("all_to_all_single", 64, 64)],
        "broadcast": [("broadcast", 64)],
        "send_receive": [("irecv", 64), ("isend", 64)],
    }.items():
        called.clear()
        prepare(rank, operation, real_size(operation, 256, 2), group, (0, 1), 1e6)()
        assert sorted(called) == expected, (operation, called)
    assert real_size("all_gather", 1000, 3) == 996
    assert real_size("all_to_all", 4, 8) == 32
    assert real_size("all_reduce", 1001, 3) == 1000
"""


def _run_by_two(program: str, place: Path) -> None:
    """Runs a program as two ranks that meet in this folder."""
    ranks = as_ranks(2, CODE, program, cwd=place, env={STORE_VARIABLE: str(place / "store")})
    assert [rank.returncode for rank in ranks] == [0, 0], [rank.stderr for rank in ranks]


def test_ranks_agree_on_the_slowest_and_call_what_is_asked(tmp_path: Path) -> None:
    _run_by_two(TWO_RANKS, tmp_path)


@pytest.mark.full
def test_one_rank_measures_its_device_alone(tmp_path: Path) -> None:
    hardware = _measured(tmp_path, "--ranks", "1", "--time-limit", "10")
    assert not hardware.collectives
    assert hardware.overlap is None
    assert json.loads((tmp_path / "profile.json").read_text())["measurement"]["ranks"] == 1
    assert frontier(mlp(), hardware, 1)["points"]


HOST_OF_TWO = """
from shardwise.measure.host import STACKS, measure_host
from shardwise.measure.options import MeasureOptions
from shardwise.measure.rank import joined
from shardwise.measure.world import find_world
with joined(find_world(), MeasureOptions(backend="gloo")) as rank:
    everyone = rank.torch.distributed.new_group([0, 1])
    measured = measure_host(rank, everyone, 0.0)
    # Any processor, loaded or not; a unit that is off by 1000 is not in there.
    assert 1e-6 < measured.host.operator_s < 1e-2, measured
    assert 1e-7 < measured.host.collective_s < 1e-2, measured
    assert measured.stacks == (STACKS[0].name,), "there is time for the first alone"
    assert rank.gather(measured) == [measured, measured]
"""


def test_the_time_of_the_host_is_the_same_on_all_ranks(tmp_path: Path) -> None:
    _run_by_two(HOST_OF_TWO, tmp_path)


def test_more_operators_take_the_host_longer() -> None:
    """Four times as many layers: four times as many passes, and more than twice the time."""
    least_s, passes = [], []
    for layers in (8, 32):
        sized = SizedSource("", f"zoo:mlp:layers={layers},inputs=16,hidden=16", 2)
        graph = sized.captured()
        module = real_module(sized, graph, "cpu")
        module.gradients()
        assert all(p.grad is not None for p in module.module.parameters())
        # As a rank has it: threads that wait for cores of a busy machine take longer than layers.
        with threads_set(load_torch(), 1):
            least_s.append(min(repeats_s(module.gradients, lambda: None)))
        passes.append(passes_of(graph))
    assert passes == [5 * layers - 1 for layers in (8, 32)]
    assert least_s[1] > 2 * least_s[0] > 0


@pytest.mark.full
@pytest.mark.parametrize("sized", STACKS, ids=lambda sized: sized.name)
def test_every_stack_runs_and_takes_microseconds_a_pass(sized: SizedSource) -> None:
    graph = sized.captured()
    module = real_module(sized, graph, "cpu")
    module.gradients()
    with threads_set(load_torch(), 1):
        least_s = min(repeats_s(module.gradients, lambda: None))
    assert 1e-6 < least_s / passes_of(graph) < 1e-2


ALONE = """
from shardwise.measure import rank
from shardwise.measure.options import MeasureOptions
from shardwise.measure.world import World
rank.JOIN_S = 1.0
try:
    with rank.joined(World(0, 2, 0, 2, "file://{store}"), MeasureOptions(time_limit_s=9000.0)):
        raise SystemExit("joined no other rank")
except rank.PeersLost as error:
    assert "rank 0 found no others" in str(error), error
"""


def test_how_long_a_rank_waits_for_others_to_start_is_not_the_time_limit(tmp_path: Path) -> None:
    done = shardwise(CODE, ALONE.format(store=tmp_path / "store"))
    assert done.returncode == 0, done.stderr


SUSPENDED = """
import time
from shardwise.measure import device, rank
from shardwise.measure.options import MeasureOptions
from shardwise.measure.world import find_world
world = find_world()
rank.SLACK_S = 30.0
latency = device._latency
def without_a_turn(*arguments):
    found = latency(*arguments)
    if world.rank:
        time.sleep(4.0)
    return found
device._latency = without_a_turn
with rank.joined(world, MeasureOptions(backend="gloo", time_limit_s=0.1)) as one:
    device.measure_device(one, 2.0**20, 3.0)
"""


@pytest.mark.full
def test_a_rank_that_had_no_turn_decides_as_the_others_do(tmp_path: Path) -> None:
    """By its own clock no time is left: it would measure no larger product, the others would."""
    _run_by_two(SUSPENDED, tmp_path)
