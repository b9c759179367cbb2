"""`python -m benchmarks.published`: published training steps and their predictions.

Without an option it prints the stored predictions. docs/accuracy.md is made of these and the rows
alone (-o), without a capture.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from shardwise.errors import BadInput, ShardwiseError
from shardwise.files import write_whole

from .compute import PROCESSES, part, predict_runs
from .difference import difference
from .page import PAGE, page
from .reading import Published, read_published
from .report import as_data, head_line, line, total_lines
from .stored import FILE, Result, included, is_current, read_stored, results, stale, write_stored


def main() -> int:
    """1 where a check fails; 2 with one line where something is refused."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.published",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--predict", action="store_true", help="store predictions of the rows that have none"
    )
    action.add_argument(
        "--check", action="store_true",
        help="predict anew and compare with the stored figures and the page",
    )  # fmt: skip
    parser.add_argument("--anew", action="store_true", help="with --predict: of all rows")
    parser.add_argument("--part", metavar="I/N", help="with --check: the I-th of N parts, from 0")
    parser.add_argument("--only", default="", metavar="TEXT", help="runs whose name contains TEXT")
    parser.add_argument("--processes", type=int, default=PROCESSES, metavar="N")
    parser.add_argument(
        "--stored", type=Path, default=FILE, metavar="FILE",
        help="the stored predictions (benchmarks/published/predictions.json)",
    )  # fmt: skip
    parser.add_argument(
        "--output", "-o", type=Path, metavar="PAGE",
        help="write the page; with --check: the page to compare (docs/accuracy.md)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead")
    arguments = parser.parse_args()
    try:
        published = read_published()
        if arguments.check:
            return _check(published, arguments)
        if arguments.predict:
            _predict(published, arguments)
            if not arguments.output:
                return 0
        return _show(published, arguments)
    except ShardwiseError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _predict(published: Published, arguments: argparse.Namespace) -> None:
    """Stores the predictions of each capture when they are ready: a second call goes on."""
    stored = {} if arguments.anew and not arguments.only else read_stored(arguments.stored)
    wanted = {
        run.name
        for run in published.runs
        if arguments.only in run.name and (arguments.anew or not is_current(run, stored))
    }
    runs = {run.name: run for run in published.runs}
    print(f"{len(wanted)} of {len(runs)} runs are predicted", file=sys.stderr)
    for done in predict_runs(published.runs, lambda run: run.name in wanted, arguments.processes):
        for name, anew in done:
            stored[name] = anew
            print(line(Result(runs[name], published.project(runs[name]), anew)), file=sys.stderr)
        write_stored(stored, published, arguments.stored)
    missing = stale(published, stored)
    if missing:
        print(f"{len(missing)} runs have no prediction yet", file=sys.stderr)


def _show(published: Published, arguments: argparse.Namespace) -> int:
    shown = results(published, read_stored(arguments.stored))
    if arguments.output:
        write_whole(arguments.output, page(published, shown).encode())
        print(f"wrote {arguments.output}", file=sys.stderr)
        return 0
    shown = [result for result in shown if arguments.only in result.run.name]
    if not shown:
        print(f"no run's name contains {arguments.only!r}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(as_data(shown), indent=1))
        return 0
    counted = included(shown)
    totals = [total_lines(counted)] if counted else []
    print("\n".join([head_line(), *map(line, shown), *totals]))
    return 0


def _check(published: Published, arguments: argparse.Namespace) -> int:
    number, parts = _part(arguments.part)
    names = {name for name in part(published.runs, number, parts) if arguments.only in name}
    stored = read_stored(arguments.stored)
    found = results(published, stored)
    file = arguments.output or PAGE
    told: list[str] = []
    checked = 0
    for done in predict_runs(published.runs, lambda run: run.name in names, arguments.processes):
        for name, anew in done:
            checked += 1
            told += filter(None, [difference(name, anew, stored[name])])
    if told:
        told.append("predictions have changed: python -m benchmarks.published --predict --anew")
    if not file.exists() or file.read_text() != page(published, found):
        told.append(
            f"{file}: not what the rows and stored predictions give: "
            f"python -m benchmarks.published -o {file}"
        )
    if told:
        print("\n".join(told), file=sys.stderr)
        return 1
    print(f"{checked} of {len(found)} runs are predicted as stored, and the page is up to date")
    return 0


def _part(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 1
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal()):
        raise BadInput(f"{text!r} is no part", field="--part", expected="I/N, such as 0/4")
    return int(number), int(parts)


if __name__ == "__main__":
    sys.exit(main())
