"""Published training steps: what was run, what was measured, where it was read.

The file's form is described at its head (runs.toml). Published throughputs become the time of
one iteration:

    samples/s     batch / figure
    tokens/s      batch · seq / figure
    tokens/s/gpu  batch · seq / (figure · gpus)
    ms, s         as they are

with batch the samples of one iteration of the whole job.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shardwise.cost.options import OPTIMIZER_STATE_BYTES
from shardwise.errors import BadInput
from shardwise.files import read_bounded
from shardwise.graph.graph import DTYPE_BYTES
from shardwise.validation import convert

Table = TypeVar("Table", bound=msgspec.Struct)
FILE = Path(__file__).with_name("runs.toml")

UNITS = ("samples/s", "tokens/s", "tokens/s/gpu", "ms", "s")
MEMORY_UNITS = {"MiB": 2.0**20, "GiB": 2.0**30}
RECOMPUTE = ("none", "full", "attention", "products")
ZERO_WITHIN = ("job", "node")


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A page or file with figures, as it was read."""

    key: str
    title: str
    address: str
    version: str


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published training step; the fields are described in runs.toml."""

    name: str
    source: str
    quote: str
    figure: float
    unit: str
    capture: str
    dtype: str
    optimizer: str
    batch: int
    gpus: int
    hardware: str
    note: str
    seq: int = 0
    also: tuple[str, ...] = ()
    parameters: float = 0.0
    micro_batches: int = 1
    data_parallel: int = 1
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    gathers_again: bool = False
    zero: int = 0
    zero_within: str = "job"
    recompute: str = "none"
    network_gbps: float = 0.0
    memory_figures: tuple[float, ...] = ()
    memory_unit: str = "GiB"
    memory_kind: str = ""

    @property
    def iteration_s(self) -> float:
        """Seconds of one published iteration."""
        return iteration_seconds(self.figure, self.unit, self.batch, self.seq, self.gpus)

    @property
    def memory_bytes(self) -> float | None:
        """Published bytes of one device, where there are any."""
        if not self.memory_figures:
            return None
        return sum(self.memory_figures) * MEMORY_UNITS[self.memory_unit]


class Published(msgspec.Struct, frozen=True):
    """The whole file."""

    sources: dict[str, Source]
    runs: tuple[Run, ...]


def iteration_seconds(figure: float, unit: str, batch: int, seq: int, gpus: int) -> float:
    """The time of one iteration from a published figure; raises `BadInput` for an unknown unit."""
    if unit == "s":
        return figure
    if unit == "ms":
        return figure / 1e3
    if unit == "samples/s":
        return batch / figure
    if unit == "tokens/s":
        return batch * seq / figure
    if unit == "tokens/s/gpu":
        return batch * seq / (figure * gpus)
    raise BadInput(f"unknown unit {unit!r}", field="unit", expected=", ".join(UNITS))


def read_published(path: Path = FILE) -> Published:
    """The checked content of a file; `BadInput` names the file, the run and the field."""
    file = str(path)
    try:
        document = tomllib.loads(read_bounded(path, "a TOML file of published runs").decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(str(error), file=file, expected="TOML") from None
    unknown = sorted(document.keys() - {"source", "run"})
    if unknown:
        raise BadInput(f"unknown table {unknown[0]!r}", file=file, expected="source and run")
    sources: dict[str, Source] = {}
    for i, item in enumerate(_tables(document, "source", file)):
        source = convert(item, Source, f"source {_name(item, 'key', i)}", file=file)
        if source.key in sources:
            raise BadInput(f"the key {source.key!r} is given twice", file=file, field="source.key")
        sources[source.key] = source
    runs: dict[str, Run] = {}
    for i, item in enumerate(_tables(document, "run", file)):
        run = convert(item, Run, f"run {_name(item, 'name', i)}", file=file)
        if run.name in runs:
            raise BadInput(f"the name {run.name!r} is given twice", file=file, field="run.name")
        _check(run, sources, file)
        runs[run.name] = run
    return Published(sources, tuple(runs.values()))


def _tables(document: dict[str, Any], name: str, file: str) -> list[Any]:
    tables = document.get(name)
    if not isinstance(tables, list) or not tables:
        raise BadInput(f"no [[{name}]]", file=file, field=name, expected=f"[[{name}]] tables")
    return tables


def _name(item: Any, field: str, position: int) -> str:
    named = item.get(field) if isinstance(item, dict) else None
    return named if isinstance(named, str) and named else f"number {position + 1}"


def _check(run: Run, sources: dict[str, Source], file: str) -> None:
    def demand(holds: bool, field: str, problem: str, expected: str) -> None:
        if not holds:
            raise BadInput(problem, file=file, field=f"run {run.name}: {field}", expected=expected)

    for key in (run.source, *run.also):
        demand(key in sources, "source", f"no source {key!r}", ", ".join(sources))
    for field, known in (
        ("unit", UNITS),
        ("memory_unit", tuple(MEMORY_UNITS)),
        ("recompute", RECOMPUTE),
        ("zero_within", ZERO_WITHIN),
        ("optimizer", tuple(OPTIMIZER_STATE_BYTES)),
        ("dtype", tuple(DTYPE_BYTES)),
    ):
        value = getattr(run, field)
        demand(value in known, field, f"unknown {field} {value!r}", ", ".join(known))
    for field in ("figure", "batch", "gpus", "micro_batches", "data_parallel", "tensor_parallel"):
        demand(getattr(run, field) > 0, field, f"{getattr(run, field)}", "a number above 0")
    for field in ("seq", "parameters", "network_gbps"):
        demand(getattr(run, field) >= 0, field, f"{getattr(run, field)}", "at least 0")
    for field in ("name", "capture", "hardware", "note", "quote"):
        demand(bool(getattr(run, field).strip()), field, "nothing is said", "a text")
    demand(run.zero in (0, 1, 2, 3), "zero", f"{run.zero}", "0, 1, 2 or 3")
    ranks = run.data_parallel * run.tensor_parallel
    demand(
        ranks == run.gpus,
        "gpus",
        f"{run.gpus} GPUs for {run.data_parallel} data-parallel times "
        f"{run.tensor_parallel} tensor-parallel ranks",
        f"{ranks}",
    )
    share = run.data_parallel * run.micro_batches
    demand(
        run.batch % share == 0,
        "batch",
        f"{run.batch} samples are not the same number for every rank and micro-batch",
        f"a multiple of {share}",
    )
    demand(
        run.seq > 0 or not run.unit.startswith("tokens"),
        "seq",
        f"no sequence length for {run.unit}",
        "tokens of a sequence",
    )
    demand(
        run.tensor_parallel > 1 or not run.sequence_parallel,
        "sequence_parallel",
        "sequence parallelism without tensor parallelism",
        "tensor_parallel above 1",
    )
    demand(
        run.sequence_parallel or not run.gathers_again,
        "gathers_again",
        "nothing is gathered without sequence parallelism",
        "sequence_parallel = true",
    )
    for field, figures in (("figure", (run.figure,)), ("memory_figures", run.memory_figures)):
        for figure in figures:
            demand(
                _quoted(figure, run.quote),
                field,
                f"{figure:g} is not in the quote",
                "a figure of the quote",
            )
    demand(
        bool(run.memory_figures) == bool(run.memory_kind),
        "memory_kind",
        "memory figures and what they are belong together",
        "both or neither",
    )


def _quoted(figure: float, quote: str) -> bool:
    """Returns whether a quote contains a figure as a whole number; 6,667 and 6667.0 are alike."""
    wanted = f"{figure:.10g}"
    words = quote.replace(",", " ").split(" ") + quote.replace(",", "").split(" ")
    for word in words:
        stripped = word.strip("|:;()[]{}'\"")
        try:
            if f"{float(stripped):.10g}" == wanted:
                return True
        except ValueError:
            continue
    return False
