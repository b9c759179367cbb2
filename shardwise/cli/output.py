"""Output of commands: tables and answers on stdout, notes and progress on stderr."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import click
import msgspec
from msgspec import UnsetType
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from shardwise.cost.options import Progress as Listener
from shardwise.documents.common import Certificate, not_searched_text
from shardwise.outfiles import write_json

PIPE_COLUMNS = 100
LEFT_ALIGNED = ("split", "strategy", "note", "instance", "region", "forward")
IN_ONE_LINE = ("id", "operation")
PROGRESS_PERIOD_S = 5.0
ASKED_RECENTLY_S = 0.3
INTERRUPTED = 130


class _Console(Console):
    """A console for names from outside: without markup and control characters."""

    def render_str(self, text: str, **keywords: Any) -> Text:
        return super().render_str(printable(text), **keywords)

    def on_broken_pipe(self) -> None:
        # Rich would exit with 1, which means "infeasible" here.
        raise BrokenPipeError


def printable(text: str) -> str:
    """Returns `text` with terminal control characters replaced."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def console() -> Console:
    """Returns standard output, as wide as the terminal (`COLUMNS` wins); 100 columns in a pipe."""
    text = os.environ.get("COLUMNS", "")
    width = int(text) if text.isdecimal() and int(text) > 0 else None
    if width is None and not sys.stdout.isatty():
        width = PIPE_COLUMNS
    return _Console(width=width, highlight=False, markup=False, emoji=False)


def emit(document: Any) -> None:
    """Prints the JSON document of `--json`: one line of UTF-8 in any locale.

    Flushed at once for programs that read from a pipe, since `serve` runs for days.
    """
    sys.stdout.flush()
    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    sys.stdout.buffer.flush()


def keep(document: Any, output: str | None, *, quiet: bool) -> None:
    """Writes an answer's document to the file of `--output`, if given, and reports it."""
    if output is not None:
        write_json(document, output)
        if not quiet:
            note(f"wrote {output}")


def say(text: str) -> None:
    """Prints a line of the answer on standard output."""
    console().print(text)


def note(text: str) -> None:
    """Prints a line for the user on standard error."""
    print(printable(text), file=sys.stderr)


def warn(warnings: Iterable[str] | UnsetType) -> None:
    """Prints an answer's warnings about its limits."""
    for warning in warnings or ():
        note(f"note: {warning}")


def say_searched(not_searched: list[str] | UnsetType) -> None:
    """Prints the customary strategies that were not searched, if any."""
    text = not_searched_text(not_searched)
    if text:
        say(f"searched {text}")


def proven(certificate: Certificate) -> str:
    """Returns a certificate in words."""
    if certificate.exact:
        text = "exact"
    elif certificate.epsilon is None:
        text = "nothing proven"
    else:
        text = f"certified within {certificate.epsilon:.2%}"
    weak = certificate.status in ("heuristic", "budget", "cancelled")
    return f"{text} ({certificate.status})" if weak else text


def stop_if_cancelled(certificate: Certificate) -> None:
    """Ends the command with an error if Ctrl-C interrupted the search, since its answer is
    partial."""
    if certificate.status == "cancelled":
        raise click.exceptions.Exit(INTERRUPTED)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a text table that fits the terminal; numbers are right-aligned."""
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for position, name in enumerate(columns):
        left = position == 0 or name in LEFT_ALIGNED
        # Text that users copy stays on one line, even if other columns wrap.
        justify: Literal["left", "right"] = "left" if left else "right"
        shown.add_column(name, justify=justify, overflow="fold", no_wrap=name in IN_ONE_LINE)
    for row in rows:
        shown.add_row(*(str(cell) for cell in row))
    console().print(shown)


@contextmanager
def progress(quiet: bool, stoppable: bool = True) -> Iterator[Listener]:
    """Yields progress on standard error: a bar on a terminal, else a line every few seconds.

    The first Ctrl-C asks the search for its best answer so far, a second one ends the command. A
    search that is not `stoppable` (a service's, without partial answers) ends at the first.
    """
    with _stoppable() if stoppable else nullcontext(lambda: True) as wanted:
        if quiet:
            yield lambda stage, fraction: wanted()
        elif sys.stderr.isatty():
            with _bar() as show:
                yield lambda stage, fraction: show(stage, fraction) and wanted()
        else:
            report = _lines()
            yield lambda stage, fraction: report(stage, fraction) and wanted()


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether Ctrl-C has not been pressed yet.

    While it is not called (while reading a graph), Ctrl-C ends the command at once.
    """
    pressed = False
    asked = -ASKED_RECENTLY_S

    def first(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)
        if time.monotonic() - asked > ASKED_RECENTLY_S:
            raise KeyboardInterrupt

    def wanted() -> bool:
        nonlocal asked
        asked = time.monotonic()
        return not pressed

    if threading.current_thread() is not threading.main_thread():
        yield lambda: True
        return
    before = signal.signal(signal.SIGINT, first)
    try:
        yield wanted
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _bar() -> Iterator[Listener]:
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=1.0)

        def show(stage: str, fraction: float) -> bool:
            bar.update(task, description=printable(stage), completed=fraction)
            return True

        yield show


def _lines() -> Listener:
    last = time.monotonic()

    def report(stage: str, fraction: float) -> bool:
        nonlocal last
        if time.monotonic() - last > PROGRESS_PERIOD_S:
            last = time.monotonic()
            note(f"… {stage}: {fraction:.0%}")
        return True

    return report
