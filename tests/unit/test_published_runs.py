"""The table of published training steps: complete, quoted, converted, refused where wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from published.runs import FILE, Run, iteration_seconds, read_published

from shardwise.errors import BadInput
from shardwise.hardware import load_hardware

RUNS = read_published().runs


def test_there_are_runs_of_every_kind() -> None:
    assert len(RUNS) >= 12
    devices = {run.hardware for run in RUNS}
    for kind in ("v100", "a100", "h100"):
        assert any(kind in device for device in devices)
    assert {run.gpus for run in RUNS} >= {1, 8, 64, 128, 512}
    assert any(run.tensor_parallel == 8 for run in RUNS)
    assert {run.zero for run in RUNS} >= {0, 1, 2, 3}
    assert sum(run.memory_bytes is not None for run in RUNS) >= 5


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_run_is_complete(run: Run) -> None:
    assert run.quote and run.note and run.source
    hardware = load_hardware(run.hardware)
    assert run.gpus <= hardware.per_node * hardware.max_nodes
    assert run.tensor_parallel <= hardware.per_node
    assert 0.01 < run.iteration_s < 100.0
    if run.memory_bytes is not None:
        assert run.memory_bytes < hardware.devices[0].memory_bytes
    # The published step does not use more than the peak: six operations of every parameter
    # and token are less than what is computed.
    if run.parameters:
        operations = 6 * run.parameters * run.batch * run.seq
        peak = hardware.devices[0].peak(run.dtype) * run.gpus
        assert 0.15 < operations / run.iteration_s / peak < 0.75


def test_conversions_to_the_time_of_an_iteration() -> None:
    # ResNet-50: 256 images at 1,200 a second. Mosaic's 7b: 48 sequences of 2,048 tokens on 8
    # GPUs at 10,643 tokens a second and GPU are 41.6 sequences a second (published: 41).
    assert iteration_seconds(1200.0, "samples/s", 256, 0, 1) == pytest.approx(0.21333, rel=1e-4)
    per_gpu = iteration_seconds(10643.0, "tokens/s/gpu", 48, 2048, 8)
    assert per_gpu == pytest.approx(48 * 2048 / 8 / 10643)
    assert 48 / per_gpu == pytest.approx(41.57, rel=1e-3)
    whole = iteration_seconds(8 * 10643.0, "tokens/s", 48, 2048, 8)
    assert whole == pytest.approx(per_gpu)
    assert iteration_seconds(1121.0, "ms", 8, 1024, 1) == pytest.approx(1.121)
    assert iteration_seconds(1.42, "s", 4, 2048, 8) == 1.42
    with pytest.raises(BadInput, match="unknown unit 'minutes'"):
        iteration_seconds(1.0, "minutes", 1, 1, 1)


SOURCE = '[[source]]\nkey = "a"\ntitle = "A"\naddress = "https://a"\nversion = "1"\n'
RUN = """[[run]]
name = "one"
source = "a"
quote = "8 GPUs: 6,667 tokens/s and 77.0 GiB"
figure = 6667.0
unit = "tokens/s/gpu"
capture = "zoo:mlp"
seq = 128
dtype = "float32"
optimizer = "adam"
batch = 16
gpus = 8
data_parallel = 8
hardware = "dgx-h100"
note = "n"
memory_figures = [77.0]
memory_kind = "peak"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "runs.toml"
    path.write_text(text)
    return path


def test_a_small_file_is_read(tmp_path: Path) -> None:
    published = read_published(written(tmp_path, SOURCE + RUN))
    assert published.runs[0].memory_bytes == 77 * 2**30
    assert published.sources["a"].title == "A"


@pytest.mark.parametrize(
    ("old", "new", "field", "problem"),
    [
        ("figure = 6667.0", "figure = 6668.0", "figure", "6668 is not in the quote"),
        ("[77.0]", "[78.0]", "memory_figures", "78 is not in the quote"),
        ("gpus = 8", "gpus = 16", "gpus", "16 GPUs for 8 data-parallel"),
        ("batch = 16", "batch = 17", "batch", "17 samples are not the same number"),
        ("batch = 16", 'batch = "many"', "batch", "Expected 'int'"),
        ('optimizer = "adam"', 'optimizer = "lamb"', "optimizer", "unknown optimizer 'lamb'"),
        ('dtype = "float32"', 'dtype = "tf32"', "dtype", "unknown dtype 'tf32'"),
        ('unit = "tokens/s/gpu"', 'unit = "mph"', "unit", "unknown unit 'mph'"),
        ("seq = 128", "", "seq", "no sequence length"),
        ('source = "a"', 'source = "b"', "source", "no source 'b'"),
        ('note = "n"', 'note = " "', "note", "nothing is said"),
        ('note = "n"', "", "note", "missing"),
        ('note = "n"', 'note = "n"\nbatchs = 1', "batchs", "unknown field"),
        ('memory_kind = "peak"', "", "memory_kind", "belong together"),
        ('note = "n"', 'note = "n"\nzero = 4', "zero", "4"),
        (
            'note = "n"',
            'note = "n"\nsequence_parallel = true',
            "sequence_parallel",
            "without tensor parallelism",
        ),
    ],
)
def test_errors_name_the_file_the_run_and_the_field(
    tmp_path: Path, old: str, new: str, field: str, problem: str
) -> None:
    assert old in RUN
    path = written(tmp_path, SOURCE + RUN.replace(old, new))
    with pytest.raises(BadInput) as caught:
        read_published(path)
    line = str(caught.value)
    assert str(path) in line
    assert "run one" in line
    assert field in line
    assert problem in line


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SOURCE + RUN + RUN, "the name 'one' is given twice"),
        (SOURCE + SOURCE + RUN, "the key 'a' is given twice"),
        (SOURCE, "no [[run]]"),
        (RUN, "no [[source]]"),
        (SOURCE + RUN + "[other]\n", "unknown table 'other'"),
        ("[[run", "TOML"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        read_published(path)
    assert problem in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_shipped_file_is_the_default() -> None:
    assert FILE.name == "runs.toml"
    assert read_published(FILE).runs == RUNS
