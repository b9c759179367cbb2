"""What measuring decides before anything runs: ranks, shapes, budgets, verdicts, links, NVML."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.graph_builder import mlp
from shardwise.errors import BadInput, CaptureError
from shardwise.hardware import (
    CollectiveTable,
    Hardware,
    Level,
    hardware_document,
    hardware_from_document,
    load_hardware,
)
from shardwise.hardware.collectives import link_coefficients
from shardwise.hardware.host import Host
from shardwise.hardware.verdict import reached_bytes_per_s, verdict
from shardwise.measure import options as shares
from shardwise.measure import run
from shardwise.measure.budget import (
    FEWEST_REPEATS,
    MOST_REPEATS,
    WARM_UPS,
    effort,
    fits,
    next_call_s,
    share_s,
)
from shardwise.measure.busy import busy_gpus
from shardwise.measure.host import MeasuredHost, launched_s, measure_host, passes_of
from shardwise.measure.kinds.layout import Placed
from shardwise.measure.links import gpu_link, network_link
from shardwise.measure.options import MeasureOptions
from shardwise.measure.profile import assemble
from shardwise.measure.real_module import SizedSource
from shardwise.measure.shapes import group_shapes
from shardwise.measure.waiting import FEWEST_ITEMS, short_enough
from shardwise.measure.world import World, find_world

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[07-08],other3",
}


def test_ranks_of_torchrun_and_srun() -> None:
    for environment in (TORCHRUN, SRUN):
        world = find_world(environment)
        assert world is not None
        assert (world.rank, world.size, world.nodes, world.node) == (5, 8, 2, 1)
    slurm = find_world(SRUN)
    assert slurm is not None
    assert slurm.meeting.startswith("tcp://gpu07:")
    assert slurm.meeting == find_world(SRUN | {"SLURM_PROCID": "6", "SLURM_LOCALID": "2"}).meeting  # type: ignore[union-attr]
    assert find_world({}) is None
    # A batch script before srun: it is alone, whatever the job's size.
    assert find_world({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None


@pytest.mark.parametrize(
    ("environment", "field"),
    [
        (TORCHRUN | {"RANK": "x"}, "RANK"),
        (TORCHRUN | {"RANK": "9", "LOCAL_RANK": "1"}, "RANK"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE"),
        (TORCHRUN | {"LOCAL_RANK": "2"}, "LOCAL_RANK"),
        ({k: v for k, v in TORCHRUN.items() if k != "LOCAL_RANK"}, "LOCAL_RANK"),
        (SRUN | {"SLURM_STEP_NUM_NODES": "3"}, "SLURM_STEP_NUM_TASKS"),
    ],
)
def test_an_environment_that_does_not_fit_is_named(environment: dict, field: str) -> None:
    with pytest.raises(BadInput, match=field):
        find_world(environment)


@given(st.integers(1, 4), st.integers(1, 8))
def test_sibling_groups_are_all_ranks_once(nodes: int, per_node: int) -> None:
    sibling_groups = group_shapes(nodes * per_node, per_node)
    keys = [(s.shape.nodes, s.shape.ranks_per_node, s.shape.consecutive) for s in sibling_groups]
    assert len(keys) == len(set(keys))
    for siblings in sibling_groups:
        ranks = [rank for group in siblings.groups for rank in group]
        assert sorted(ranks) == list(range(nodes * per_node))
        for group in siblings.groups:
            on = {rank // per_node for rank in group}
            assert len(group) == siblings.shape.size > 1
            assert len(on) == siblings.shape.nodes
            consecutive = list(group) == list(range(group[0], group[0] + len(group)))
            assert consecutive == siblings.shape.consecutive


def test_shapes_of_two_nodes_of_four() -> None:
    by_label = {s.label: (s.groups, s.per_node) for s in group_shapes(8, 4)}
    assert by_label["1 node x 2, consecutive"] == (((0, 1), (2, 3), (4, 5), (6, 7)), 2)
    assert by_label["1 node x 2, strided"][0] == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert by_label["2 nodes x 1, strided"] == (((0, 4), (1, 5), (2, 6), (3, 7)), 4)
    assert by_label["2 nodes x 2, strided"][1] == 2
    assert by_label["2 nodes x 4, consecutive"] == ((tuple(range(8)),), 1)
    # Strides of 2 and of 4 are one key; the farther groups are measured.
    far = next(s for s in group_shapes(8, 8) if s.label == "1 node x 2, strided")
    assert far.groups[0] == (0, 4)


@pytest.mark.parametrize(
    ("racks", "rack", "per_node"), [(2, 2, 1), (2, 2, 2), (2, 3, 2), (3, 4, 2)]
)
def test_groups_inside_a_rack_and_between_racks_are_different_shapes(
    racks: int, rack: int, per_node: int
) -> None:
    found = group_shapes(racks * rack * per_node, per_node, rack)
    keys = [(s.shape.counts, s.shape.consecutive) for s in found]
    assert len(keys) == len(set(keys))
    assert {len(counts) for counts, _ in keys} >= {2, 3}
    for siblings in found:
        for group in siblings.groups:
            on = {rank // per_node // rack for rank in group}
            assert len(on) == (siblings.shape.counts[2:] or (1,))[0]


def test_levels_of_racks_are_found_from_what_was_measured() -> None:
    """Tables that links of known bandwidths would give, without latency, lead back to these."""
    levels = (
        Level("inside a node", 2, 1e9, 0.0, 1.0),
        Level("across a rack", 2, 8e6, 0.0, 1.0),
        Level("between racks", 2, 3e6, 0.0, 1.0, uplinks=True),
    )
    device = replace(load_hardware("pcie-v100-8").devices[0], count=2)
    known = Hardware("known", "", (device,), levels)
    sizes = (1024.0, 2.0**20)
    tables = [
        CollectiveTable(
            "all_reduce", s.shape.nodes, s.shape.ranks_per_node, s.shape.consecutive, sizes,
            tuple(size * link_coefficients(known, "all_reduce", s.shape) for size in sizes),
            siblings=s.per_node, ranks_by_level=s.shape.counts if len(s.shape.counts) > 2 else (),
        )
        for s in group_shapes(8, 2, 2)
    ]  # fmt: skip
    rank = SimpleNamespace(world=World(0, 8, 0, 2, ""), backend="gloo", torch=torch_of("2.8"))
    found = assemble(rank, "racks", device, {}, tables, None, None, None, [], {"host": "h"}, 2)  # type: ignore[arg-type]
    assert [(level.name, level.size, level.uplinks) for level in found.levels] == [
        (level.name, level.size, level.uplinks) for level in levels
    ]
    for level, true in zip(found.levels, levels, strict=True):
        assert level.bandwidth_bytes_per_s == pytest.approx(true.bandwidth_bytes_per_s)
    assert hardware_from_document(hardware_document(found)).levels == found.levels


def torch_of(version: str) -> SimpleNamespace:
    return SimpleNamespace(__version__=version, get_num_threads=lambda: 1)


@pytest.mark.parametrize(("rack", "nodes"), [(1, 4), (3, 4), (4, 4), (0, 4), (2, 1)])
def test_racks_that_nodes_do_not_fill_are_refused(rack: int, nodes: int) -> None:
    with pytest.raises(BadInput, match="nodes-per-rack"):
        MeasureOptions(nodes_per_rack=rack).check_racks(nodes)
    MeasureOptions(nodes_per_rack=2).check_racks(4)
    MeasureOptions().check_racks(1)


def test_less_is_exchanged_over_a_slow_network() -> None:
    assert short_enough(2**18, lambda items: 1e-9 * items) == 2**18
    assert short_enough(2**18, lambda items: 1e-6 * items) == 2**14
    assert short_enough(2**18, lambda items: 1.0) == FEWEST_ITEMS


@given(st.floats(0, 100), st.floats(1e-7, 50), st.floats(0, 1))
def test_a_size_takes_no_more_than_its_share(share: float, call_s: float, pause_s: float) -> None:
    chosen = effort(share, call_s, pause_s)
    assert FEWEST_REPEATS <= chosen.repeats <= MOST_REPEATS
    cost = chosen.repeats * (chosen.calls * call_s + pause_s)
    assert cost <= share * (1 + 1e-9) or chosen.repeats == FEWEST_REPEATS
    if fits(share, call_s, pause_s):
        assert (call_s + pause_s) * (WARM_UPS + FEWEST_REPEATS) <= share * (1 + 1e-9)


def test_calls_that_take_a_latency_alone_do_not_end_a_table() -> None:
    times = [0.06 + size / 2.5e6 for size in (2**10, 2**13, 2**16, 2**19)]
    for before_s, call_s, after_s in zip(times, times[1:], times[2:], strict=False):
        assert next_call_s(call_s, before_s, 8.0) == pytest.approx(after_s)
    assert next_call_s(0.06, 0.07, 8.0) == 0.06


def test_shares_add_up() -> None:
    left = 10.0
    for table in range(4):
        left -= share_s(left, 4 - table)
    assert left == pytest.approx(0)
    assert share_s(-1.0, 3) == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"operations": ("gossip",)}, "operations"),
        ({"time_limit_s": 0.0}, "time-limit"),
        ({"time_limit_s": float("nan")}, "time-limit"),
        ({"memory_bytes": 100.0}, "memory"),
        ({"max_bytes": 1.0}, "max-size"),
        ({"step": 1.0}, "step"),
        ({"min_bytes": 0}, "min-size"),
        ({"backend": "mpi"}, "backend"),
    ],
)
def test_options_out_of_range_are_named(change: dict, field: str) -> None:
    with pytest.raises(BadInput, match=field):
        MeasureOptions(**change)


def test_the_time_limit_is_split_whole() -> None:
    parts = (shares.DEVICE_SHARE, shares.HOST_SHARE, shares.OVERLAP_SHARE, shares.WAITING_SHARE)
    assert shares.COLLECTIVES_SHARE + sum(parts) == pytest.approx(1.0)


def test_passes_are_counted_as_they_are_priced() -> None:
    """Three operators forward; backward one product, one activation, two products."""
    assert passes_of(mlp()) == 3 + 4


def test_launches_are_timed_between_two_waits_for_the_device() -> None:
    said: list[str] = []
    assert launched_s(lambda: said.append("call"), lambda: said.append("wait"), 3) > 0
    assert said == ["wait", "call", "call", "call", "wait"]


def _rank(**more: object) -> SimpleNamespace:
    """A rank without torch that meets nobody."""
    return SimpleNamespace(
        world=World(0, 1, 0, 1, ""),
        backend="nccl",
        torch=torch_of("2.8"),
        worst=np.asarray,
        gather=lambda value: [value],
        **more,
    )


def test_stacks_are_left_out_for_want_of_time_or_of_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three stacks that take 10 s each, two fit into 25 s; one that cannot be built is none."""
    clock = [0.0]

    def operator_s(rank: object, stack: SizedSource) -> float | None:
        clock[0] += 10.0
        return None if stack.name == "absent" else float(stack.name) / 1e6

    monkeypatch.setattr("shardwise.measure.host._operator_s", operator_s)
    rank = _rank(left_s=lambda limit_s, began: limit_s - clock[0])

    def measured(limit_s: float, *names: str) -> MeasuredHost | None:
        clock[0] = 0.0
        stacks = [SizedSource(name, "zoo:mlp", 1) for name in names]
        return measure_host(rank, None, limit_s, stacks)  # type: ignore[arg-type]

    two = measured(25.0, "10", "30", "90")
    assert two is not None and two.stacks == ("10", "30")
    assert two.host.operator_s == pytest.approx(20e-6)
    assert two.host.collective_s == 60e-6 and "as in the built-in profiles" in two.source("today")
    all_three = measured(35.0, "10", "30", "90")
    assert all_three is not None and all_three.host.operator_s == pytest.approx(30e-6)
    first = measured(0.0, "10", "30")
    assert first is not None and first.stacks == ("10",)
    later = measured(25.0, "absent", "30")
    assert later is not None and later.stacks == ("30",)
    assert measured(25.0, "absent") is None


def test_a_stack_that_one_rank_cannot_build_is_left_out_on_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def captured(self: SizedSource, dtype: str = "") -> None:
        raise CaptureError("timm is not installed")

    monkeypatch.setattr(SizedSource, "captured", captured)
    agreed: list[list[float]] = []

    def worst(values: list[float]) -> list[float]:
        agreed.append(values)
        return values

    rank = SimpleNamespace(worst=worst, left_s=lambda limit_s, began: limit_s)
    assert measure_host(rank, None, 10.0) is None  # type: ignore[arg-type]
    assert agreed == [[1.0]] * 3, "the ranks agree about every stack"


@pytest.mark.parametrize("on_gpu", [True, False])
def test_the_host_is_in_the_profiles_of_gpus_alone(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool
) -> None:
    """A CPU's operators have the host's time in them."""
    rank = _rank(on_gpu=on_gpu)
    limits: list[tuple[object, float]] = []

    @contextmanager
    def joined(world: object, options: object, label: object) -> Iterator[object]:
        yield rank

    def host(rank: object, group: object, limit_s: float) -> MeasuredHost:
        limits.append((group, limit_s))
        return MeasuredHost(Host(31e-6, 47e-6), ("a", "b"), True)

    for name, stub in {
        "joined": joined,
        "measure_host": host,
        "measure_device": lambda *arguments: load_hardware("dgx-h100").devices[0],
        "placed_ranks": lambda rank: [Placed("one kind", 0)],
        "known_links": lambda *arguments: {"inside": None, "between": None},
    }.items():
        monkeypatch.setattr(run, name, stub)
    options = MeasureOptions(time_limit_s=50.0, memory_bytes=2**30)
    stages: list[str] = []
    profile = run.measure(rank.world, options, lambda stage, done: stages.append(stage))
    assert profile is not None
    assert limits == ([(None, 50.0 * shares.HOST_SHARE)] if on_gpu else [])
    assert profile.host == (Host(31e-6, 47e-6) if on_gpu else None)
    assert ("host" in profile.sources) == (": host, device (" in profile.provenance) == on_gpu
    assert ("the host" in stages) == on_gpu
    if on_gpu:
        assert "(a; b)" in profile.sources["host"]
        assert "all_reduce of 256 float32" in profile.sources["host"]


@pytest.mark.parametrize(("operation", "nodes", "siblings", "share"), [
    ("all_reduce", 2, 1, 1.5), ("all_reduce", 2, 2, 2.0), ("all_gather", 2, 2, 1.0),
])  # fmt: skip
def test_what_a_card_reached_counts_all_groups_on_it(
    operation: str, nodes: int, siblings: int, share: float
) -> None:
    """Two strided groups of two nodes share each node's card; ring factors by hand."""
    pair = Level("inside a node", 2, 1e12, 0.0, 1.0)
    hardware = replace(
        load_hardware("dgx-h100"), levels=(pair, Level("between nodes", 2, 1e12, 0.0, 1.0))
    )
    card, size, ranks = 12.5e6, 2.0**20, 2 // siblings
    times = (1e-3, size * share / card)
    table = CollectiveTable(
        operation, nodes, ranks, siblings == 1, (1024.0, size), times, siblings=siblings
    )
    assert reached_bytes_per_s(hardware, table, 1) == pytest.approx(card)


def _judged(share: float, operation: str = "all_gather", ranks: int = 8, base: str = "dgx-h100"):
    hardware = load_hardware(base)
    peak = hardware.levels[0].bandwidth_bytes_per_s
    size = 2.0**30
    factor = {"all_gather": (ranks - 1) / ranks, "all_reduce": 2 * (ranks - 1) / ranks}[operation]
    times = (1e-5, size * factor / (peak * share))
    return verdict(hardware, CollectiveTable(operation, 1, ranks, True, (1024.0, size), times))


def test_verdicts_of_published_bandwidths() -> None:
    """H100: 370 of 450 GB/s is usual, 475 with switches that add (verdict.py names the issues)."""
    assert _judged(370 / 450).status == "normal"
    assert _judged(370 / 450).bus_bytes_per_s == pytest.approx(370e9)
    assert _judged(0.6).status == "low"
    assert _judged(0.3).status == "suspicious"
    assert "30% of the nvlink peak" in _judged(0.3).reason
    assert _judged(475 / 450, "all_reduce").status == "normal"
    assert _judged(1.2).status == "suspicious"
    assert "more than a link carries" in _judged(1.2).reason
    assert _judged(0.4, base="pcie-v100-8").status == "normal"


def test_verdicts_count_siblings_that_share_a_card() -> None:
    hardware = load_hardware("dgx-v100-16gb")
    card = hardware.levels[1].bandwidth_bytes_per_s
    size = 2.0**30
    times = (1e-4, size / (card / 8))  # two ranks, one per node: busbw = algbw, eight at once
    pairs = CollectiveTable("all_reduce", 2, 1, False, (1024.0, size), times, siblings=8)
    judged = verdict(hardware, pairs)
    assert (judged.status, judged.share) == ("normal", pytest.approx(1.0))
    assert verdict(hardware, replace(pairs, siblings=1)).status == "suspicious"


def test_no_verdict_without_a_large_size_or_a_known_link() -> None:
    small = CollectiveTable("all_reduce", 1, 2, True, (1024.0, 2048.0), (1e-5, 1e-5))
    assert verdict(load_hardware("dgx-h100"), small).status == "unknown"
    nameless = replace(load_hardware("dgx-h100"), sources={})
    large = replace(small, sizes_bytes=(1024.0, 2.0**30))
    assert verdict(nameless, large).reason == "the profile does not say what its links are"


def test_loopback_is_held_against_a_copy() -> None:
    base = load_hardware("l4")
    level = Level("inside a node", 4, 8e9, 0.0, 1.0)
    hardware: Hardware = replace(
        base, levels=(level, base.levels[1]), measurement={"links": {"inside": "loopback"}}
    )
    table = CollectiveTable("broadcast", 1, 2, True, (1024.0, 2.0**20), (1e-4, 2.0**20 / 1e9))
    assert verdict(hardware, table).status == "normal"
    slow = replace(table, times_s=(1e-4, 2.0**20 / 4e7))
    assert verdict(hardware, slow).status == "suspicious"
    # Where the measurement found no peak, the base's description of its links does not count.
    across = replace(table, nodes=2, ranks_per_node=1, sizes_bytes=(1024.0, 2.0**30))
    assert verdict(hardware, across).status == "unknown"


class _NvmlError(Exception):
    pass


def _nvml(processes: dict[str, list[int]], **more: object) -> SimpleNamespace:
    names = list(processes)
    return SimpleNamespace(
        NVMLError=_NvmlError,
        NVML_NVLINK_MAX_LINKS=18,
        NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON=90,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(names),
        nvmlDeviceGetHandleByIndex=lambda i: names[i],
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid.decode(),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [
            SimpleNamespace(pid=pid) for pid in processes[handle]
        ],
        **more,
    )


def test_a_gpu_that_others_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    processes: dict[str, list[int]] = {"GPU-a": [], "GPU-b": [4321], "GPU-c": []}
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(processes))
    assert busy_gpus(1, {}) == ""
    assert busy_gpus(2, {}) == "GPU 1 is used by process 4321"
    assert busy_gpus(2, {"CUDA_VISIBLE_DEVICES": "2,0"}) == ""
    assert busy_gpus(1, {"CUDA_VISIBLE_DEVICES": "GPU-b"}) == "GPU 0 is used by process 4321"


def test_without_nvml_busy_gpus_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py" in busy_gpus(1, {})

    def fails() -> None:
        raise _NvmlError("no driver")

    broken = _nvml({})
    broken.nvmlInit = fails
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    assert busy_gpus(1, {}) == "NVML does not start: no driver"


def test_peaks_of_gpu_links() -> None:
    def state(handle: object, link: int) -> int:
        if link >= 18:
            raise _NvmlError("no such link")
        return 1

    speed = [SimpleNamespace(value=SimpleNamespace(uiVal=25000))]
    linked = _nvml(
        {}, nvmlDeviceGetNvLinkState=state, nvmlDeviceGetFieldValues=lambda handle, fields: speed
    )
    peak = gpu_link(linked, object())
    assert peak is not None
    assert (peak.kind, peak.peak_bytes_per_s) == ("nvlink", 450e9)

    def none(handle: object, link: int) -> int:
        raise _NvmlError("not supported")

    slot = _nvml(
        {},
        nvmlDeviceGetNvLinkState=none,
        nvmlDeviceGetMaxPcieLinkGeneration=lambda handle: 4,
        nvmlDeviceGetMaxPcieLinkWidth=lambda handle: 16,
    )
    peak = gpu_link(slot, object())
    assert peak is not None
    assert (peak.kind, peak.peak_bytes_per_s) == ("pcie", pytest.approx(31.5e9, rel=0.01))


def _card(folder: Path, files: dict[str, str], device: bool = True) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    if device:
        (folder / "device").mkdir()


def test_peaks_of_network_cards(tmp_path: Path) -> None:
    assert network_link(tmp_path) is None
    _card(tmp_path / "net" / "veth1", {"operstate": "up", "speed": "100000"}, device=False)
    assert network_link(tmp_path) is None
    _card(tmp_path / "net" / "eth0", {"operstate": "up", "speed": "25000"})
    _card(tmp_path / "net" / "eth1", {"operstate": "down", "speed": "100000"})
    peak = network_link(tmp_path)
    assert peak is not None
    assert (peak.kind, peak.peak_bytes_per_s) == ("network", 3.125e9)
    for number, state in enumerate(("4: ACTIVE", "4: ACTIVE", "1: DOWN")):
        port = tmp_path / "infiniband" / f"mlx5_{number}" / "ports" / "1"
        _card(port, {"rate": "400 Gb/sec (4X NDR)", "state": state}, device=False)
    peak = network_link(tmp_path)
    assert peak is not None
    assert peak.peak_bytes_per_s == 100e9
