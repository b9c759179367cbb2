"""`make gpu` without a GPU: its CPU path, parts that fail, and what a GPU's parts come to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("timm")

import msgspec  # noqa: E402
from gpu.machine import Sampler  # noqa: E402
from gpu.parts import Outcome  # noqa: E402
from gpu.plans import STRATEGIES  # noqa: E402
from gpu.profile import with_measured  # noqa: E402
from gpu.run import NOTHING, exit_code, run  # noqa: E402
from gpu.setting import BUILT_IN, built_in, make_setting  # noqa: E402

from shardwise.errors import BadInput  # noqa: E402
from shardwise.hardware import (  # noqa: E402
    hardware_document,
    hardware_from_document,
    load_hardware,
)

ROOT = Path(__file__).parents[3]
KINDS = {
    "host": "floor", "products": "product", "attention": "attention", "operators": "operators",
    "plans": "plan",
}  # fmt: skip

BREAKING = """
import os

def broken(setting, work):
    work.tell("step", {"model": "none", "step_s": 1.0})
    raise ValueError("as asked\\nand more")

def dying(setting, work):
    os.abort()

def endless(setting, work):
    work.tell("doing", "waiting")
    while True:
        pass

def quick(setting, work):
    work.tell("step", {"model": "small", "step_s": 2.0})
"""
RUN = """
import sys
from dataclasses import replace
from pathlib import Path
import breaking
from benchmarks.gpu import run
from benchmarks.gpu.parts import Part

parts, make = run.parts, run.make_setting
whole = sys.argv[2] == "whole"

def with_broken(setting):
    first = [Part(f.__name__, 0.1, f) for f in (breaking.broken, breaking.dying, breaking.endless)]
    others = parts(setting) if whole else [Part("quick", 300, breaking.quick)]
    return [*first, *others]

def small(*arguments):
    setting = make(*arguments)
    return replace(setting, stepped=setting.stepped[:1], tabled=setting.tabled[:1], compiled=())

run.parts, run.make_setting = with_broken, small
sys.exit(run.run("cpu", True, 500.0, Path(sys.argv[1])))
"""


def called(*arguments: str, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{path}"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report, and its parts by name; the profile is one that commands take."""
    report = msgspec.json.decode((folder / "report.json").read_bytes())
    profile = load_hardware(str(folder / "profile.json"))
    assert profile.operators
    assert profile.sources["operators"].startswith("measured on")
    assert profile.host is None
    return report, {part["name"]: part for part in report["parts"]}


def check_rows(parts: dict[str, Any]) -> None:
    """Every part told rows of its kind, and what it measured is positive."""
    for part, kind in KINDS.items():
        assert parts[part]["error"] == ""
        assert parts[part]["rows"][kind]
    steps = {name for name in parts if name.startswith("steps of ")}
    assert steps
    for part in (*KINDS, *steps):
        for rows in parts[part]["rows"].values():
            for row in rows:
                for name, value in row.items():
                    if name.endswith(("_s", "utilisation", "bytes")) and value is not None:
                        assert value > 0, (part, row)
    ran = parts["plans"]["rows"]["plan"]
    assert [row["strategy"] for row in ran] == [strategy.name for strategy in STRATEGIES]
    assert all(abs(row["peak_error"]) < 0.05 and row["backend"] == "gloo" for row in ran)
    for part in steps:
        row = parts[part]["rows"]["step"][0]
        assert row["how"] == "eager"
        assert abs(row["peak_error"]) < 0.05
        assert row["profile_error"] == row["profile_s"] / row["step_s"] - 1.0


def check_broken(parts: dict[str, Any]) -> None:
    assert parts["broken"]["error"] == "ValueError: as asked"
    assert parts["broken"]["rows"] == {"step": [{"model": "none", "step_s": 1.0}]}
    assert parts["dying"]["error"] == "its process ended with -6"
    assert "while waiting" in parts["endless"]["error"]


def test_a_part_that_fails_dies_or_hangs_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "breaking.py").write_text(BREAKING)
    out = tmp_path / "out"
    done = called("-c", RUN, str(out), "broken", path=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    report = msgspec.json.decode((out / "report.json").read_bytes())
    parts = {part["name"]: part for part in report["parts"]}
    check_broken(parts)
    assert parts["quick"]["rows"] == {"step": [{"model": "small", "step_s": 2.0}]}
    assert parts["quick"]["error"] == ""
    page = (out / "report.md").read_text()
    assert all(f"| {name} |" in page for name in ("broken", "dying", "endless"))
    assert "its process ended with -6" in page


@pytest.mark.full
def test_all_parts_go_on_behind_one_that_hangs(tmp_path: Path) -> None:
    (tmp_path / "breaking.py").write_text(BREAKING)
    out = tmp_path / "out"
    done = called("-c", RUN, str(out), "whole", path=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    report, parts = read(out)
    check_broken(parts)
    check_rows(parts)
    page = (out / "report.md").read_text()
    for part in report["parts"]:
        assert f"| {part['name']} |" in page
    assert "its process ended with -6" in page
    assert "compiled: not in this run" in page
    assert "Nothing was measured." in page.partition("## Power")[2]


@pytest.mark.full
def test_a_quick_run_on_a_cpu(tmp_path: Path) -> None:
    done = called("-m", "benchmarks.gpu", "--device", "cpu", "--quick", "-o", str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    _, parts = read(tmp_path)
    check_rows(parts)
    how = [row["how"] for part in parts.values() for row in part["rows"].get("step", [])]
    assert how.count("eager") == 5
    assert "compiled" in how
    assert "eager, channels last" in how


def test_without_a_gpu_there_is_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said: list[str] = []
    assert run("auto", False, 600.0, tmp_path / "out", said.append) == 0
    assert said == [NOTHING]
    for device, quick in (("cuda", True), ("cpu", False)):
        with pytest.raises(BadInput, match="device"):
            run(device, quick, 600.0, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_only_a_run_that_told_nothing_is_a_failure() -> None:
    failed, partly = Outcome("a", 0.0, error="no"), Outcome("b", 0.0, error="no", rows={"x": [{}]})
    assert exit_code([failed, failed]) == 1
    assert exit_code([failed, partly]) == 0


@pytest.mark.parametrize(
    ("name", "gib", "profile"),
    [
        ("NVIDIA H100 80GB HBM3", 79.1, "dgx-h100"),
        ("NVIDIA H100 PCIe", 79.1, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9.8, None),
        ("NVIDIA H200", 139.8, "h200-8"),
        ("NVIDIA GH200 144G HBM3e", 140.0, None),
        ("NVIDIA A100-SXM4-40GB", 39.4, "dgx-a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "dgx-a100-80gb"),
        ("Tesla V100-SXM2-32GB", 31.7, "dgx1-v100-32gb"),
        ("NVIDIA B200", 178.4, "b200-8"),
        ("NVIDIA L4", 22.0, "l4"),
        ("NVIDIA L40S", 44.4, None),
    ],
)
def test_a_gpu_is_known_by_its_name_and_memory(name: str, gib: float, profile: str | None) -> None:
    assert built_in(name, gib * 2**30) == profile
    assert profile is None or profile in BUILT_IN


def test_batches_grow_with_memory() -> None:
    batches = [
        make_setting("cuda", False, "bfloat16", load_hardware(name)).stepped[0].batch
        for name in ("l4", "dgx-a100-40gb", "dgx-h100")
    ]
    assert batches == [8, 16, 32]


def test_what_was_measured_is_in_the_profile_with_its_source() -> None:
    base = load_hardware("dgx-h100")
    floors = [{"operator_s": seconds} for seconds in (2e-5, 3e-5, 9e-5)]
    rows = {"floor": floors, "sustained": [{"sustained_clock": 0.81, "side": 8192}]}
    outcome = Outcome("all", 0.0, rows=rows)
    measured = with_measured(base, outcome, {"name": "NVIDIA H100"}, "cuda")
    again = hardware_from_document(hardware_document(measured))
    assert base.host is not None and again.host is not None
    assert again.host.operator_s == 3e-5
    assert again.host.collective_s == base.host.collective_s
    assert again.devices[0].sustained_clock == 0.81
    assert "3 stacks" in again.sources["host"]
    assert "NVIDIA H100" in again.sources["devices.sustained_clock"]
    assert with_measured(base, outcome, {"name": "a CPU"}, "cpu").host == base.host


def test_power_and_clocks_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetPowerManagementLimit=lambda handle: 700_000,
        nvmlDeviceGetMaxClockInfo=lambda handle, clock: 1980,
        nvmlDeviceGetPowerUsage=lambda handle: 650_500,
        nvmlDeviceGetClockInfo=lambda handle, clock: 1410,
        nvmlDeviceGetTemperature=lambda handle, sensor: 61,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x4,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    sampler = Sampler("1234")
    sampler.stop()
    assert sampler.facts == {
        "driver": "580.1", "power limit": "700 W", "highest clock": "1980 MHz",
    }  # fmt: skip
    row = sampler.during(0.0, float("inf"))
    assert (row["W"], row["least MHz"], row["most °C"]) == (650.5, 1410, 61)
    assert row["power-limited share"] == 1.0
    assert sampler.during(0.0, 1.0) == {}


def test_a_gpu_without_nvml_has_no_power(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sampler = Sampler("1234")
    sampler.stop()
    assert sampler.facts["NVML"].startswith("ModuleNotFoundError")
    assert sampler.during(0.0, float("inf")) == {}
