"""Tables of `frontier` and `curve`: the axes of the answer come first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import UNSET
from msgspec.structs import replace

from harness.replayed_frontier import replayed_curve, replayed_frontier
from shardwise.cli import advice
from shardwise.cli.tables import curve_table
from shardwise.documents import Frontier

FRONTIER = ("shipped:vgg16", "--hardware", "dgx-v100-16gb", "--gpus", "4", "--quiet")


def _frontier(monkeypatch: pytest.MonkeyPatch, document: Frontier, *options: str) -> str:
    """Returns what `shardwise frontier` prints of a document."""

    @contextmanager
    def advisor(*_: Any) -> Iterator[Any]:
        yield SimpleNamespace(frontier=lambda *_: document)

    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(advice, "advisor", advisor)
    done = CliRunner().invoke(advice.frontier, [*FRONTIER, *options], catch_exceptions=False)
    return done.output


def _rows(text: str, first_column: str) -> list[str]:
    """Returns the lines of a table from the names of its columns on, single-spaced."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return lines[next(i for i, line in enumerate(lines) if line.startswith(first_column)) :]


def test_a_frontier_of_replayed_steps_begins_with_peak_and_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _rows(_frontier(monkeypatch, replayed_frontier()), "point peak")[:4] == [
        "point peak GiB step compute exposed gap fits strategy",
        "0 2.00 1 s 250 ms 750 ms 25.0% yes strategy 0",
        "→ 1 3.00 750 ms 250 ms 500 ms 3.0% yes strategy 1",
        "2 5.00 500 ms 250 ms 250 ms - no strategy 2",
    ]


def test_a_frontier_of_sums_begins_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [replace(point, gap=UNSET) for point in reversed(replayed_frontier().points)]
    document = replace(replayed_frontier(), overlap=False, points=points)
    assert _rows(_frontier(monkeypatch, document), "point sum")[:2] == [
        "point sum GiB peak GiB time overlapped compute comm. fits strategy",
        "0 7.00 5.00 1.75 s 500 ms 250 ms 1.5 s no strategy 2",
    ]


def test_the_gap_of_a_point_is_a_member_of_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    document = json.loads(_frontier(monkeypatch, replayed_frontier(), "--json"))
    assert [point["gap"] for point in document["points"]] == [0.25, 0.03, None]


def test_a_curve_of_replayed_steps_has_no_sum(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    curve_table(replayed_curve(), "never")
    assert _rows(capsys.readouterr().out, "GPUs")[:2] == [
        "GPUs nodes step samples/s peak GiB gap of linear reason",
        "1 1 1 s 64.0 2.00 25.0% -",
    ]
    curve_table(replace(replayed_curve(), overlap=False), "never")
    assert _rows(capsys.readouterr().out, "GPUs")[:2] == [
        "GPUs nodes time overlapped samples/s peak GiB gap of linear reason",
        "1 1 1.25 s 1 s 64.0 2.00 25.0% -",
    ]
