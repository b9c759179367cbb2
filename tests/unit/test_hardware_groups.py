"""Groups of devices of several kinds: files, one group alone, what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from shardwise.cli.lists import hardware as hardware_commands
from shardwise.errors import BadInput
from shardwise.hardware import (
    OPERATIONS,
    Blocks,
    CollectiveTable,
    DeviceGroup,
    Devices,
    GroupLink,
    GroupPath,
    Hardware,
    JointLinks,
    Level,
    Mesh,
    RingLinks,
    collective_times,
    hardware_document,
    hardware_from_document,
    load_hardware,
)
from shardwise.hardware.imports import import_measurements
from shardwise.hardware.kinds import same_kind
from shardwise.hardware.verdict import verdict

IDS = {
    "b200-8": "9818944f7923a8d5be18037f8415ebecd0b69bf47b9601765300cc42056ade7e",
    "dgx-a100-40gb": "8494e3531a4bf5583d7c6fed4119d09aa4837d9eb1ca93dfb63b38912d0c80f7",
    "dgx-a100-80gb": "0d0b971c4a439745db4033e79917fd0c68a19b46fa3fe3257584ecd346e45d67",
    "dgx-h100": "ce485be9a6fd29150f97fb3a8ff22347486ce1ae209b96e40e97fe483255b4b7",
    "dgx-v100-16gb": "ef1aa92dbd8275177de214f2e48a92daf137c349535c4e34e97d3152fc952e31",
    "dgx1-v100-32gb": "75a7cd29eeaf275fdfc4cffbcf58f6c496cc118efa805a193440b13f483df003",
    "dgx2-v100-32gb": "5dc141d4201e4ff437e2040274b8e7737ed2825c98d47ff79966a50a1d7c44f5",
    "gb200-nvl72": "011eaf0c5a8350ffe7dbe780f52af7043b0e9adf70abab6b1c795c78052b4ecd",
    "grand-teton-h100-96gb": "864920b97072b11b3f53e6556de9373eef3283b32b3a7448135fa1632b80f440",
    "h100-superpod": "9472307b5088328bcfe44615cceac809d2c6a214138b1075d1af0b90f80f1ee2",
    "h200-8": "1043a59dae9f0655278e9b08fe78c723c9bd85553a084bd64ef4e0c03c55887f",
    "l4": "a35d102be148c8bfc697c59621ffb9646a8140caba6b4524742c407eaf8b663c",
    "mi300x-8": "ca7a4a95affa853d7b26c14ed0dd03febf181837cea7b4b4a518f0feaa359cd6",
    "p2.8xlarge": "1b874a32ecf19f7e19eb429a76c63b465be229d4812395c7c007e8fab6d7f517",
    "pcie-v100-8": "46891401bebcbc7f80a6c9faff7b9f5f9e394cffc2b88cddd7090246ea43d821",
    "tpu-v5p": "823693badeb922e40682a71a8ab15e9d60b9e066776be49460bf5f1651bb3378",
}
"""Content ids of the profiles without groups, as they were before there were any."""

MIXED = ("heterog-8", "heterog-12", "h100-8+a100-8", "l40s-4+a100-4")
SIZES = np.array([1.0, 3e4, 1e7, 1e9])


def table(operation: str, nodes: int, ranks: int, *groups: str) -> CollectiveTable:
    return CollectiveTable(operation, nodes, ranks, True, (1e3, 1e6), (1e-5, 1e-3), groups=groups)


def full() -> Hardware:
    """All that a profile with groups can say."""
    base = load_hardware("heterog-12")
    return replace(
        base,
        groups=(
            replace(base.groups[0], inside=GroupLink(1e11, 0.0, 1.0)),
            *base.groups[1:],
            DeviceGroup("old_v100.b-1", "V100-PCIe-16GB", 3, 1),
        ),
        paths=(GroupPath("v100", "p100", 5e8, 1e-4), GroupPath("p100", "old_v100.b-1", 1e8, 0.0)),
        collectives=(
            table("all_reduce", 1, 2, "v100"),
            table("all_reduce", 2, 2, "p100", "p100"),
            table("all_reduce", 2, 2, "1080ti", "p100"),
        ),
        packing=True,
    )


def document_of(hardware: Hardware) -> dict[str, Any]:
    """Returns the document as a file has it."""
    written: dict[str, Any] = json.loads(json.dumps(hardware_document(hardware)))
    return written


@pytest.mark.parametrize("name", IDS)
def test_profiles_without_groups_are_as_they_were(name: str) -> None:
    hardware = load_hardware(name)
    document = hardware_document(hardware)
    assert hardware.id == f"sha256:{IDS[name]}"
    assert not {"groups", "paths"} & set(document)
    assert all("count" in device for device in document["devices"])
    assert not any("groups" in one for one in document["collectives"])


@pytest.mark.parametrize("hardware", [full(), *map(load_hardware, MIXED)], ids=lambda h: h.name)
def test_a_document_round_trips(hardware: Hardware) -> None:
    written = document_of(hardware)
    again = hardware_from_document(written)
    assert (again, again.id) == (hardware, hardware.id)
    assert not any("count" in device for device in written["devices"])


def test_members_are_called_as_in_the_design() -> None:
    document = document_of(full())
    assert document["groups"][1] == {
        "name": "1080ti", "kind": "GTX1080Ti-11GB", "nodes": 2, "per_node": 2
    }  # fmt: skip
    assert document["groups"][0]["inside"] == {
        "bandwidth_bytes_per_s": 1e11, "latency_s": 0.0, "efficiency": 1.0
    }  # fmt: skip
    assert document["paths"][0] == {
        "from": "v100", "to": "p100", "bandwidth_bytes_per_s": 5e8, "latency_s": 1e-4
    }  # fmt: skip
    assert document["collectives"][2]["groups"] == ["1080ti", "p100"]


def test_what_does_not_count_with_groups_is_not_read() -> None:
    document = document_of(full())
    document["devices"][0]["count"] = 7
    document["collectives"][2]["groups"].reverse()
    assert hardware_from_document(document).id == full().id
    del document["groups"]
    with pytest.raises(BadInput, match=r"devices\[1\].count: missing"):
        hardware_from_document(document)


Change = Callable[[dict[str, Any]], Any]


def members(*path: str | int, **changed: Any) -> Change:
    """Returns a change of members of what lies at this path of a document."""

    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for step in path:
            at = at[step]
        at.update(changed)

    return change


def own_link(**changed: Any) -> Change:
    link = {"bandwidth_bytes_per_s": 1e9, "latency_s": 1e-6, "efficiency": 0.5, **changed}
    return members("groups", 1, inside=link)


THIRD = {"name": "x", "size": 2, "bandwidth_bytes_per_s": 1e9, "latency_s": 0.0, "efficiency": 1.0}

REFUSED: list[tuple[Change, str, str]] = [
    (members(nodes=2), "nodes", "none where there are groups"),
    (members("groups", 1, name="v100"), "groups[1].name", "'v100' twice"),
    (members("groups", 1, name=""), "groups[1].name", "got ''"),
    (members("groups", 1, name="V100"), "groups[1].name", "a to z"),
    (members("groups", 1, name="a=b"), "groups[1].name", "got 'a=b'"),
    (members("groups", 1, name="a,b"), "groups[1].name", "got 'a,b'"),
    (members("groups", 1, name="a\n"), "groups[1].name", "a to z"),
    (members("groups", 1, name=3), "groups[1].name", "str"),
    (
        members("groups", 1, kind="K80"),
        "groups[1].kind",
        "one of V100-PCIe-16GB, GTX1080Ti-11GB, P100-PCIe-12GB",
    ),
    (members("groups", 1, nodes=0), "groups[1].nodes", "at least 1"),
    (members("groups", 1, per_node=-2), "groups[1].per_node", "at least 1"),
    (members("groups", 1, nodes=1.5), "groups[1].nodes", "int"),
    (members("groups", 1, nodes=10**9), "groups", "at most 10000000"),
    (own_link(bandwidth_bytes_per_s=0), "groups[1].inside.bandwidth_bytes_per_s", "above 0"),
    (own_link(latency_s=-1e-9), "groups[1].inside.latency_s", "at least 0"),
    (own_link(efficiency=0), "groups[1].inside.efficiency", "in (0, 1]"),
    (own_link(efficiency=1.01), "groups[1].inside.efficiency", "in (0, 1]"),
    (members("groups", 0, "network", efficiency=2), "groups[0].network.efficiency", "in (0, 1]"),
    (members("groups", 0, network={}), "groups[0].network.bandwidth_bytes_per_s", "missing"),
    (members("paths", 0, to="z"), "paths[0].to",
     "one of v100, 1080ti, p100, old_v100.b-1"),
    (lambda d: d["paths"][0].update({"from": "z"}), "paths[0].from", "unknown group 'z'"),
    (lambda d: d["paths"][0].pop("from"), "paths[0].from", "missing"),
    (members("paths", 0, to="v100"), "paths[0].to", "another group"),
    (lambda d: d["paths"][1].update({"from": "p100", "to": "v100"}), "paths[1]", "twice"),
    (members("paths", 0, bandwidth_bytes_per_s=0), "paths[0].bandwidth_bytes_per_s", "above 0"),
    (members("paths", 0, latency_s=-1), "paths[0].latency_s", "at least 0"),
    (members("collectives", 0, groups=["k80"]), "collectives[0].groups[0]", "unknown group 'k80'"),
    (members("collectives", 0, groups=[]), "collectives[0].groups", "the group of each node"),
    (members("collectives", 1, groups=["p100"]), "collectives[1].groups", "1 groups for 2 nodes"),
    (lambda d: d["levels"].append(THIRD), "levels", "3 levels"),
    (lambda d: d["levels"].pop(), "levels", "1 levels"),
    (members("levels", 1, rails=True), "levels[1].rails", "got True"),
    (members("levels", 1, uplinks=True), "levels[1].uplinks", "got True"),
    (members("levels", 1, oversubscription=2.0), "levels[1].oversubscription", "got 2.0"),
    (members("levels", 0, fully_connected=True), "levels[0].fully_connected", "got True"),
    (members("levels", 0, efficiency=0), "levels[0].efficiency", "in (0, 1]"),
    (members("devices", 1, kind="V100-PCIe-16GB"), "devices[1].kind", "twice"),
    (lambda d: d.pop("groups"), "devices[0].count", "missing"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "field", "said"), REFUSED)
def test_a_refused_file_names_the_field(change: Change, field: str, said: str) -> None:
    document = document_of(full())
    change(document)
    with pytest.raises(BadInput) as caught:
        hardware_from_document(document, "mixed.json")
    assert (caught.value.file, caught.value.field) == ("mixed.json", field)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"paths": [{"from": "a", "to": "b", "bandwidth_bytes_per_s": 1.0, "latency_s": 0.0}]},
         "paths[0].from"),
        ({"collectives": [hardware_document(full())["collectives"][0]]},
         "collectives[0].groups[0]"),
    ],
)  # fmt: skip
def test_only_groups_have_paths_and_tables_of_groups(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput, match="the profile has no groups") as caught:
        hardware_from_document(hardware_document(load_hardware("l4")) | changed)
    assert caught.value.field == field


def test_groups_kinds_and_paths_are_found_by_name() -> None:
    hardware = full()
    assert hardware.group("p100").gpus == 4
    assert hardware.kind("P100-PCIe-12GB").memory_bytes == 12 * 2**30
    assert hardware.path("p100", "v100") is hardware.path("v100", "p100") is hardware.paths[0]
    assert hardware.path("v100", "1080ti") is None
    assert hardware.max_nodes == 1 + 2 + 2 + 3
    with pytest.raises(BadInput, match=r"one of v100, 1080ti, p100, old_v100\.b-1"):
        hardware.group("k80")
    with pytest.raises(BadInput, match="one of V100-PCIe-16GB, GTX1080Ti-11GB, P100-PCIe-12GB"):
        hardware.kind("K80")
    with pytest.raises(BadInput, match="has no group"):
        load_hardware("l4").of_group("l4")


def test_one_group_is_a_profile_of_its_own() -> None:
    whole = full()
    hardware = whole.of_group("v100")
    assert hardware is whole.of_group("v100")
    assert hardware.name == "heterog-12/v100"
    assert hardware.devices == (replace(whole.devices[0], count=4),)
    assert hardware.levels == (
        Level("inside a node", 4, 1e11, 0.0, 1.0),
        Level("between nodes", 1, 12.5e9, 5e-5, 1.0),
    )
    assert hardware.collectives == (table("all_reduce", 1, 2),)
    assert (hardware.groups, hardware.paths, hardware.packing) == ((), (), True)
    assert not hardware.two_node_trees
    other = whole.of_group("p100")
    assert other.levels == tuple(replace(level, size=2) for level in whole.levels)
    assert [measured.nodes for measured in other.collectives] == [2]
    assert whole.of_group("1080ti").collectives == ()
    for one in (hardware, other):
        assert hardware_from_document(hardware_document(one)) == one


def test_one_group_has_its_own_sources() -> None:
    sources = load_hardware("h100-8+a100-8").of_group("a100").sources
    plain = load_hardware("dgx-a100-80gb").sources
    apart = {"collectives", "host_memory"}
    assert {f: s for f, s in sources.items() if f not in apart} == {
        f: s for f, s in plain.items() if f not in apart
    }
    assert "NVLink" in load_hardware("l40s-4+a100-4").of_group("a100").sources["levels.inside"]
    assert "PCIe" in load_hardware("l40s-4+a100-4").of_group("l40s").sources["levels.inside"]


def test_one_group_has_the_operator_tables_of_its_kind() -> None:
    whole = load_hardware("heterog-8")
    families: dict[str, Any] = {
        "kind": "aten.relu.default", "direction": "forward", "arguments": ["self"],
        "dtypes": ["float32"], "shapes": [[[8], [8]]], "flops": [8.0], "moved_bytes": [64.0],
        "times_s": [1e-5],
    }  # fmt: skip
    document = hardware_document(whole)
    document["operators"] = [{**families, "device": device.kind} for device in whole.devices]
    measured = hardware_from_document(document)
    for group in measured.groups:
        alone = measured.of_group(group.name)
        assert [one.device for one in alone.operators] == [group.kind]
        assert alone.operator_times.known
    assert not whole.of_group("v100").operator_times.known


@pytest.mark.parametrize(
    ("group", "name"), [("h100", "dgx-h100"), ("a100", "dgx-a100-80gb")]
)  # fmt: skip
@pytest.mark.parametrize("measured", [True, False])
def test_a_group_gives_what_a_plain_profile_gives(group: str, name: str, measured: bool) -> None:
    """On two nodes each, with and without the tables."""
    whole, plain = load_hardware("h100-8+a100-8"), load_hardware(name)
    if not measured:
        whole, plain = replace(whole, collectives=()), replace(plain, collectives=())
    whole = replace(whole, groups=tuple(replace(one, nodes=2) for one in whole.groups))
    alone = whole.of_group(group)
    assert alone.devices == plain.devices
    for gpus in (2, 3, 8, 12, 16):
        mesh = Mesh.build(alone, gpus)
        assert mesh == Mesh.build(plain, gpus)
        for axes in [(i,) for i in range(len(mesh.axes))] + [tuple(range(len(mesh.axes)))]:
            shape = mesh.group_shape(axes)
            for operation in OPERATIONS:
                times = collective_times(alone, operation, SIZES, shape)
                assert (times == collective_times(plain, operation, SIZES, shape)).all()


def test_nodes_of_one_device() -> None:
    alone = full().of_group("old_v100.b-1")
    mesh = Mesh.build(alone, 3)
    assert (mesh.nodes, [axis.level for axis in mesh.axes]) == (3, ["between nodes"])


ASKED: list[Callable[[Hardware], Any]] = [
    lambda h: Mesh.build(h, 4),
    lambda h: h.per_node,
    lambda h: h.operator_times,
    lambda h: h.copy_times(SIZES),
    lambda h: h.tables,
    lambda h: h.links,
    lambda h: h.peak_links,
    lambda h: collective_times(h, "all_reduce", SIZES, Mesh.place(4, 4).group_shape((0,))),
]


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("hardware", [full(), load_hardware("heterog-8")], ids=("full", "bare"))
def test_a_question_of_one_kind_is_refused(
    ask: Callable[[Hardware], Any], hardware: Hardware
) -> None:
    with pytest.raises(
        BadInput, match=r"such as --gpus v100=\d,1080ti=4; groups: v100 \("
    ) as error:
        ask(hardware)
    assert error.value.field == "gpus"


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.with_nodes(2),
        lambda h: h.with_devices_per_node(2),
        lambda h: h.with_network(1e9),
        lambda h: load_hardware(f"{h.name}*2"),
        lambda h: load_hardware(f"{h.name}*99"),
    ],
)
def test_nodes_of_several_sorts_are_not_changed_alike(change: Callable[[Hardware], Any]) -> None:
    with pytest.raises(BadInput, match="has groups of devices") as caught:
        change(load_hardware("heterog-8"))
    assert caught.value.field == "hardware"


def test_rates_that_heterog_states() -> None:
    """Inside a server, of collectives over all, and of what one server sends another."""
    for name, counts in (("heterog-8", (2, 4, 2)), ("heterog-12", (4, 4, 4))):
        hardware = load_hardware(name)
        assert tuple(group.gpus for group in hardware.groups) == counts
        assert hardware.host is None
        for group in hardware.groups:
            inside, _ = hardware.of_group(group.name).levels
            assert inside.bandwidth_bytes_per_s * inside.efficiency == pytest.approx(10e9, rel=1e-3)
        assert {path.bandwidth_bytes_per_s for path in hardware.paths} == {1.25e9}
        assert not any(path.collectives for path in hardware.paths)
    # An all_reduce over 8 GPUs: 0.278 us a KiB and 212 us, a few per cent less than the card can.
    hardware = load_hardware("heterog-8")
    blocks = Blocks.of(hardware, Devices.parse("v100=2,1080ti=4,p100=2", hardware))
    sizes = np.array([2.0**20, 2.0**28])
    times = JointLinks(blocks).times("all_reduce", sizes, (0, 1, 2, 3), 2)
    assert times == pytest.approx(sizes / 1024 * 0.278e-6 + 212e-6, rel=0.06)


def _joint(groups: tuple[str, ...], ranks: int, siblings: int, scale: float) -> CollectiveTable:
    return CollectiveTable(
        "all_reduce",
        len(groups),
        ranks,
        ranks == 2,
        (1e4, 1e6, 1e8),
        (scale * 1e-4, scale * 1e-3, scale * 1e-1),
        siblings=siblings,
        groups=groups,
    )


def test_measured_tables_over_several_groups_are_used_where_they_fit() -> None:
    plain = load_hardware("heterog-8")
    hardware = replace(
        plain,
        collectives=(
            _joint(("p100", "v100"), 1, 1, 7.0),
            _joint(("p100", "v100"), 1, 2, 3.0),
            _joint(("1080ti", "1080ti", "p100", "v100"), 2, 1, 5.0),
        ),
    )
    bundle = Devices.parse("v100=2,1080ti=4,p100=2", hardware)
    measured, modelled = (JointLinks(Blocks.of(h, bundle)) for h in (hardware, plain))
    sizes = np.array([1e4, 1e5, 1e6])
    whole = measured.times("all_reduce", sizes, (0, 1, 2, 3), 2)
    # Between two sizes along a line of logarithms, as on one kind.
    assert whole == pytest.approx([5e-4, 5 * np.sqrt(1e-4 * 1e-3), 5e-3])
    # Two groups of one rank per node share a card: one that was measured alone is too fast.
    assert measured.times("all_reduce", sizes, (0, 3), 1)[0] == pytest.approx(3e-4)
    for operation, support, ranks in (
        ("all_gather", (0, 1, 2, 3), 2),  # another operation
        ("all_reduce", (0, 1, 2), 2),  # other groups
        ("all_reduce", (0, 1), 2),
        ("all_reduce", (0, 3), 2),  # another number of ranks
    ):
        assert measured.table(operation, support, ranks) is None
        expected = modelled.times(operation, sizes, support, ranks)
        assert np.array_equal(measured.times(operation, sizes, support, ranks), expected)
    # Horovod's ring is what is asked for, whatever the library did.
    rings = RingLinks(measured._blocks).times("all_reduce", sizes, (0, 1, 2, 3), 2)
    assert np.array_equal(
        rings, RingLinks(modelled._blocks).times("all_reduce", sizes, (0, 1, 2, 3), 2)
    )


def test_nodes_with_unequal_ranks_have_no_table() -> None:
    hardware = load_hardware("heterog-12")
    table = _joint(("1080ti", "v100"), 2, 1, 1.0)
    hardware = replace(hardware, collectives=(table,))
    blocks = Blocks.of(hardware, Devices.parse("v100=4,1080ti=2", hardware))
    links = JointLinks(blocks)
    assert links.table("all_reduce", (0, 1, 2), 2) is None  # two blocks of the v100, one other
    assert links.table("all_reduce", (1, 2), 2) == table


def test_names_of_one_kind_of_device() -> None:
    for one, other in (
        ("V100-PCIe-16GB", "Tesla V100-PCIE-16GB"),
        ("GTX1080Ti-11GB", "NVIDIA GeForce GTX 1080 Ti"),
        ("H100-SXM5-80GB", "NVIDIA H100 80GB HBM3"),
        ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
        ("slow", "slow"),
    ):
        assert same_kind(one, other)
    for one, other in (
        ("V100-PCIe-16GB", "Tesla P100-PCIE-16GB"),
        ("GTX1080Ti-11GB", "NVIDIA GeForce GTX 1080"),
        ("H100-SXM5-80GB", "NVIDIA H200"),
        ("CPU Xeon 6230, 1 thread", "CPU Xeon 6230, 2 threads"),
        ("fast", "slow"),
    ):
        assert not same_kind(one, other)


def test_measurements_of_one_kind_have_no_base_with_groups() -> None:
    with pytest.raises(BadInput, match="a profile without groups") as caught:
        import_measurements([], "nccl-tests", "heterog-8")
    assert caught.value.field == "base"


def test_the_command_lists_every_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    listed = CliRunner().invoke(hardware_commands, ["list"]).output
    row = r"heterog-8: 1080ti +2 x 2 GTX1080Ti-11GB +11.00 +15.75 +6.25"
    assert re.search(row, listed)
    assert re.search(r"\nl4 +8 L4-24GB", listed)
    shown = CliRunner().invoke(hardware_commands, ["show", "h100-8+a100-8"]).output
    assert "group h100: 1 node of 8 H100-SXM5-80GB\n" in shown
    own = ", 300 GB/s inside a node, 200 GB/s between nodes\n"
    assert f"group a100: 1 node of 8 A100-SXM4-80GB{own}" in shown
    assert re.search(r"all_reduce +1 x 8 of a100 ", shown)


def test_the_command_shows_paths(tmp_path: Path) -> None:
    path = tmp_path / "mixed.json"
    path.write_text(json.dumps(document_of(full())))
    shown = CliRunner().invoke(hardware_commands, ["show", str(path)]).output
    assert "path between v100 and p100: 0.5 GB/s one way\n" in shown
    assert "2 x 2 of 1080ti+p100" in shown


def test_verdicts_go_by_the_links_of_a_group() -> None:
    whole = load_hardware("h100-8+a100-8")
    for group, plain in (("h100", "dgx-h100"), ("a100", "dgx-a100-80gb")):
        alone = load_hardware(plain)
        judged = [verdict(whole, one) for one in whole.collectives if one.groups == (group,)]
        assert judged == [verdict(alone, one) for one in alone.collectives]
    assert verdict(full(), full().collectives[2]).reason == "its nodes are of several groups"
