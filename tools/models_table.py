"""The table of docs/models.md: every family captured, inspected, and searched on 16 and 64 GPUs.

    python -m tools.models_table [-o docs/models.md] [NAME…]

Every capture and every search runs in a process of its own, so that its time and its peak memory
are its own; all families take about half an hour. Needs the torch extra.
With names only those lines of the file are replaced; what stands above its table stays, since it
says how old the other lines are.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shardwise.capture.families import FAMILIES, Family
from shardwise.errors import NotFound, ShardwiseError
from shardwise.files import write_whole
from shardwise.tdl import registry

Result = TypeVar("Result")
HARDWARE = "dgx-h100*8"
GPUS = (16, 64)
TIME_LIMIT_S = 600.0


@dataclass(frozen=True)
class Captured:
    """One capture: its size, what torch itself counts, seconds, and the process's peak memory."""

    operators: int
    parameters: int
    torch_parameters: int
    matrix_flops: float
    torch_flops: int
    undescribed: tuple[tuple[str, int], ...]
    undescribed_bytes_share: float
    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Searched:
    """One frontier: `epsilon` is certified; `problem` says why there is none."""

    groups: int = 0
    points: int = 0
    epsilon: float | None = None
    seconds: float = 0.0
    problem: str | None = None


@dataclass(frozen=True)
class Row:
    """One family with its frontiers, in the order of `GPUS`."""

    family: Family
    captured: Captured
    searched: tuple[Searched, ...]


def measure(family: Family, gpus: Sequence[int] = GPUS) -> Row:
    """Captures a family and searches it on each of `gpus`, in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "graph.json.gz")
        captured = _apart(_capture, family, path)
        return Row(family, captured, tuple(_apart(_search, path, count) for count in gpus))


def document(rows: Sequence[Row], gpus: Sequence[int] = GPUS, earlier: str = "") -> str:
    """Returns docs/models.md; families missing from `rows` keep their lines of `earlier`.

    So does what stands above the table, as long as a family's lines are kept.
    """
    heads = [
        *("family", "operators", "groups", "parameters", "forward Tflop", "capture", "undescribed"),
        *(f"{count} GPUs" for count in gpus),
    ]
    known = {line.split(" | ")[0].strip("| "): line for line in earlier.splitlines()}
    measured = {row.family.name: _line(_cells(row)) for row in rows}
    head = f"{_line(heads)}\n"
    above = _INTRODUCTION.format(hardware=HARDWARE)
    if head in earlier and any(f.name in known and f.name not in measured for f in FAMILIES):
        above = earlier[: earlier.index(head)].removesuffix("\n")
    known |= measured
    listed = {f.name: f for f in (*FAMILIES, *(row.family for row in rows)) if f.name in known}
    lines = [above, _line(heads), _line(["---"] * len(heads))]
    lines += [known[name] for name in listed]
    lines += ["", "Captured with:", ""]
    lines += [f"- {name}: `{_command(family)}`" for name, family in listed.items()]
    return "\n".join(lines) + "\n"


_INTRODUCTION = """# Models

Captured at real sizes from their configurations alone, without weights and GPU, and searched on \
`{hardware}`. Made by `python -m tools.models_table -o docs/models.md`.

*Parameters* equal the sum over the model's own (✓). *Forward Tflop* are those of products, \
convolutions and attention, in brackets divided by what `torch.utils.flop_counter` counts on the \
same model. *Capture* is seconds and peak memory of the whole process, torch included. \
*Undescribed* operators would be replicated; the share is of all activations' bytes. A frontier \
has points, certified ε and seconds (costs and search), in TensorOpt's space of sums \
(`--objective sum --zero 0`).

Mixture-of-experts layers, attention with sinks and scans of Mamba and Mamba-2 are captured as one \
operator each, as fused kernels compute them (`shardwise/capture/fused.py`, \
`shardwise/capture/scans.py`); for Mixtral torch's count is of the `batched_mm` form, and torch \
counts nothing of a scan.
"""


def _apart(function: Callable[..., Result], *arguments: Any) -> Result:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def _capture(family: Family, path: str) -> Captured:
    from shardwise.capture.capture import capture
    from shardwise.capture.counted import count
    from shardwise.graph.files import write_graph
    from shardwise.graph.inspect import inspect_graph

    asked = {"batch": family.batch, "seq": family.seq, "dtype": family.dtype}
    start = time.monotonic()
    graph = capture(family.source, name=family.name, **asked)  # type: ignore[arg-type]
    seconds = time.monotonic() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    write_graph(graph, path)
    inspected = inspect_graph(graph, registry.analyse)
    unknown = {op["name"] for op in inspected["undescribed_operators"]}
    undescribed = [
        graph.tensors[o] for op in graph.operators if op.name in unknown for o in op.outputs
    ]
    torch_count = count(family.source, **asked)  # type: ignore[arg-type]
    return Captured(
        len(graph.operators),
        graph.parameter_count,
        torch_count.parameters,
        inspected["matrix_flops"],
        torch_count.forward_flops,
        tuple(sorted(Counter(op["kind"] for op in inspected["undescribed_operators"]).items())),
        sum(t.size_bytes for t in undescribed) / max(inspected["activations"]["total_bytes"], 1),
        seconds,
        peak,
    )


def _search(path: str, gpus: int) -> Searched:
    from shardwise.answers.frontier import frontier
    from shardwise.cost.options import Options
    from shardwise.graph.files import read_graph
    from shardwise.hardware import load_hardware

    graph = read_graph(path)
    hardware = load_hardware(HARDWARE)
    options = Options(overlap=False, zero=(0,), time_limit_s=TIME_LIMIT_S)
    start = time.monotonic()
    try:
        searched = frontier(graph, hardware, gpus, options)
    except ShardwiseError as error:
        return Searched(problem=str(error), seconds=time.monotonic() - start)
    return Searched(
        searched.search.groups,
        len(searched.points),
        searched.certificate.epsilon,
        time.monotonic() - start,
    )


def _cells(row: Row) -> list[str]:
    taken = row.captured
    same = "✓" if taken.parameters == taken.torch_parameters else f"≠ {taken.torch_parameters:,}"
    kinds = ", ".join(f"{kind} ({count}×)" for kind, count in taken.undescribed)
    share = f", {taken.undescribed_bytes_share:.2%}" if kinds else ""
    return [
        row.family.name,
        f"{taken.operators:,}",
        f"{max((searched.groups for searched in row.searched), default=0):,}",
        f"{taken.parameters:,} {same}",
        f"{taken.matrix_flops / 1e12:,.4g} ({taken.matrix_flops / taken.torch_flops:.4f})",
        f"{taken.seconds:.0f} s, {taken.peak_bytes / 2**30:.1f} GiB",
        f"{kinds or 'none'}{share}",
        *(_frontier_cell(searched) for searched in row.searched),
    ]


def _frontier_cell(searched: Searched) -> str:
    if searched.problem is not None:
        return f"none after {searched.seconds:.0f} s: {searched.problem}"
    certified = "no proof" if searched.epsilon is None else f"{searched.epsilon:.2g}"
    return f"{searched.points:,}, {certified}, {searched.seconds:.1f} s"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _command(family: Family) -> str:
    seq = f" --seq {family.seq}" if family.seq is not None else ""
    return f"shardwise capture {family.source} --batch {family.batch}{seq} --dtype {family.dtype} …"


def main(arguments: Sequence[str]) -> int:
    """Measures the named families, or all, and writes the document; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.models_table")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("-o", "--output", help="instead of standard output")
    given = parser.parse_args(arguments)
    try:
        rows = []
        for family in _chosen(given.names):
            rows.append(measure(family))
            print(" · ".join(_cells(rows[-1])), file=sys.stderr, flush=True)
            if given.output is not None:
                # After each family: what was measured is kept if the next one is interrupted.
                path = Path(given.output)
                earlier = path.read_text("utf-8") if path.is_file() else ""
                write_whole(given.output, document(rows, earlier=earlier).encode())
        if given.output is None:
            print(document(rows))
    except ShardwiseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _chosen(names: Sequence[str]) -> list[Family]:
    known = {family.name: family for family in FAMILIES}
    for name in names:
        if name not in known:
            raise NotFound(f"no family {name!r}; there are {', '.join(known)}")
    return [known[name] for name in names] or list(FAMILIES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
