"""Other programs' measurements. The outputs are written by hand in the programs' formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardwise.cli.main import cli
from shardwise.errors import BadInput
from shardwise.hardware import (
    CollectiveTable,
    GroupShape,
    Hardware,
    bus_bandwidth,
    collective_time,
    load_hardware,
)
from shardwise.hardware.imports import import_measurements
from shardwise.hardware.verdict import verdict


def places(hosts: int = 1, each: int = 8, split: int = 0) -> str:
    lines = []
    for rank in range(hosts * each):
        group = rank % split if split else 0
        lines.append(
            f"#  Rank {rank:2} Group {group:2} Pid {4000 + rank:6} on node{rank // each:02} device "
            f"{rank % each:2} [0000:{rank % each:02x}:00] NVIDIA H100 80GB HBM3"
        )
    return "\n".join(lines) + "\n"


ODD_RANK = "#  Rank  8 Group  0 Pid 1 on node01 device  0 [0x04] NVIDIA H100 80GB HBM3\n"

RECENT = """# nccl-tests version 2.18.2 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
{places}#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    40.00   26.21   45.88       0    41.00   25.58   44.76       0
     2097152        524288     float     sum      -1    50.00   41.94   73.40       0    51.00   41.12   71.96     N/A
     4194304       1048576     float     sum      -1    70.00   59.92  104.86       0    72.00   58.25  101.95       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 73.8
#
# Collective test concluded: all_reduce_perf
"""  # noqa: E501

OLD = """node00: NCCL version 2.7.8+cuda11.0
$ ./build/all_gather_perf -b 8 -e 16M -f 2 -g 4
# nThread 1 nGpus 4 minBytes 8 maxBytes 16777216 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid  29565 on      node00 device  0 [0x01] A100-SXM4-80GB
#   Rank  1 Pid  29565 on      node00 device  1 [0x25] A100-SXM4-80GB
#   Rank  2 Pid  29565 on      node00 device  2 [0x41] A100-SXM4-80GB
#   Rank  3 Pid  29565 on      node00 device  3 [0x61] A100-SXM4-80GB
#
#                                             out-of-place                       in-place
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0   float    12.00    0.00    0.00  0e+00    12.00    0.00    0.00  0e+00
     1048576         65536   float    30.00   34.95   26.21  0e+00    29.00   36.16   27.12  0e+00
    16777216       1048576   float   120.00  139.81  104.86  4e-07   118.00  142.18  106.64  4e-07
"""  # noqa: E501

BLANK_NAMES = """# Collective test starting: sendrecv_perf
{places}#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float                     30.00   34.95   34.95      0      N/A     N/A     N/A    N/A
     2097152        524288     float            -1       45.00   46.60   46.60      0      N/A     N/A     N/A    N/A
"""  # noqa: E501

IN_PLACE_ONLY = """# Collective test starting: broadcast_perf
{places}#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong timestamp
     1048576        262144     float    none       0                                      30.00   34.95   34.95      0  2026-01-02 03:04:05
     2097152        524288     float    none       0                                      45.00   46.60   46.60      0  2026-01-02 03:04:06
"""  # noqa: E501

PER_ITERATION = """# Collective test starting: reduce_scatter_perf
{places}#       size         count      type   redop    root     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%
     1048576        262144     float     sum      -1    30.00   34.95   30.58       0    29.00    35.00    34.00     3.00    31.00   33.83   29.60       0    30.00    35.00    34.00     3.00
     2097152        524288     float     sum      -1    45.00   46.60   40.78       0    44.00    50.00    49.00     3.00    46.00   45.59   39.89       0    45.00    50.00    49.00     3.00
"""  # noqa: E501


def _file(folder: Path, text: str, name: str = "out.txt") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def imported(hardware: Hardware, base: str) -> list[CollectiveTable]:
    """Returns the tables that the base does not have."""
    shipped = load_hardware(base).collectives
    return [table for table in hardware.collectives if table not in shipped]


def test_recent_text(tmp_path: Path) -> None:
    hardware = import_measurements(
        [_file(tmp_path, RECENT.format(places=places()))], "nccl-tests", "dgx-h100"
    )
    (table,) = imported(hardware, "dgx-h100")
    assert len(hardware.collectives) == len(load_hardware("dgx-h100").collectives)
    assert (table.operation, table.nodes, table.ranks_per_node) == ("all_reduce", 1, 8)
    assert table.consecutive and table.siblings == 1
    assert table.sizes_bytes == (2.0**20, 2.0**21, 2.0**22)
    assert table.times_s == pytest.approx((40e-6, 50e-6, 70e-6))
    # The file's own busbw column comes out again.
    bus = bus_bandwidth("all_reduce", 8, table.sizes_bytes[-1], table.times_s[-1])
    assert bus / 1e9 == pytest.approx(104.86, abs=0.01)
    assert verdict(hardware, table).status == "unknown"
    assert "nccl-tests" in hardware.provenance
    predicted = collective_time(hardware, "all_reduce", 2.0**21, GroupShape(8, 1, 8, 1, True))
    assert (predicted.provenance, predicted.time_s) == ("measured", pytest.approx(50e-6))


def test_old_text_without_redop_and_with_zero_sizes(tmp_path: Path) -> None:
    hardware = import_measurements([_file(tmp_path, OLD)], "nccl-tests", "dgx-a100-80gb")
    (table,) = imported(hardware, "dgx-a100-80gb")
    assert (table.operation, table.ranks_per_node) == ("all_gather", 4)
    assert table.times_s == pytest.approx((30e-6, 120e-6))


def test_blank_names_and_missing_halves(tmp_path: Path) -> None:
    files = [
        _file(tmp_path, text.format(places=places()), f"{i}.txt")
        for i, text in enumerate((BLANK_NAMES, IN_PLACE_ONLY, PER_ITERATION))
    ]
    hardware = import_measurements(files, "nccl-tests", "dgx-h100")
    times_by_operation = {t.operation: t.times_s for t in imported(hardware, "dgx-h100")}
    assert set(times_by_operation) == {"send_receive", "broadcast", "reduce_scatter"}
    for times in times_by_operation.values():
        assert times == pytest.approx((30e-6, 45e-6))


def test_several_programs_in_one_file_and_repeats_over_files(tmp_path: Path) -> None:
    both = RECENT.format(places=places()) + BLANK_NAMES.format(places=places())
    slower = RECENT.format(places=places()).replace("40.00   26.21", "44.00   23.83")
    files = [_file(tmp_path, both, "a.txt"), _file(tmp_path, slower, "b.txt")]
    hardware = import_measurements(files, "nccl-tests", "dgx-h100", name="mine")
    assert hardware.name == "mine"
    reduce = hardware.tables[("all_reduce", (8,), True)]
    assert reduce.times_s[0] == pytest.approx(42e-6)
    assert reduce.repeats == (2, 2, 2)
    assert reduce.p10_s[0] < reduce.times_s[0] < reduce.p90_s[0]
    assert ("send_receive", (8,), True) in hardware.tables


def test_two_nodes_and_split_communicators(tmp_path: Path) -> None:
    whole = _file(tmp_path, RECENT.format(places=places(2)), "whole.txt")
    pairs = _file(tmp_path, RECENT.format(places=places(2, split=8)), "pairs.txt")
    hardware = import_measurements([whole, pairs], "nccl-tests", "dgx-h100")
    assert hardware.tables[("all_reduce", (8, 2), True)].siblings == 1
    across = hardware.tables[("all_reduce", (1, 2), False)]
    assert across.siblings == 8
    lone = _file(tmp_path, RECENT.format(places=places(2, 1)), "lone.txt")
    alone = import_measurements([lone], "nccl-tests", "dgx-h100")
    # Measured without the seven others that share the node's cards in training: not used.
    shape = GroupShape(2, 2, 1, 8, False)
    assert collective_time(alone, "all_reduce", 2.0**20, shape).provenance == "modelled"
    assert collective_time(hardware, "all_reduce", 2.0**20, shape).provenance == "measured"


def test_the_base_is_found_by_the_device(tmp_path: Path) -> None:
    text = RECENT.format(places=places()).replace("H100 80GB HBM3", "H200")
    assert import_measurements([_file(tmp_path, text)], "nccl-tests").name == "h200-8-imported"
    with pytest.raises(BadInput, match="base: the files name NVIDIA RTX 9999"):
        unknown = text.replace("NVIDIA H200", "NVIDIA RTX 9999")
        import_measurements([_file(tmp_path, unknown)], "nccl-tests")


def _json(**changes: object) -> dict[str, object]:
    def timing(time: float) -> dict[str, object]:
        return {"time": time, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0.0}

    return {
        "version": 3,
        "start_time": "2026-01-02 03:04:05",
        "args": ["/opt/nccl-tests/build/alltoall_perf", "-b", "1M", "-J", "out.json"],
        "env": ["HOME=/root"],
        "nccl_version": 22809,
        "config": {
            "nthreads": 1,
            "ngpus": 4,
            "devices": [
                {"rank": 0, "group": 0, "pid": 1, "hostname": "a", "device": 0,
                 "device_hex": "0000:04:00", "device_info": "NVIDIA H100 80GB HBM3"},
                {"rank": 4, "group": 0, "pid": 2, "hostname": "b", "device": 0,
                 "device_hex": "0000:04:00", "device_info": "NVIDIA H100 80GB HBM3"},
            ],
        },
        "results": [
            {"size": 0, "count": 0, "type": "float", "out_of_place": timing(5.0)},
            {"size": 1048576, "count": 1, "type": "float", "redop": "none", "root": "    -1",
             "out_of_place": timing(100.0), "in_place": timing(90.0)},
            {"size": 2097152, "count": 1, "type": "float", "redop": "none", "root": "    -1",
             "out_of_place": None, "in_place": timing(150.0),
             "in_place_per_iter": {"skipped_iterations": 0, "times_us": [140.0, 150.0, 160.0]}},
        ],
    } | changes  # fmt: skip


def test_json(tmp_path: Path) -> None:
    path = _file(tmp_path, json.dumps(_json()), "out.json")
    hardware = import_measurements([path], "nccl-tests", "dgx-h100")
    (table,) = imported(hardware, "dgx-h100")
    assert (table.operation, table.nodes, table.ranks_per_node) == ("all_to_all", 2, 4)
    assert not table.consecutive
    assert table.times_s == pytest.approx((100e-6, 150e-6))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "the file has no results"),
        (RECENT.format(places=""), "--group NODESxRANKS"),
        (
            RECENT.format(places=places()).replace("   70.00 ", "  fast "),
            "line 20: 'fast' as a time (expected a number)",
        ),
        (
            RECENT.format(places=places()).replace("104.86       0", "104.86       7"),
            "line 20: 7 wrong values at size 4194304",
        ),
        (
            RECENT.format(places=places()).replace("104.86       0", ""),
            "line 20: 'sum' as a time",
        ),
        (
            RECENT.format(places=places()).replace("59.92", "12.00"),
            "line 20: 4194304 bytes in 70 us are 59.92 GB/s, not 12",
        ),
        (
            RECENT.format(places=places()).replace("   59.92  104.86       0", ""),
            "line 20: 10 words (expected a row of nccl-tests",
        ),
        (RECENT.format(places=places()).replace("all_reduce", "hypercube"), "line 2: results of"),
        (OLD.replace("all_gather_perf", "perf"), "the operation is not known"),
        (RECENT.format(places=places(1, 1)), "one rank"),
        (RECENT.format(places=places() + ODD_RANK), "ranks on"),
        (json.dumps(_json(results=[{"size": 1, "out_of_place": {"time": "nan"}}])), "results[0]"),
        (json.dumps(_json(results=[{"count": 1}])), "results[0].size: missing"),
        (json.dumps(_json(args=["gather_perf"])), "results of gather_perf"),
        ('{"results": [', "not JSON"),
        (json.dumps(_json(results=_json()["results"][:2])), "1 size"),  # type: ignore[index]
    ],
)
def test_malformed_output_of_nccl_tests_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        import_measurements([path], "nccl-tests", "dgx-h100")
    assert path in str(caught.value)
    assert message in str(caught.value)


GPU = "/job:worker/replica:0/task:{}/device:GPU:{}"


def link(source: str, target: str, slope: float, fixed: float) -> dict[str, object]:
    return {"from": source, "to": target, "seconds_per_byte": slope, "seconds": fixed}


MODELS = {
    "links": [
        link(GPU.format(0, 0), GPU.format(0, 1), 1e-10, 1e-5),
        link(GPU.format(0, 0), GPU.format(1, 0), 1e-9, 3e-5),
        link(GPU.format(0, 1), GPU.format(1, 0), 2e-9, 4e-5),
    ],
    "collectives": [
        {
            "operation": "all_reduce",
            "devices": [GPU.format(0, 0), GPU.format(0, 1)],
            "seconds_per_byte": 2e-10,
            "seconds": 5e-5,
        }
    ],
}


def test_linear_models_of_links(tmp_path: Path) -> None:
    path = _file(tmp_path, json.dumps(MODELS), "models.json")
    hardware = import_measurements([path], "heterog", "pcie-v100-8")
    inside, between = hardware.levels
    assert inside.bandwidth_bytes_per_s == pytest.approx(1e10)
    assert between.bandwidth_bytes_per_s == pytest.approx(5e8)
    assert between.latency_s == 4e-5
    assert inside.efficiency == 1
    predicted = collective_time(hardware, "all_reduce", 3e6, GroupShape(2, 1, 2, 1, True))
    assert predicted.provenance == "derived"
    # Interpolated between powers of two, log-log: near the line.
    assert predicted.time_s == pytest.approx(3e6 * 2e-10 + 5e-5, rel=0.01)
    assert "heterog" in hardware.provenance


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"links": 3}, "links"),
        ({"links": [MODELS["links"][0] | {"seconds_per_byte": 0.0}]}, "links[0].seconds_per_byte"),
        ({"links": [MODELS["links"][0] | {"seconds": -1.0}]}, "links[0].seconds"),
        ({"links": [MODELS["links"][0] | {"from": "gpu"}]}, "links[0]: got 'gpu'"),
        ({"links": [MODELS["links"][0] | {"to": GPU.format(0, 0)}]}, "to itself"),
        (
            {"collectives": [MODELS["collectives"][0] | {"operation": "gossip"}]},
            "collectives[0].operation",
        ),
        (
            {"collectives": [MODELS["collectives"][0] | {"devices": ["a:0"]}]},
            "collectives[0].devices",
        ),
    ],
)
def test_linear_models_that_do_not_fit_are_named(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = _file(tmp_path, json.dumps(MODELS | change), "models.json")
    with pytest.raises(BadInput) as caught:
        import_measurements([path], "heterog", "pcie-v100-8")
    assert path in str(caught.value)
    assert message in str(caught.value)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "nccl_model.pkl"
    path.write_bytes(b"\x80\x04\x95\x00")
    with pytest.raises(BadInput, match="not UTF-8 text"):
        import_measurements([str(path)], "heterog", "pcie-v100-8")


def test_the_command_writes_a_profile_that_is_read_again(tmp_path: Path) -> None:
    source = _file(tmp_path, RECENT.format(places=places()))
    target = str(tmp_path / "profile.json")
    arguments = ["hardware", "import", source, "--format", "nccl-tests", "-o", target]
    done = CliRunner().invoke(cli, [*arguments, "--base", "dgx-h100"])
    assert done.exit_code == 0, done.output
    assert "all_reduce" in done.output
    assert load_hardware(target).tables
    # No header says where ranks were; the option does.
    bare = _file(tmp_path, RECENT.format(places=""), "bare.txt")
    arguments[2] = bare
    refused = CliRunner().invoke(cli, [*arguments, "--base", "dgx-h100", "--group", "8"])
    assert isinstance(refused.exception, BadInput)
    given = CliRunner().invoke(cli, [*arguments, "--base", "dgx-h100", "--group", "1x8"])
    assert given.exit_code == 0, given.output
