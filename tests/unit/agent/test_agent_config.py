"""agent.toml: what is read, and that what cannot be meant is refused by field."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.config import REFUSED, load_config
from shardwise.errors import BadInput

FULL = """
slots = 3
ports = [30000, 30010]
addresses = ["10.0.0.5"]
environment = ["FLAVOUR"]
inherit = ["PATH"]
memory_limit_bytes = "1.5GiB"
time_limit_s = 60
stop_grace_s = 5
spool_bytes = "8MB"
cgroup = "off"
[logs]
line_bytes = 100
rank_bytes = "64KiB"
[entry_points.train]
command = ["python", "-m", "train"]
description = "our trainer"
allow_arguments = "--epochs=[0-9]+"
directory = "/srv/train"
[entry_points.open]
command = ["/bin/true"]
allow_arguments = true
[entry_points.silent]
command = ["/bin/true"]
[entry_points.closed]
command = ["/bin/true"]
allow_arguments = false
"""


def read(tmp_path: Path, text: str) -> object:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return load_config(path)


def test_every_field_is_read(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(FULL)
    config = load_config(path)
    assert (config.slots, config.ports, config.addresses) == (3, (30000, 30010), ("10.0.0.5",))
    assert (config.environment, config.inherit) == (frozenset({"FLAVOUR"}), ("PATH",))
    assert config.memory_limit_bytes == 3 * 2**29
    assert (config.time_limit_s, config.stop_grace_s, config.cgroup) == (60.0, 5.0, "off")
    assert config.spool_bytes == 8_000_000
    assert (config.logs.line_bytes, config.logs.rank_bytes) == (100, 65536)
    train = config.entry_points["train"]
    assert train.command == ("python", "-m", "train")
    assert (train.description, train.directory) == ("our trainer", "/srv/train")
    assert train.allow_arguments is not None
    assert train.allow_arguments.fullmatch("--epochs=10")
    assert config.entry_points["open"].allow_arguments is None
    for name in ("closed", "silent"):
        closed = config.entry_points[name].allow_arguments
        assert closed is not None
        assert not closed.fullmatch("")
        assert not closed.fullmatch("--epochs=10")
    said = {name: entry.arguments_allowed for name, entry in config.entry_points.items()}
    assert said == {
        "train": "arguments that match --epochs=[0-9]+",
        "open": "any arguments",
        "closed": "no arguments",
        "silent": "no arguments",
    }


def test_without_a_file_only_the_built_ins_are_allowed() -> None:
    assert load_config(None).entry_points == {}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("slots = -1", "slots"),
        ("slots = true", "slots"),
        ("slot = 1", "slot"),
        ("ports = [80, 90]", "ports"),
        ("ports = [2000]", "ports"),
        ("ports = [3000, 2000]", "ports"),
        ('memory_limit_bytes = "many"', "memory_limit_bytes"),
        ("time_limit_s = -1", "time_limit_s"),
        ("time_limit_s = inf", "time_limit_s"),
        ('cgroup = "on"', "cgroup"),
        ('environment = ["LD_PRELOAD"]', "environment"),
        ('environment = ["A B"]', "environment"),
        ("entry_points = 1", "entry_points"),
        ("[entry_points.a]", "entry_points.a.command"),
        ('[entry_points.a]\ncommand = "python train.py"', "entry_points.a.command"),
        ('[entry_points.a]\ncommand = ["./train"]', "entry_points.a.command"),
        ('[entry_points.a]\ncommand = ["x"]\nallow_arguments = "("', "entry_points.a.allow"),
        ('[entry_points.a]\ncommand = ["x"]\nargs = "x"', "entry_points.a.args"),
        ('[entry_points."shardwise.run"]\ncommand = ["x"]', "entry_points"),
        ('[entry_points."../a"]\ncommand = ["x"]', "entry_points"),
        ("[logs]\nline_bytes = 5000", "logs.line_bytes"),
        ("slots =", "TOML"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_field(tmp_path: Path, text: str, field: str) -> None:
    with pytest.raises(BadInput, match=r"agent\.toml") as caught:
        read(tmp_path, text)
    assert field in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing\.toml: no such file"):
        load_config(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "PATH", "SHARDWISE_AGENT_ID",
     "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "TORCHELASTIC_X",
     "NCCL_NET_PLUGIN", "BASH_ENV"],
)  # fmt: skip
def test_variables_that_choose_what_is_loaded_are_never_a_launchs(name: str) -> None:
    assert REFUSED.fullmatch(name)


def test_harmless_variables_may_be_allowed() -> None:
    for name in ("OMP_NUM_THREADS", "NCCL_DEBUG", "RANKING", "MY_PATH", "TORCH_LOGS"):
        assert not REFUSED.fullmatch(name)
