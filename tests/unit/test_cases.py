"""One test of many cases names those that fail, and fails if there is none."""

from __future__ import annotations

import pytest

from harness.cases import MOST, every


def test_those_that_fail_are_named_with_what_is_wrong() -> None:
    def even(number: int) -> None:
        assert number % 2 == 0, "odd"

    every([0, 2], even)
    with pytest.raises(AssertionError) as caught:
        every([0, 1, 2, 3], even, lambda number: f"case {number}")
    lines = str(caught.value).splitlines()
    assert lines[0] == "2 of 4 cases:"
    assert [line.split(":")[0] for line in lines if line.startswith("case")] == ["case 1", "case 3"]
    assert isinstance(caught.value.__cause__, AssertionError)


def test_every_case_runs_and_long_lists_are_counted() -> None:
    ran: list[int] = []

    def wrong(number: int) -> None:
        ran.append(number)
        raise ValueError(number)

    with pytest.raises(AssertionError, match="60 of 60 cases") as caught:
        every(range(60), wrong)
    assert ran == list(range(60))
    assert len(str(caught.value).splitlines()) == 1 + MOST


def test_no_case_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="no case"):
        every([], print)
