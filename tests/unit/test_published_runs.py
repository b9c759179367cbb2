"""The tables of published training steps: complete, quoted, converted, refused where wrong."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import msgspec
import pytest
from published.checks import is_quoted
from published.reading import FOLDER, LEAST_ROWS, Published, read_published
from published.run import Run, iteration_seconds

from harness.cases import every
from shardwise.cost.software import FRAMEWORKS
from shardwise.errors import BadInput
from shardwise.hardware import load_hardware
from shardwise.pipeline.schedules import allows

PUBLISHED = read_published()
RUNS = PUBLISHED.runs
SLOWER = 1.5
"""A larger micro-batch of the same strategy that takes this much longer is an outlier."""


def test_there_are_runs_of_every_kind() -> None:
    assert len(RUNS) >= 150
    devices = {run.hardware for run in RUNS}
    for kind in ("v100", "a100", "h100", "b200"):
        assert any(kind in device for device in devices)
    assert {run.gpus for run in RUNS} >= {1, 8, 64, 128, 512}
    assert any(run.tensor_parallel == 8 for run in RUNS)
    assert {run.zero for run in RUNS} >= {0, 1, 2, 3}
    assert {run.framework for run in RUNS} == set(FRAMEWORKS)
    assert sum(run.memory_bytes is not None for run in RUNS) >= 50


def test_no_source_has_most_of_the_runs() -> None:
    assert len({PUBLISHED.project(run) for run in RUNS}) >= 15
    for piped in (False, True):
        projects = [PUBLISHED.project(run) for run in RUNS if piped == (run.pipeline_parallel > 1)]
        most = sorted(projects.count(project) for project in set(projects))
        assert most[-3] <= 46, "all but the grid and the pages that are whole"


LAYERS = {
    "llama3-70b": 80, "llama3-405b": 126, "gpt-oss-120b": 36, "qwen3-30b-a3b": 48,
    "qwen3-235b-a22b": 94, "deepseek-v3": 61, "kimi-k2": 61,
}  # fmt: skip
"""Of the models that rows name."""


def test_pipelines_have_equal_layers() -> None:
    """All stages but the first and the last of rows that say what these have."""
    piped = [run for run in RUNS if run.pipeline_parallel > 1]
    assert len(piped) >= 70 and sum(run.virtual_stages > 1 for run in piped) >= 15
    for run in piped:
        written = re.findall(r"num_hidden_layers=(\d+)", run.capture)
        layers = int(written[0]) if written else LAYERS[run.capture]
        stages = run.pipeline_parallel * run.virtual_stages - len(run.end_layers)
        assert (layers - sum(run.end_layers)) % stages == 0
        assert allows(
            run.schedule,
            ranks=run.pipeline_parallel,
            micro_batches=run.micro_batches,
            stages_per_rank=run.virtual_stages,
        )


def test_grids_vary_the_strategy_alone() -> None:
    grids = PUBLISHED.grids()
    assert len(grids) >= 20
    assert max(len(runs) for runs in grids.values()) >= 15
    for runs in grids.values():
        assert len(runs) >= LEAST_ROWS
        assert len({strategy(run) for run in runs}) >= 3
        # Vocabularies that tensor parallelism pads apart, a grid has one model.
        captures = {run.capture.split("vocab_size")[0] for run in runs}
        assert len(captures) == 1


def strategy(run: Run) -> tuple[object, ...]:
    return (
        *(run.data_parallel, run.tensor_parallel, run.micro_batches, run.zero, run.zero_within),
        *(run.recompute, run.recompute_share, run.framework),
        *(run.pipeline_parallel, run.virtual_stages),
    )


def test_outliers_are_those_of_the_rule() -> None:
    """A larger micro-batch that takes much longer, and logs that stall, which no row has."""

    def but_the_micro_batch(run: Run) -> tuple[str, ...]:
        other = msgspec.structs.replace(
            run, name="", figure=1.0, micro_batches=1, quote="1", memory_figures=(), outlier=""
        )
        return (other.source, other.predicted_as)

    contradicted = set()
    for _, group in groupby(sorted(RUNS, key=but_the_micro_batch), but_the_micro_batch):
        runs = list(group)
        contradicted |= {
            run.name
            for run in runs
            for other in runs
            if run.micro_batch > other.micro_batch and run.iteration_s > SLOWER * other.iteration_s
        }
    outliers = {run.name for run in RUNS if run.outlier}
    assert contradicted
    assert contradicted <= outliers
    for name in outliers - contradicted:
        run = RUNS_BY_NAME[name]
        others = [o for o in RUNS if way(o) == way(run)]
        larger = [o for o in others if o.micro_batch > run.micro_batch]
        smaller = [o for o in others if o.micro_batch < run.micro_batch]
        slow = any(run.iteration_s > SLOWER * o.iteration_s for o in smaller)
        assert "log" in run.outlier or slow or any(
            run.iteration_s > SLOWER * o.micro_batch / run.micro_batch * o.iteration_s
            or (o.micro_batch >= 2 * run.micro_batch and o.pipeline_parallel > 1
                and o.iteration_s / o.micro_batches <= run.iteration_s / run.micro_batches / 0.9)
            for o in larger
        ), name  # fmt: skip


def way(run: Run) -> tuple[object, ...]:
    """What rows have in common whose micro-batches alone differ, whatever ZeRO's stage."""
    return (run.source, run.grid, run.gpus, run.data_parallel, run.tensor_parallel,
            run.pipeline_parallel)  # fmt: skip


RUNS_BY_NAME = {run.name: run for run in RUNS}


def test_every_run_is_complete() -> None:
    every(RUNS, check_complete, lambda run: run.name)


def check_complete(run: Run) -> None:
    assert run.quote and run.note and run.source
    hardware = load_hardware(run.hardware)
    assert run.gpus <= hardware.per_node * hardware.max_nodes
    assert run.tensor_parallel <= (run.per_node or hardware.per_node)
    assert 0.01 < run.iteration_s < 400.0
    if run.memory_bytes is not None:
        assert 2**29 < run.memory_bytes < hardware.devices[0].memory_bytes
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


@pytest.mark.parametrize(
    ("figure", "quote", "found"),
    [
        (6667.0, "TPS/GPU 6,667 | Memory", True),
        (374.045649, "8,16,4,1024,16,24,1024,8,1,1,374.045649", True),
        (58.8, "| + AdamW step | 58.8ms | 18.7ms (3.1x) |", True),
        (71.0, "71/80", True),
        (66.27, "| 66.27 * 8 GB |", True),
        (37.4, "37.4GiB", True),
        (80.0, "a100_80gb", False),
        (7.0, "47.0 | 70 | 7x", False),
        (2.0, "a_2s", False),
    ],
)
def test_figures_are_found_as_whole_numbers(figure: float, quote: str, found: bool) -> None:
    assert is_quoted(figure, quote) is found


def test_a_prediction_is_of_what_is_predicted() -> None:
    run = RUNS_BY_NAME["mpt-7b-a100-8"]
    said = msgspec.structs.replace(
        run, name="other", figure=1.0, unit="s", quote="1", note="other", grid="g", outlier="o"
    )
    assert said.predicted_as == run.predicted_as
    for changed in (
        {"batch": 192},
        {"framework": "compiled"},
        {"recompute": "full"},
        {"network_gbps": 100.0},
        {"per_node": 4},
        {"precision": "fp8:rowwise"},
        {"expert_parallel": 2},
        {"context_parallel": 2},
        {"end_layers": (1, 1)},
    ):
        assert msgspec.structs.replace(run, **changed).predicted_as != run.predicted_as


def test_numbers_are_fitted_to_dense_steps_in_16_bits() -> None:
    run = RUNS_BY_NAME["mpt-7b-a100-8"]
    assert run.is_fitted
    for changed in (
        {"precision": "fp8:rowwise"},
        {"expert_parallel": 2},
        {"context_parallel": 2},
        {"pipeline_parallel": 2},
    ):
        assert not msgspec.structs.replace(run, **changed).is_fitted


def test_experts_are_whole_where_a_row_says_so() -> None:
    run = RUNS_BY_NAME["bridge-nemotron-3-super-26.08-gb200-64-mxfp8"]
    assert run.parallelism.whole_experts and run.expert_devices == run.gpus == 64
    parts = msgspec.structs.replace(run, expert_parallel=8, expert_tensor_parallel=0)
    assert not parts.parallelism.whole_experts and parts.expert_devices == 16


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
GRID = """[[grid]]
grid = "g"
source = "a"
unit = "s"
capture = "zoo:mlp"
dtype = "float32"
optimizer = "adam"
batch = 16
gpus = 8
hardware = "dgx-h100"
note = "n"
columns = ["name", "data_parallel", "tensor_parallel", "figure", "quote"]
rows = [
  ["dp", 8, 1, 1.5, "1.5 s"],
  ["tp", 1, 8, 2.5, "2.5 s"],
  ["both", 4, 2, 2.0, "2.0 s"],
]
"""


def written(folder: Path, text: str, name: str = "runs.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_small_file_is_read(tmp_path: Path) -> None:
    published = read_published(written(tmp_path, SOURCE + RUN))
    assert published.runs[0].memory_bytes == 77 * 2**30
    assert published.sources["a"].title == "A"
    assert published.project(published.runs[0]) == "a"


def test_a_grid_is_its_rows_written_out(tmp_path: Path) -> None:
    published = read_published(written(tmp_path, SOURCE + GRID))
    assert [run.name for run in published.runs] == ["dp", "tp", "both"]
    assert [run.tensor_parallel for run in published.runs] == [1, 8, 2]
    assert {(run.batch, run.hardware, run.grid) for run in published.runs} == {
        (16, "dgx-h100", "g")
    }
    assert published.grids() == {"g": published.runs}


def test_sources_hold_in_all_files_of_a_folder(tmp_path: Path) -> None:
    written(tmp_path, RUN, "1.toml")
    written(tmp_path, SOURCE.replace('"1"', '"1"\nproject = "p"') + GRID, "2.toml")
    published = read_published(tmp_path)
    assert [run.name for run in published.runs] == ["one", "dp", "tp", "both"]
    assert {published.project(run) for run in published.runs} == {"p"}


def refused(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        read_published(path)
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    return line


@pytest.mark.parametrize(
    ("old", "new", "field", "problem"),
    [
        ("figure = 6667.0", "figure = 6668.0", "figure", "6668 is not in the quote"),
        ("[77.0]", "[78.0]", "memory_figures", "78 is not in the quote"),
        ("gpus = 8", "gpus = 16", "gpus", "16 GPUs for 8 data-parallel"),
        ("gpus = 8", "gpus = 8\npipeline_parallel = 2", "gpus", "and 2 pipeline ranks"),
        ("gpus = 8", "gpus = 16\npipeline_parallel = 2", "micro_batches", "1 micro-batches in a"),
        ("gpus = 8", "gpus = 8\nvirtual_stages = 2", "virtual_stages", "without a pipeline"),
        ("gpus = 8", "gpus = 8\npipeline_parallel = 0", "pipeline_parallel", "above 0"),
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
        ('note = "n"', 'note = "n"\nframework = "jax"', "framework", "unknown framework 'jax'"),
        ('note = "n"', 'note = "n"\nkernels = "best"', "kernels", "unknown kernels 'best'"),
        ('note = "n"', 'note = "n"\nmemory_unit = "kB"', "memory_unit", "unknown memory_unit"),
        ('note = "n"', 'note = "n"\nper_node = -1', "per_node", "-1"),
        ('note = "n"', 'note = "n"\nrecompute_share = 1.5', "recompute_share", "1.5"),
        (
            'note = "n"',
            'note = "n"\nrecompute_share = 0.5',
            "recompute_share",
            "a share of the layers of recompute 'none'",
        ),
        (
            'note = "n"',
            'note = "n"\nsequence_parallel = true',
            "sequence_parallel",
            "without tensor parallelism",
        ),
        ('note = "n"', 'note = "n"\nprecision = "fp9"', "precision", "unknown precision 'fp9'"),
        ("gpus = 8", "gpus = 8\ncontext_parallel = 2", "gpus", "2 context-parallel and 1 pipeline"),
        ("gpus = 8", "gpus = 8\nexpert_parallel = 16", "expert_parallel", "on 16 devices"),
        ("gpus = 8", "gpus = 8\nend_layers = [1, 1]", "end_layers", "got [1, 1]"),
        (
            "gpus = 8",
            'gpus = 8\nexpert_parallel = 2\nrecompute = "attention"',
            "recompute",
            "recompute 'attention' where experts or positions are divided",
        ),
    ],
)
def test_errors_name_the_file_the_run_and_the_field(
    tmp_path: Path, old: str, new: str, field: str, problem: str
) -> None:
    assert old in RUN
    line = refused(written(tmp_path, SOURCE + RUN.replace(old, new)))
    assert "run one" in line
    assert field in line
    assert problem in line


@pytest.mark.parametrize(
    ("old", "new", "where", "problem"),
    [
        ('"1.5 s"]', '"1.6 s"]', "run dp: figure", "1.5 is not in the quote"),
        (', "1.5 s"]', "]", "grid g: rows[0]", "4 values (expected 5, one for each of name"),
        ('"quote"]', '"quote", "name"]', "grid g: columns", "'name' is given twice"),
        ('"quote"]', '"quote", "batch"]', "grid g: columns", "'batch' is given twice"),
        ('columns = ["name"', 'column = ["name"', "grid g.columns", "missing"),
        ('["dp", 8', '["dp", "8"', "run dp.data_parallel", "Expected `int`"),
        ('["dp", 8', "[1, 8", "run number 1.name", "Expected `str`"),
        ('["tp"', '["dp"', "run.name", "the name 'dp' is given twice"),
        ('  ["both", 4, 2, 2.0, "2.0 s"],\n', "", "grid g", "2 runs (expected at least 3)"),
        ('note = "n"', 'note = "n"\nbatchs = 1', "run dp", "unknown field"),
    ],
)
def test_errors_of_a_grid_name_the_row(
    tmp_path: Path, old: str, new: str, where: str, problem: str
) -> None:
    assert old in GRID
    line = refused(written(tmp_path, SOURCE + GRID.replace(old, new))).replace("'int'", "`int`")
    assert where in line
    assert problem in line.replace("'str'", "`str`")


def test_a_grid_does_the_same_work(tmp_path: Path) -> None:
    columns = GRID.replace("batch = 16\n", "").replace('"quote"]', '"quote", "batch"]')
    text = columns.replace('1.5 s"]', '1.5 s", 8]').replace(' s"],', ' s", 16],')
    line = refused(written(tmp_path, SOURCE + text))
    assert "grid g: runs with batch 16 and 8 (expected one batch)" in line


def test_an_empty_grid_is_refused(tmp_path: Path) -> None:
    rows = GRID[GRID.index("rows = [") :]
    line = refused(written(tmp_path, SOURCE + GRID.replace(rows, "rows = []\n")))
    assert "grid g: rows: no row" in line


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SOURCE + RUN + RUN, "the name 'one' is given twice"),
        (SOURCE + SOURCE + RUN, "the key 'a' is given twice"),
        (SOURCE, "no [[run]]"),
        (RUN, "no source 'a'"),
        (SOURCE + RUN + "[other]\n", "unknown table 'other'"),
        ("run = 1\n" + SOURCE, "no [[run]]"),
        ("[[run", "TOML"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in refused(written(tmp_path, text))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    assert "no file" in refused(tmp_path)


def test_the_shipped_files_are_the_default() -> None:
    assert FOLDER.name == "runs"
    assert read_published(FOLDER) == PUBLISHED
    assert isinstance(PUBLISHED, Published)
