"""What every command shares: where output goes, how errors end, how sizes are said."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from shardwise.advise.options import Progress as Listener
from shardwise.errors import BadInput
from shardwise.files import write_whole

UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    UNITS[f"{_letter}B"] = 1000**_power
    UNITS[f"{_letter}IB"] = 1024**_power


def console() -> Console:
    """Standard output, as wide as the terminal; 100 columns in a pipe."""
    width = os.environ.get("COLUMNS")
    if width and width.isdigit():
        return Console(width=int(width), highlight=False)
    return Console(width=None if sys.stdout.isatty() else 100, highlight=False)


def emit(document: Any) -> None:
    """The one JSON document of `--json`."""
    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")


def note(text: str) -> None:
    """A line for the person, on standard error."""
    print(text, file=sys.stderr)


def parse_bytes(text: str, field: str) -> float:
    """`14.5GB`, `80GiB`, a plain number of bytes."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE][0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in UNITS:
        raise BadInput(f"{text!r} is not a size", field=field, expected="such as 14.5GB or 80GiB")
    value = float(match[1]) * UNITS[match[2].upper()]
    if not 0 < value < float("inf"):
        raise BadInput(f"{text!r} is not a size above 0", field=field)
    return value


def gib(size_bytes: float | None) -> str:
    """Bytes as GiB for a table."""
    return "-" if size_bytes is None else f"{size_bytes / 2**30:,.2f}"


def seconds(value: float | None) -> str:
    """Seconds with four significant digits, in ms below one."""
    if value is None:
        return "-"
    return f"{value * 1e3:.4g} ms" if abs(value) < 1 else f"{value:.4g} s"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A text table that fits the terminal; all but the first column are right-aligned."""
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for position, name in enumerate(columns):
        left = position == 0 or name in ("split", "reason", "instance", "region", "forward")
        shown.add_column(name, justify="left" if left else "right", overflow="fold")
    for row in rows:
        shown.add_row(*(str(cell) for cell in row))
    console().print(shown)


@contextmanager
def progress(quiet: bool) -> Iterator[Listener | None]:
    """Progress on standard error: a bar on a terminal, a line every few seconds elsewhere."""
    if quiet:
        yield None
        return
    if sys.stderr.isatty():
        screen = Console(stderr=True)
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=screen,
            transient=True,
        ) as bar:
            task = bar.add_task("", total=1.0)

            def show(stage: str, fraction: float) -> bool:
                bar.update(task, description=stage, completed=fraction)
                return True

            yield show
        return
    last = time.monotonic()

    def say(stage: str, fraction: float) -> bool:
        nonlocal last
        if time.monotonic() - last > 5:
            last = time.monotonic()
            note(f"… {stage}: {fraction:.0%}")
        return True

    yield say


@contextmanager
def written(path: str) -> Iterator[Path]:
    """A temporary path that becomes `path` when the block succeeds; nothing is half-written."""
    target = Path(path)
    folder = target.parent
    if not folder.is_dir():
        raise BadInput("no such folder", file=str(folder), field="output")
    handle, name = tempfile.mkstemp(dir=folder, prefix=".", suffix=target.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(document: Any, path: str) -> None:
    """Write a document, whole or not at all."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def check_folder(path: str | None) -> None:
    """Refuse an output whose folder is missing before the work is done, not after."""
    if path is not None and not Path(path).parent.is_dir():
        raise BadInput("no such folder", file=str(Path(path).parent), field="output")
