"""Measured kernels of the package aiconfigurator-core as tables of a profile.

Distillation is tested on kernels of known utilisation, reading on a small package written here
(which needs pyarrow), and the shipped tables against the package itself where it is installed.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from shardwise.cli.main import cli
from shardwise.errors import BadInput
from shardwise.hardware import hardware_document, hardware_from_document, load_hardware
from shardwise.hardware.attention import AttentionTable
from shardwise.hardware.imports import import_measurements, kernel_files
from shardwise.hardware.imports.distil import even_knots, fitted
from shardwise.hardware.imports.kernel_files import Kernels
from shardwise.hardware.imports.kernel_tables import (
    attention_rows,
    attention_table,
    collective_tables,
    product_table,
)
from shardwise.hardware.products import ProductTable

PEAK, BANDWIDTH = 1e15, 3e12
Floats = NDArray[np.float64]


def sizes(count: int, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """Returns m, n and k of random products."""
    drawn = np.random.default_rng(seed).uniform(np.log(16), np.log(32768), (3, count))
    m, n, k = np.round(np.exp(drawn))
    return m, n, k


def smooth(m: Floats, n: Floats, k: Floats) -> Floats:
    """Returns utilisations that fall towards small products."""
    return 0.8 / ((1 + 300 / m) * (1 + 200 / n) ** 0.5 * (1 + 100 / k) ** 0.5)


def products(m: Floats, n: Floats, k: Floats, utilisation: Floats) -> Kernels:
    """Returns measured products in bfloat16, with milliseconds as the package has."""
    moved_s = 2 * (m * k + k * n + m * n) / BANDWIDTH
    seconds = np.maximum(2 * m * n * k / PEAK, moved_s) / utilisation
    columns = {"m": m, "n": n, "k": k, "latency": seconds * 1e3}
    return Kernels("gemm.parquet", "vllm", "1", columns)


def distilled(kernels: Kernels) -> ProductTable:
    return product_table(kernels, "bfloat16", 2, PEAK, BANDWIDTH)


def test_a_table_is_recovered_from_kernels_that_follow_it() -> None:
    m, n, k = sizes(20_000)
    knots = [even_knots(axis, 9) for axis in (m, n, k)]
    at = np.meshgrid(*(np.array(axis) for axis in knots), indexing="ij")
    truth = ProductTable("bfloat16", *knots, tuple(smooth(*at).ravel().tolist()))
    found = distilled(products(m, n, k, truth.of(m, n, k)))
    assert (found.m, found.n, found.k) == (truth.m, truth.n, truth.k)
    off = np.log(found.of(m, n, k) / truth.of(m, n, k))
    assert np.abs(off).max() < 0.03
    assert np.median(np.abs(off)) < 0.003


def test_kernels_that_were_left_out_are_predicted() -> None:
    m, n, k = sizes(12_000)
    noise = np.exp(np.random.default_rng(1).normal(0, 0.03, len(m)))
    table = distilled(products(m, n, k, smooth(m, n, k) * noise))
    others = sizes(2_000, seed=2)
    off = np.abs(np.log(table.of(*others) / smooth(*others)))
    assert np.median(off) < 0.02
    assert np.quantile(off, 0.9) < 0.06


def test_knots_without_kernels_nearby_continue_the_others() -> None:
    m, n, k = sizes(5_000)
    near = m * n * k > 1e7
    table = distilled(products(m[near], n[near], k[near], smooth(m, n, k)[near]))
    assert min(table.utilisation) > 0 and max(table.utilisation) < 2


def test_one_size_alone_is_refused() -> None:
    m, n, k = sizes(100)
    one = np.full_like(m, 64.0)
    with pytest.raises(BadInput, match=r"gemm\.parquet: m: got 64 to 64"):
        distilled(products(one, n, k, smooth(m, n, k)))


def test_a_fit_has_its_last_axis_fastest() -> None:
    knots = ((1.0, 2.0), (1.0, 10.0, 100.0))
    a, b = (axis.ravel() for axis in np.meshgrid([1.0, 2.0], [1.0, 10.0, 100.0], indexing="ij"))
    many = [np.tile(axis, 1000) for axis in (a, b)]
    assert fitted(knots, many, 0.1 * many[0] * many[1] ** 0.1) == pytest.approx(
        0.1 * a * b**0.1, rel=0.01
    )


def attentions(**more: int) -> Kernels:
    """Returns measured attention: 8 query heads for one of keys and values, and one for one, which
    takes twice as long; each by two kernels. `more` are columns of one value."""
    rows = [
        (batch, length, heads, kv, slower)
        for batch in 2 ** np.arange(12)
        for length in (1, 16, 64, 256, 1024, 4096, 16384)
        for heads in (8, 16, 32, 64)
        for kv in (heads // 8, heads)
        for slower in (1.5, 1.0)
    ]
    batch, length, heads, kv, slower = (np.array(column) for column in zip(*rows, strict=True))
    seconds = 2.0 * batch * heads * length**2.0 * 128 / PEAK / reached(length)
    columns = {
        "attn_dtype": np.full(len(rows), "bfloat16"),
        "kv_cache_dtype": np.full(len(rows), "bfloat16"),
        "batch_size": batch,
        "isl": length,
        "num_heads": heads,
        "num_key_value_heads": kv,
        "latency": seconds * np.where(kv == heads, 2.0, 1.0) * slower * 1e3,
    }
    same = {"head_dim": 128, "step": 0, **more}
    columns |= {name: np.full(len(rows), value) for name, value in same.items()}
    return Kernels("attention.parquet", "sglang", "1", columns)


def reached(length: Any) -> Floats:
    """Returns utilisations of attention over sequences of some length."""
    return np.asarray(0.7 * (length / 16384) ** 0.3)


def test_attention_is_that_of_the_fastest_kernels_with_few_heads_of_keys() -> None:
    (chosen,) = attention_rows(attentions(window_size=0)).values()
    assert len(chosen) == 12 * 6 * 4
    table = attention_table(chosen, 128, PEAK)
    assert (table.dtype, table.head_size) == ("bfloat16", 128)
    lengths = np.array([64.0, 1024.0, 16384.0, 1e9])
    found = table.of(np.array([32.0, 1000.0, 1e9, 1e9]), lengths)
    assert found == pytest.approx(reached(np.minimum(lengths, 16384)), rel=0.05)


@pytest.mark.parametrize("more", [{"window_size": 128}, {"step": 1}, {"head_dim": 80}])
def test_other_attention_does_not_count(more: dict[str, int]) -> None:
    assert attention_rows(attentions(**more)) == {}


def test_the_nearest_size_of_a_head_counts() -> None:
    tables = tuple(
        AttentionTable("bfloat16", size, (1.0, 2.0), (16.0, 32.0), (0.1,) * 4)
        for size in (64.0, 128.0, 256.0)
    )
    device = replace(load_hardware("l4").devices[0], attention=tables)
    for size, nearest in ((16, 64), (80, 64), (96, 128), (128, 128), (512, 256)):
        for dtype in ("bfloat16", "float16"):
            table = device.attention_table(dtype, size)
            assert table is not None and table.head_size == nearest
    assert device.attention_table("float32", 64) is None


def test_collectives_are_in_bytes_and_never_faster_for_more() -> None:
    elements = 256 * 4 ** np.arange(12)
    latency = 0.01 + elements / 1e9
    latency[3] = 1.0
    count = len(elements)
    columns = {
        "nccl_dtype": np.full(2 * count, "half"),
        "op_name": np.repeat(["alltoall", "all_reduce"], count),
        "num_gpus": np.repeat([4, 16], count),
        "message_size": np.tile(elements, 2),
        "latency": np.tile(latency, 2),
    }
    columns["nccl_dtype"][0] = "int8"
    (table,) = collective_tables(Kernels("nccl.parquet", "nccl", "1", columns), 8)
    assert (table.operation, table.nodes, table.ranks_per_node) == ("all_to_all", 1, 4)
    assert table.sizes_bytes == tuple(2.0 * 4**i for i in range(5, 15))
    assert list(table.times_s) == sorted(table.times_s)
    assert table.times_s[-1] == pytest.approx(1e-3 * (0.01 + 4**14 / 1e9), rel=1e-3)


# Reading the package: a small one, written here.

SYSTEMS = ("h100_sxm", "l40s")
DEVICES = {"h100_sxm": "NVIDIA H100 80GB HBM3", "l40s": "NVIDIA L40S"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of systems of a small package, which is installed for the test."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("yaml")
    root = tmp_path / "site"
    systems = root / "aiconfigurator_core" / "systems"
    systems.mkdir(parents=True)
    (root / "aiconfigurator_core" / "__init__.py").write_text("raise RuntimeError('run')\n")
    about = root / "aiconfigurator_core-9.8.7.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: aiconfigurator-core\nVersion: 9.8.7\n"
    )
    for system in SYSTEMS:
        m, n, k = sizes(800)
        whole = {name: axis.astype(np.int64) for name, axis in zip("mnk", (m, n, k), strict=True)}
        for version, faster in (("0.9.1", 1.0), ("0.24.0", 2.0)):
            kernels = products(m, n, k, smooth(m, n, k) * faster / 2)
            columns = {
                "gemm_dtype": ["bfloat16"] * len(m),
                **whole,
                "device": [DEVICES[system]] * len(m),
            }
            write(
                systems,
                system,
                "gemm/vllm",
                version,
                "gemm_perf",
                {**columns, "latency": kernels.columns["latency"]},
            )
        (systems / f"{system}.yaml").write_text(
            "gpu:\n  mem_bw: 3350000000000\n  bfloat16_tc_flops: 989000000000000\n"
        )
    monkeypatch.syspath_prepend(str(root))
    return systems


def write(systems: Path, system: str, kind: str, version: str, name: str, columns: Any) -> Path:
    """Writes a table of the package."""
    from pyarrow import parquet, table

    path = systems / "data" / system / kind / version / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table({key: list(column) for key, column in columns.items()}), path)
    return path


def gemm(systems: Path) -> Path:
    return systems / "data" / "h100_sxm" / "gemm" / "vllm" / "0.24.0" / "gemm_perf.parquet"


def test_a_system_is_imported_with_its_newest_version(package: Path) -> None:
    profile = import_measurements(["h100_sxm"], "aiconfigurator")
    assert profile.name == "dgx-h100-imported"
    table = profile.devices[0].product_table("bfloat16")
    assert table is not None
    large = np.array([8192.0])
    base = load_hardware("dgx-h100").devices[0]
    scale = PEAK / base.peak("bfloat16")
    assert table.of(large, large, large) == pytest.approx(
        smooth(large, large, large) * scale, rel=0.1
    )
    source = profile.sources["devices.products.bfloat16"]
    for part in (
        "aiconfigurator-core 9.8.7",
        "Apache-2.0",
        "h100_sxm",
        "800",
        "vllm 0.24.0",
        "HBM3",
    ):
        assert part in source
    # What the package does not have stays as the base has it.
    assert profile.devices[0].product_table("float8_e4m3fn") == base.product_table("float8_e4m3fn")
    assert profile.devices[0].attention == base.attention
    again = hardware_from_document(json.loads(json.dumps(hardware_document(profile))))
    assert again.id == profile.id


def test_another_memory_has_the_utilisations_of_the_gpu_measured(package: Path) -> None:
    """What memory bounds then takes longer as the profile's memory is slower."""
    tables = [
        import_measurements(["h100_sxm"], "aiconfigurator", base)
        .devices[0]
        .product_table("bfloat16")
        for base in ("dgx-h100", "grand-teton-h100-96gb")
    ]
    first, second = (table.utilisation for table in tables if table is not None)
    assert first == pytest.approx(second, rel=0.02)


def test_the_command_writes_a_profile(package: Path, tmp_path: Path) -> None:
    output = tmp_path / "profile.json"
    arguments = ["hardware", "import", "h100_sxm", "--format", "aiconfigurator", "-o", str(output)]
    shown = CliRunner().invoke(cli, arguments)
    assert shown.exit_code == 0, shown.output
    assert "measured products: bfloat16" in shown.output
    assert load_hardware(str(output)).measurement["imported"] == ["h100_sxm"]


@pytest.mark.parametrize(
    ("systems", "base", "group", "message"),
    [
        (["h100"], None, None, "no system 'h100'.* one of h100_sxm, l40s"),
        (["../../x"], None, None, "no system"),
        (["h100_sxm", "l40s"], None, None, "2 systems"),
        (["l40s"], None, None, "base: the files name NVIDIA L40S"),
        (["h100_sxm"], None, (1, 8), "group"),
    ],
)
def test_what_is_refused(
    package: Path, systems: list[str], base: str | None, group: Any, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        import_measurements(systems, "aiconfigurator", base, group=group)


def test_a_broken_file_is_named(package: Path) -> None:
    gemm(package).write_bytes(b"PAR1 nothing of the kind")
    with pytest.raises(BadInput, match=r"gemm_perf\.parquet: cannot be read"):
        import_measurements(["h100_sxm"], "aiconfigurator")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"latency": [1.0, -1.0]}, "latency: got -1.0"),
        ({"latency": [1.0, float("nan")]}, "latency: got nan"),
        ({"latency": [1.0, float("inf")]}, "latency: got inf"),
        ({"latency": [1.0, None]}, "latency: got None"),
        ({"m": [1.5, 2.5]}, "m: got 1.5"),
        ({"m": [1, 2**50]}, "m: got"),
        ({"m": ["1", "2"]}, "m: got '1'"),
        ({"gemm_dtype": [1, 2]}, "gemm_dtype: not all are words"),
        ({"gemm_dtype": ["fp8", "fp8"]}, "no products in bfloat16"),
        ({"k": None}, "no column k"),
        (
            {key: [] for key in ("gemm_dtype", "m", "n", "k", "latency")},
            "the file has no measured kernels",
        ),
    ],
)
def test_a_wrong_column_is_named(package: Path, changed: dict[str, Any], message: str) -> None:
    columns = {
        "gemm_dtype": ["bfloat16"] * 2,
        "m": [1, 2],
        "n": [1, 2],
        "k": [1, 2],
        "latency": [1.0, 2.0],
    }
    given = {key: value for key, value in {**columns, **changed}.items() if value is not None}
    gemm(package).unlink()
    write(package, "h100_sxm", "gemm/vllm", "0.24.0", "gemm_perf", given)
    with pytest.raises(BadInput, match=message):
        import_measurements(["h100_sxm"], "aiconfigurator")


def test_more_rows_than_there_can_be_are_refused(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_files, "MAX_ROWS", 700)
    with pytest.raises(BadInput, match="800 rows"):
        import_measurements(["h100_sxm"], "aiconfigurator")


@pytest.mark.parametrize(
    "text", ["gpu: [", "gpu: 3", "gpu:\n  mem_bw: -1\n  bfloat16_tc_flops: 1", "- a"]
)
def test_wrong_figures_of_a_gpu_are_named(package: Path, text: str) -> None:
    (package / "h100_sxm.yaml").write_text(text)
    with pytest.raises(BadInput, match=r"h100_sxm\.yaml"):
        import_measurements(["h100_sxm"], "aiconfigurator", "grand-teton-h100-96gb")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_files.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"aiconfigurator_core.*shardwise\[silicon\]"):
        import_measurements(["h100_sxm"], "aiconfigurator")


# The shipped tables.

SHIPPED = {
    "b200-8": "b200_sxm",
    "dgx-a100-40gb": "a100_sxm",
    "dgx-a100-80gb": "a100_sxm",
    "dgx-h100": "h100_sxm",
    "gb200-nvl72": "gb200",
    "grand-teton-h100-96gb": "h100_sxm",
    "h100-superpod": "h100_sxm",
    "h200-8": "h200_sxm",
}
VERSION = "0.12.0"


def installed_version() -> str | None:
    if importlib.util.find_spec("aiconfigurator_core") is None:
        return None
    try:
        return metadata.version("aiconfigurator-core")
    except metadata.PackageNotFoundError:
        return None


@pytest.mark.parametrize("name", SHIPPED)
def test_the_command_gives_the_shipped_tables(name: str) -> None:
    if installed_version() != VERSION:
        pytest.skip(f"needs aiconfigurator-core {VERSION}")
    pytest.importorskip("pyarrow")
    shipped = load_hardware(name)
    bare = replace(
        shipped,
        devices=tuple(replace(d, products=(), attention=()) for d in shipped.devices),
        collectives=(),
    )
    made = import_measurements([SHIPPED[name]], "aiconfigurator", name)
    assert bare.devices != shipped.devices
    assert made.devices == shipped.devices
    assert made.collectives == shipped.collectives
    for field, source in made.sources.items():
        assert shipped.sources[field].startswith(source)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_tables_have_sources_and_sound_figures(name: str) -> None:
    profile = load_hardware(name)
    device = profile.devices[0]
    notice = resources.files("shardwise") / "data" / "hardware" / "NOTICE.md"
    assert f"`{name}`" in notice.read_text("utf-8")
    assert "measured by NVIDIA" in profile.provenance
    fields = [
        *(f"devices.products.{table.dtype}" for table in device.products),
        *(f"devices.attention.{table.head_size:g}" for table in device.attention),
        "collectives",
    ]
    for field in fields:
        assert f"aiconfigurator-core {VERSION}" in profile.sources[field]
        assert SHIPPED[name] in profile.sources[field]
    assert "devices.sustained_clock" in profile.sources
    large = np.array([8192.0])
    for products_table in device.products:
        assert 0.4 < products_table.of(large, large, large)[0] < 1
    for attention in device.attention:
        assert 0.25 < attention.of(np.array([512.0]), large)[0] < 0.75
    for table in profile.collectives:
        assert list(table.times_s) == sorted(table.times_s)
        assert len(json.dumps(table.times_s + table.sizes_bytes)) < 1000


def test_one_chip_has_one_table() -> None:
    for one, other in (("dgx-a100-80gb", "dgx-a100-40gb"), ("dgx-h100", "h100-superpod")):
        assert load_hardware(one).devices[0].products == load_hardware(other).devices[0].products


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"head_size": 0}, r"attention\[0\].head_size"),
        ({"heads": [2.0, 1.0]}, r"attention\[0\].heads"),
        ({"lengths": [16.0]}, r"attention\[0\].lengths"),
        ({"utilisation": [0.1]}, r"attention\[0\].utilisation"),
        ({"utilisation": [0.1, 0.1, 0.1, 0.0]}, r"attention\[0\].utilisation"),
    ],
)
def test_a_wrong_attention_table_is_named(changed: dict[str, Any], field: str) -> None:
    good = {
        "dtype": "bfloat16",
        "head_size": 128,
        "heads": [1.0, 2.0],
        "lengths": [16.0, 32.0],
        "utilisation": [0.1, 0.2, 0.3, 0.4],
    }
    document = hardware_document(load_hardware("l4"))
    document["devices"][0]["attention"] = [good]
    assert hardware_from_document(document).devices[0].attention[0].heads == (1.0, 2.0)
    document["devices"][0]["attention"] = [{**good, **changed}]
    with pytest.raises(BadInput, match=field):
        hardware_from_document(document)
