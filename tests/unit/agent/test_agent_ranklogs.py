"""Log bounds: every line is handed over or counted, in order, within the bounds."""

from __future__ import annotations

import os
import random

import pytest

from agent.config import LogLimits
from agent.ranklogs import REPORT_LINES, TAIL_LINES, RankLogs

Reports = list[tuple[int, str, int, list[str], int]]


def run(limits: LogLimits, writes: dict[tuple[int, str], list[bytes]]) -> Reports:
    reports: Reports = []
    logs = RankLogs(limits, lambda *report: reports.append(report))
    for (rank, name), pieces in writes.items():
        reader, writer = os.pipe()
        logs.add(reader, rank, name)
        for piece in pieces:
            os.write(writer, piece)
            logs.read(reader)
        os.close(writer)
    logs.close()
    return reports


def lines_of(reports: Reports, rank: int = 0, name: str = "stdout") -> list[str]:
    return [line for r, n, _, lines, _ in reports if (r, n) == (rank, name) for line in lines]


def assert_every_line_is_counted(reports: Reports, total: int) -> None:
    expected = 0
    for _, _, first, lines, dropped in reports:
        expected += dropped
        assert first == expected
        expected += len(lines)
    assert expected == total


def test_lines_are_whole_however_they_were_written() -> None:
    text = "".join(f"line {i} äöü\n" for i in range(50)).encode()
    cuts = sorted(random.Random(3).sample(range(1, len(text)), 20))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    reports = run(LogLimits(), {(0, "stdout"): pieces})
    assert lines_of(reports) == [f"line {i} äöü" for i in range(50)]
    assert_every_line_is_counted(reports, 50)


def test_a_last_line_without_its_end_is_a_line() -> None:
    assert lines_of(run(LogLimits(), {(0, "stdout"): [b"a\r\nb"]})) == ["a", "b"]


@pytest.mark.parametrize("filler", [b"x", b"\xff", "ä".encode()])
def test_a_long_line_is_cut_and_says_so(filler: bytes) -> None:
    reports = run(
        LogLimits(line_bytes=100), {(0, "stdout"): [filler * 1000, filler * 30000, b"\nb\n"]}
    )
    long, short = lines_of(reports)
    assert len(long.encode()) <= 100
    assert long.endswith(f" [{31000 * len(filler) - 100} bytes cut]")
    assert short == "b"


def test_beyond_a_ranks_bound_lines_are_counted_and_the_last_kept() -> None:
    written = [f"line {i:06}\n".encode() * 1 for i in range(5000)]
    reports = run(LogLimits(rank_bytes=8192), {(0, "stdout"): written})
    assert_every_line_is_counted(reports, 5000)
    lines = lines_of(reports)
    assert lines[0] == "line 000000"
    assert lines[-TAIL_LINES:] == [f"line {i:06}" for i in range(5000 - TAIL_LINES, 5000)]
    assert sum(len(line) + 1 for line in lines) <= 8192 + TAIL_LINES * 12
    assert reports[-1][4] == 5000 - len(lines)


def test_the_launchs_bound_holds_for_all_ranks() -> None:
    pieces = [b"x" * 99 + b"\n"] * 600
    reports = run(LogLimits(total_bytes=50_000), {(rank, "stdout"): pieces for rank in range(4)})
    kept = sum(len(line) + 1 for _, _, _, lines, _ in reports for line in lines)
    assert kept <= 50_000 + 4 * TAIL_LINES * 100
    for rank in range(4):
        assert_every_line_is_counted([t for t in reports if t[0] == rank], 600)


def test_one_rank_that_shouts_does_not_silence_another() -> None:
    reports = run(
        LogLimits(rank_bytes=4096),
        {(0, "stdout"): [b"x" * 99 + b"\n"] * 600, (1, "stdout"): [b"heard\n"]},
    )
    assert lines_of(reports, 1) == ["heard"]


def test_reports_are_bounded_in_lines() -> None:
    reports = run(LogLimits(), {(0, "stdout"): [b"\n" * 5000]})
    assert max(len(lines) for _, _, _, lines, _ in reports) <= REPORT_LINES
    assert_every_line_is_counted(reports, 5000)


def test_a_nul_in_a_line_is_replaced() -> None:
    assert lines_of(run(LogLimits(), {(0, "stdout"): [b"a\0b\n"]})) == ["a\ufffdb"]
