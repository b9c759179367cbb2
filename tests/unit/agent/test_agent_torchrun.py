"""The command of a launch, and what is read from torchrun's complaints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.allow import Refused, program_of
from agent.assignment import Assignment, read_assignment
from agent.config import Config, EntryPoint
from agent.torchrun import failed_rank, network_environment, own_address, torchrun_command
from shardwise.errors import BadInput


def assignment(**changes: Any) -> Assignment:
    document = {
        "id": "asg_1",
        "launch": "lnc_1",
        "token": "t",
        "kind": "run",
        "entry_point": "train",
        "arguments": ["--lr", "1"],
        "environment": {},
        "nodes": 3,
        "node_rank": 2,
        "ranks_per_node": 4,
        "rendezvous": {"id": "lnc_1", "host": "10.0.0.1", "port": 29500},
        "memory_limit_bytes": None,
        "time_limit_s": None,
        **changes,
    }
    return read_assignment(document)


TRAIN = Config(
    entry_points={
        "train": EntryPoint("train", ("/opt/py", "-m", "train"), allow_arguments=None),
        "plain": EntryPoint("plain", ("/opt/py",)),
    }
)


def test_the_command_is_a_list_with_the_assignments_rendezvous() -> None:
    given = assignment()
    command = torchrun_command(given, "10.0.0.3", Path("/run/pipes"), ("/opt/py", "a b", "$x"))
    assert command[-4:] == ["/run/pipes", "/opt/py", "a b", "$x"]
    options = dict(zip(command[4:-1:2], command[5::2], strict=False))
    assert options["--nnodes"] == "3"
    assert options["--node-rank"] == "2"
    assert options["--nproc-per-node"] == "4"
    assert (options["--master-addr"], options["--master-port"]) == ("10.0.0.1", "29500")
    assert options["--max-restarts"] == "0"
    assert given.first_rank == 8


def test_limits_are_the_stricter_ones() -> None:
    config = Config(entry_points=TRAIN.entry_points, memory_limit_bytes=100, time_limit_s=60)
    own = program_of(assignment(), config, {})
    assert (own.memory_limit_bytes, own.time_limit_s) == (100, 60)
    asked = program_of(assignment(memory_limit_bytes=50, time_limit_s=5), config, {})
    assert (asked.memory_limit_bytes, asked.time_limit_s) == (50, 5)
    with pytest.raises(Refused, match="memory_limit_bytes"):
        program_of(assignment(memory_limit_bytes=101), config, {})


def test_the_environment_is_what_the_host_lets_through() -> None:
    own = {"PATH": "/bin", "HOME": "/root", "AWS_SECRET": "s", "SHARDWISE_ENROL_TOKEN": "swe_1"}
    config = Config(entry_points=TRAIN.entry_points, environment=frozenset({"A"}))
    program = program_of(assignment(environment={"A": "1"}), config, own)
    assert program.environment == {"PATH": "/bin", "HOME": "/root", "A": "1"}
    assert program.command == ("/opt/py", "-m", "train", "--lr", "1")


def test_a_program_takes_no_argument_unless_the_host_says_so() -> None:
    assert program_of(assignment(entry_point="plain", arguments=[]), TRAIN, {}).command
    with pytest.raises(Refused, match=r"arguments\[0\] .* takes no arguments"):
        program_of(assignment(entry_point="plain", arguments=[""]), TRAIN, {})


def test_a_variable_that_is_always_refused_is_refused_even_if_it_were_configured() -> None:
    config = Config(entry_points=TRAIN.entry_points, environment=frozenset({"LD_PRELOAD"}))
    with pytest.raises(Refused, match="LD_PRELOAD"):
        program_of(assignment(environment={"LD_PRELOAD": "x"}), config, {})


def test_built_ins_need_no_configuration() -> None:
    program = program_of(assignment(entry_point="shardwise.measure"), Config(), {})
    assert program.command[1:4] == ("-P", "-m", "shardwise.measure")


@pytest.mark.parametrize(
    "argument",
    ["--steps", "--steps=20", "20", "--graph", "graph.json", "--source=zoo:mlp", "zoo:mlp", "1.5",
     "hf:LlamaConfig:num_hidden_layers=2,vocab_size=100", "--collectives", "all_reduce,all_gather"],
)  # fmt: skip
def test_built_ins_take_harmless_arguments(argument: str) -> None:
    given = assignment(entry_point="shardwise.run", arguments=[argument])
    assert program_of(given, Config(), {}).command[-1] == argument


@pytest.mark.parametrize(
    "argument",
    ["-o", "-o/etc/x", "--output", "--output=x", "/etc/passwd", "../x", "--graph=/etc/x", "--",
     "os:abort", "--source=os:abort", "package.module:call", "zoo:../x", "a\nb/c", "--Steps", ""],
)  # fmt: skip
def test_built_ins_take_no_paths_and_no_code(argument: str) -> None:
    given = assignment(entry_point="shardwise.run", arguments=[argument])
    with pytest.raises(Refused, match=r"arguments\[0\]"):
        program_of(given, Config(), {})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"node_rank": 3}, "node_rank"),
        ({"nodes": 0}, "nodes"),
        ({"nodes": True}, "nodes"),
        ({"ranks_per_node": "2"}, "ranks_per_node"),
        ({"time_limit_s": float("nan")}, "time_limit_s"),
        ({"token": ""}, "token"),
        ({"arguments": "a b"}, "arguments"),
        ({"arguments": ["\ud800"]}, "arguments"),
        ({"environment": {"A": 1}}, "environment.A"),
        ({"rendezvous": None}, "rendezvous"),
        ({"rendezvous": {"id": "a", "host": "h", "port": 0}}, "rendezvous.port"),
        ({"id": "a/../b"}, "id"),
        ({"id": "a..b"}, "id"),
        ({"id": ".a"}, "id"),
        ({"id": "x" * 200}, "id"),
    ],
)
def test_an_assignment_is_read_with_suspicion(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as caught:
        assignment(**changes)
    assert field in str(caught.value)
    assert len(str(caught.value)) < 300


def test_addresses_of_both_families_are_hosts() -> None:
    for host in ("10.0.0.1", "fd00::1", "node-1.cluster"):
        assert assignment(rendezvous={"id": "a", "host": host, "port": 1}).rendezvous.host == host


def test_loopback_is_reached_by_loopback() -> None:
    given = assignment(rendezvous={"id": "a", "host": "127.0.0.5", "port": 29500})
    address = own_address(given)
    assert address.startswith("127.")
    assert network_environment(address) == {
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }
    assert network_environment("node-1.cluster") == {}
    assert network_environment("203.0.113.77") == {}


def test_the_failed_rank_is_read_from_either_of_torchruns_messages() -> None:
    early = "E1121 api.py:1032] failed (exitcode: -9) local_rank: 1 (pid: 77) of binary: /usr/bin/x"
    assert failed_rank(early) == (1, -9)
    late = "[0]:\n  time : 2026\n  rank      : 5 (local_rank: 1)\n  exitcode  : 3 (pid: 7)"
    assert failed_rank(late) == (1, 3)
    assert failed_rank("No module named torch") is None
