"""Profiles of `shardwise hardware new`: figures, links, near matches, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from shardwise.cli.lists import hardware as hardware_command
from shardwise.cli.plan import plan
from shardwise.errors import BadInput
from shardwise.hardware import (
    Gpu,
    Hardware,
    Mesh,
    find_gpu,
    gpu_table,
    hardware_document,
    hardware_from_document,
    list_builtin,
    load_hardware,
    new_profile,
    ways_inside,
)
from shardwise.hardware.link_options import parse_network
from shardwise.hardware.machines import machines
from shardwise.hardware.profiles import SHORT_NAMES
from shardwise.near import near, plain

ASKED_FOR = (
    "RTX 3090", "RTX 4090", "RTX 5090", "A6000", "A40", "A800", "H800", "GH200", "MI250X",
    "MI355X", "L20", "A10", "A10G", "A100", "A100-40GB", "A100-PCIe", "H20", "H100", "H100-PCIe",
    "H100-NVL", "H200", "B200", "GB200", "B300", "L4", "L40S", "RTX 6000 Pro", "T4", "MI300X",
    "MI325X", "TPU v5p", "TPU v6e", "Gaudi 3", "Trainium 2",
)  # fmt: skip
NAMES = [gpu.name for gpu in gpu_table()]
BUILT_IN = [gpu for gpu in gpu_table() if gpu.device]
PLAIN = [name for name in NAMES if len(new_profile(name).levels) == 2]
OWN = [gpu for gpu in gpu_table() if not gpu.device]


def part(spec: str) -> Hardware:
    name, _, group = spec.partition("/")
    whole = load_hardware(name)
    return whole.of_group(group) if group else whole


def by_name(gpu: Gpu) -> str:
    return gpu.name


@pytest.mark.parametrize("name", ASKED_FOR)
def test_a_gpu_is_found_by_the_name_that_people_use(name: str) -> None:
    assert find_gpu(name).name in NAMES


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"), ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"), ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"), ("Tesla T4", "T4"), ("NVIDIA A10G", "A10G"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"), ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"), ("nvidia b200", "B200"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"), ("NVIDIA RTX A6000", "RTX-A6000"),
    ],
)  # fmt: skip
def test_a_gpu_is_found_by_what_its_driver_says(driver: str, name: str) -> None:
    assert find_gpu(driver).name == name


@pytest.mark.parametrize("name", NAMES)
def test_every_gpu_makes_a_profile_that_loads(name: str, tmp_path: Path) -> None:
    profile = new_profile(name)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(hardware_document(profile)))
    loaded = load_hardware(str(path))
    assert loaded.id == profile.id
    assert Mesh.build(loaded, loaded.per_node * 2).gpus == loaded.per_node * 2
    device = loaded.devices[0]
    assert device.peak("bfloat16") >= device.peak("float32")
    assert 1e9 < device.memory_bytes < 1e12
    assert "nothing here was measured by Shardwise" in loaded.provenance
    words = ("peak_flops_per_s", "memory", "inside", "between")
    for word in words:
        said = [source for figure, source in loaded.sources.items() if figure.endswith(f".{word}")]
        assert said and len(said[0]) > 10, word


def test_names_are_unique_and_rows_say_where_figures_come_from() -> None:
    plains = [{plain(name) for name in gpu.names} for gpu in gpu_table()]
    assert len(set().union(*plains)) == sum(len(names) for names in plains)
    for gpu in gpu_table():
        assert (gpu.device is None) != (gpu.like is None)
        assert len(gpu.source) > 10
        assert len(gpu.date) == len("2024-01") and gpu.date[4] == "-"
        if gpu.like:
            assert {"peak", "memory"} <= set(gpu.sources)
            assert {"float32", "bfloat16"} <= set(gpu.peak_flops_per_s)


@pytest.mark.parametrize("gpu", gpu_table(), ids=by_name)
def test_the_device_is_the_one_that_the_name_says(gpu: Gpu) -> None:
    kind = new_profile(gpu.name).devices[0].kind
    family, *details = gpu.name.split("-")
    assert kind.split("-")[0] == family
    assert all(detail in kind for detail in details if detail != "WS")


@pytest.mark.parametrize("gpu", BUILT_IN, ids=by_name)
def test_a_device_of_a_built_in_profile_is_that_device(gpu: Gpu) -> None:
    built_in = part(gpu.device or "")
    made = new_profile(gpu.name, per_node=built_in.per_node)
    assert made.devices == built_in.devices
    assert made.host == built_in.host


@pytest.mark.parametrize(
    "gpu", [g for g in BUILT_IN if not g.links and "/" not in (g.device or "")], ids=by_name
)
def test_the_usual_node_is_the_built_in_one(gpu: Gpu) -> None:
    built_in = part(gpu.device or "")
    made = new_profile(gpu.name)
    sources = {f: s for f, s in made.sources.items() if f in built_in.sources}
    assert sources == built_in.sources
    same = replace(
        made, name=built_in.name, provenance=built_in.provenance, sources=built_in.sources
    )
    assert same.id == built_in.id


@pytest.mark.parametrize("gpu", OWN, ids=by_name)
def test_no_figure_of_a_row_is_one_of_a_built_in_device(gpu: Gpu) -> None:
    files = set(list_builtin()) - set(machines())
    kinds = {d.kind for name in files for d in load_hardware(name).devices}
    assert gpu.kind not in kinds


@pytest.mark.parametrize("gpu", OWN, ids=by_name)
def test_what_is_assumed_is_said_to_be(gpu: Gpu) -> None:
    made, like = new_profile(gpu.name), part(gpu.like or "")
    device = made.devices[0]
    best = gpu.best_products_flops_per_s
    if best is None:
        assert device.compute_efficiency == like.devices[0].compute_efficiency
    else:
        # Training is as far from the best products as on H100.
        h100 = load_hardware("dgx-h100").devices[0]
        share = h100.compute_efficiency * h100.peak("bfloat16") / 794.5e12
        reached = device.compute_efficiency * device.peak("bfloat16") / best
        assert reached == pytest.approx(share, abs=2e-3)
        assert f"{best / 1e12:,g} TFLOPS" in made.sources["compute_efficiency"]
    assert not device.has_kernels and not made.collectives and device.sustained_clock == 1.0
    for figure in ("compute_efficiency", "memory_efficiency", "kernel_latency_s"):
        if (figure, best) == ("compute_efficiency", None):
            assert made.sources[figure] == f"as in {gpu.like}: {like.sources[figure]}"
        elif figure != "compute_efficiency":
            assert made.sources[figure].startswith(f"as in {gpu.like}: assumed")


def test_a_smaller_node_has_the_links_of_its_devices() -> None:
    half = new_profile("H100", per_node=4)
    whole = load_hardware("dgx-h100")
    assert half.levels[0].bandwidth_bytes_per_s == whole.levels[0].bandwidth_bytes_per_s
    assert half.levels[1].bandwidth_bytes_per_s == whole.levels[1].bandwidth_bytes_per_s / 2
    assert {t.ranks_per_node for t in half.collectives} == {2, 4}
    assert half.sources["collectives"].endswith("; on nodes of 8")


def test_devices_linked_pair_by_pair_have_fewer_links_in_a_smaller_node() -> None:
    assert new_profile("MI300X", per_node=4).levels[0].bandwidth_bytes_per_s == 3 * 64e9
    assert new_profile("Gaudi-3", per_node=2).levels[0].bandwidth_bytes_per_s == 75e9
    with pytest.raises(BadInput, match=r"per-node: got 16 .*pair by pair"):
        new_profile("MI325X", per_node=16)


def test_a_rack_has_as_many_devices_whatever_is_in_a_tray() -> None:
    trays = new_profile("GB300", per_node=2, nodes=40)
    assert [level.size for level in trays.levels] == [2, 36, 2]
    assert trays.levels[1].bandwidth_bytes_per_s == 2 * 900e9
    assert trays.levels[2].bandwidth_bytes_per_s == 72 * 100e9
    assert trays.max_nodes == 40
    with pytest.raises(BadInput, match=r"per-node: got 5 .*divides 72"):
        new_profile("GB200", per_node=5)


def test_nodes_are_as_many_as_given() -> None:
    four = new_profile("B200", nodes=4)
    assert (four.max_nodes, four.levels[1].size) == (4, 4)
    assert hardware_document(four)["nodes"] == 4
    assert new_profile("B200").max_nodes == 128


def test_links_as_given() -> None:
    pcie = new_profile("H100", inside="pcie", network="2x100Gb/s")
    assert pcie.levels[0].bandwidth_bytes_per_s == 64e9
    assert pcie.levels[0].efficiency == load_hardware("l4").levels[0].efficiency
    assert pcie.levels[1].bandwidth_bytes_per_s == 25e9
    assert not pcie.collectives and "collectives" not in pcie.sources
    assert pcie.devices[0].has_kernels
    assert pcie.sources["levels.between"] == "given: --network 2x100Gb/s"
    assert "links as given by --inside and --network" in pcie.provenance
    assert "collectives" not in pcie.provenance
    bridged = new_profile("H100-PCIe", per_node=2, inside="nvlink")
    assert bridged.levels[0].bandwidth_bytes_per_s == 300e9
    given = new_profile("GB200", inside="100GB/s", network="400Gb/s-per-gpu")
    assert [v.bandwidth_bytes_per_s for v in given.levels] == [100e9, 400e9, 72 * 50e9]


@pytest.mark.parametrize("gpu", gpu_table(), ids=by_name)
def test_every_fabric_that_is_listed_can_be_asked_for(gpu: Gpu) -> None:
    usual = new_profile(gpu.name, per_node=2)
    assert new_profile(gpu.name, per_node=2, inside=gpu.fabric).levels == usual.levels
    for way in ways_inside(gpu)[1:]:
        assert new_profile(gpu.name, per_node=2, inside=way.upper()).levels != usual.levels


@given(st.sampled_from(PLAIN), st.integers(1, 8), st.integers(1, 64), st.integers(1, 3200))
def test_a_profile_of_any_size_loads(name: str, per_node: int, nodes: int, gbit: int) -> None:
    rate = f"{gbit}Gb/s-per-node"
    profile = new_profile(name, per_node=per_node, nodes=nodes, network=rate)
    assert hardware_from_document(hardware_document(profile)).id == profile.id
    assert profile.max_nodes * profile.per_node == nodes * per_node
    assert profile.levels[1].bandwidth_bytes_per_s == pytest.approx(gbit * 1e9 / 8)


@pytest.mark.parametrize(
    ("text", "per_s"),
    [
        ("400Gb/s-per-gpu", 8 * 50e9), ("400Gbps-per-GPU", 8 * 50e9), ("50GB/s per gpu", 8 * 50e9),
        ("3200Gbit/s-per-node", 400e9), ("8x400Gb/s", 400e9), ("4 x 12.5GB/s", 50e9),
    ],
)  # fmt: skip
def test_networks(text: str, per_s: float) -> None:
    assert parse_network(text).of_node(8) == per_s


@pytest.mark.parametrize(
    "text", ["", "400Gb/s", "400-per-gpu", "8x", "x400Gb/s", "0x400Gb/s", "0Gb/s-per-gpu",
             "400gb/s-per-rack", "8x400Gb/s-per-gpu", "-1Gb/s-per-node", "infGb/s-per-gpu",
             "9" * 999],
)  # fmt: skip
def test_a_network_that_does_not_say_whose_rate_it_is_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_network(text)
    assert refused.value.field == "network"
    assert "400Gb/s-per-gpu" in (refused.value.expected or "")
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"per_node": 0}, "per-node"), ({"per_node": 257}, "per-node"), ({"nodes": 0}, "nodes"),
        ({"nodes": 10**9}, "nodes"), ({"inside": "infinity-fabric"}, "inside"),
        ({"inside": "5"}, "inside"), ({"inside": ""}, "inside"), ({"network": "1"}, "network"),
        ({"name": "dgx-h100"}, "name"), ({"name": ""}, "name"), ({"name": "a*2"}, "name"),
        ({"name": "x" * 101}, "name"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        new_profile("A100", **options)
    assert refused.value.field == field
    assert refused.value.expected


@pytest.mark.parametrize(
    ("name", "meant"),
    [("b20", ["B200", "B300"]), ("h1000", ["H100"]), ("MI300", ["MI300X"]), ("l40", ["L40S"]),
     ("gaudi", ["Gaudi-3"]), ("tpu", ["TPU-v5p", "TPU-v6e"]), ("a100-sxm5", ["A100-80GB"])],
)  # fmt: skip
def test_an_unknown_gpu_gives_near_ones(name: str, meant: list[str]) -> None:
    with pytest.raises(BadInput, match="did you mean") as refused:
        find_gpu(name)
    listed = refused.value.problem.partition("did you mean ")[2].rstrip("?").split(", ")
    assert set(meant) <= set(listed) and len(listed) <= 5
    assert "hardware new --list" in (refused.value.expected or "")


@pytest.mark.parametrize("name", ["", "zzz", "*", "\u212a" * 9, "q" * 100_000])
def test_a_name_that_is_near_nothing(name: str) -> None:
    with pytest.raises(BadInput) as refused:
        find_gpu(name)
    assert "did you mean" not in str(refused.value) and len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("spec", "meant", "command"),
    [("8xh100", "dgx-h100", "H100"), ("a100-80gb", "dgx-a100-80gb", "A100-80GB"),
     ("h20", "", "H20"), ("B200-4", "b200-8", "B200"), ("dgx-h10", "dgx-h100", ""),
     ("mi325x-16", "mi325x-8", "MI325X"), ("h100-nvl*2", "", "H100-NVL")],
)  # fmt: skip
def test_an_unknown_profile_gives_near_ones_and_the_command(
    spec: str, meant: str, command: str
) -> None:
    with pytest.raises(BadInput, match="unknown hardware") as refused:
        load_hardware(spec)
    assert meant in refused.value.problem
    expected = refused.value.expected or ""
    assert f"hardware new --gpu {command}'" in expected if command else "new" not in expected


def test_a_gpus_name_alone_is_its_node_of_eight() -> None:
    for short, name in SHORT_NAMES.items():
        assert load_hardware(short) is load_hardware(name)
        assert load_hardware(short.upper()).per_node == 8
        assert load_hardware(f"{short}*2").id == load_hardware(f"{name}*2").id


def test_an_unknown_profile_that_is_near_nothing_lists_all() -> None:
    with pytest.raises(BadInput) as refused:
        load_hardware("zzz")
    assert all(name in (refused.value.expected or "") for name in list_builtin())


def test_near_names_contain_the_word_first() -> None:
    assert near("h100", ["h200-8", "dgx-h100", "h100-superpod"])[:2] == [
        "dgx-h100",
        "h100-superpod",
    ]
    assert near("", ["a"]) == [] and near("zz", ["a"]) == []
    assert near("bert", ["bert-large"]) and not near("bert", ["bert-large"], least=0.7, parts=False)


@pytest.mark.parametrize("name", ["T4", "H20", "B300", "Gaudi-3", "TPU-v6e"])
def test_a_plan_on_a_new_profile(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    made = CliRunner().invoke(
        hardware_command,
        ["new", "--gpu", name, "--per-node", "2", "-o", str(path), "--json"],
        catch_exceptions=False,
    )
    assert json.loads(made.stdout) == json.loads(path.read_text())
    done = CliRunner().invoke(
        plan,
        ["shipped:gpt2", "--hardware", str(path), "--gpus", "2", "--quiet", "--json"],
        catch_exceptions=False,
    )
    document = json.loads(done.stdout)
    assert document["hardware"] == f"2x{name.lower()}"
    assert document["gpus"] == 2
    assert document["predicted"]["replayed_time_s"] > 0


def test_the_list_names_every_gpu_with_its_source() -> None:
    listed = CliRunner().invoke(hardware_command, ["new", "--list", "--json"])
    rows = json.loads(listed.stdout)["gpus"]
    assert [row["name"] for row in rows] == NAMES
    assert all(row["source"] and row["date"] for row in rows)
    shown = CliRunner().invoke(hardware_command, ["new", "--list"], env={"COLUMNS": "80"}).output
    assert all(f"\n{name} " in shown for name in NAMES)


def test_without_a_gpu_the_command_says_what_it_takes() -> None:
    with pytest.raises(BadInput, match=r"gpu: missing .*--list"):
        CliRunner().invoke(hardware_command, ["new"], catch_exceptions=False)
