"""Sizes are read and written in one way, and refused with the field and an example."""

from __future__ import annotations

import pytest

from shardwise.errors import BadInput
from shardwise.sizes import format_size, parse_amount, parse_option, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64MiB", 64 * 2**20), ("8GB", 8 * 10**9), ("8G", 8 * 10**9), ("8gi", 8 * 2**30),
        (" 1.5 GiB ", 3 * 2**29), ("2TiB", 2**41), ("1000", 1000), ("1000B", 1000), ("1.5", 1),
        ("0", 0), (7, 7), (-1, -1),
    ],
)  # fmt: skip
def test_settings(text: str | int, size_bytes: int) -> None:
    assert parse_size(text, "field") == size_bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-1",
        "1e9",
        ".5GB",
        "1PB",
        "1 GiBs",
        "1,5GB",
        "5\u212aB",
        "9" * 400,
        1.5,
        True,
        None,
    ],
)
def test_malformed_sizes_in_settings_are_refused(text: object) -> None:
    with pytest.raises(BadInput, match=r"field: got .* \(expected a size such as 64MiB\)"):
        parse_size(text, "field")


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("14.5GB", 14.5e9), ("80GiB", 80 * 2**30), ("80 gib", 80 * 2**30), ("1e9", 1e9),
        (".5KB", 500), ("1E3KiB", 1024e3), ("2PB", 2e15), ("1PiB", 2**50), ("3B", 3), ("0.5", 0.5),
        ("14.5\u00a0GB", 14.5e9),
    ],
)  # fmt: skip
def test_options(text: str, size_bytes: float) -> None:
    assert parse_option(text, "memory") == size_bytes


@pytest.mark.parametrize(
    "text", ["", "much", "8G", "8iB", "-1GB", "1.GB", "1e-3GB", "inf", "1e999", "5\u212aB"]
)
def test_malformed_sizes_in_options_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"memory: got .* \(expected a size such as 64MiB\)"):
        parse_option(text, "memory")


def test_an_option_of_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match=r"got '0MiB' \(expected a size above 0\)"):
        parse_option("0MiB", "memory")


@pytest.mark.parametrize(
    ("text", "amount"), [("0.5", 0.5), ("50", 50), ("8GB", 8e9), ("1KiB", 1024)]
)
def test_amounts(text: str, amount: float) -> None:
    assert parse_amount(text, "value") == amount


def test_malformed_amounts_are_refused() -> None:
    with pytest.raises(
        BadInput, match=r"value: got .* \(expected a number, or a size such as 64MiB\)"
    ):
        parse_amount("many", "value")


def test_long_texts_are_cut_in_messages() -> None:
    with pytest.raises(BadInput) as refused:
        parse_size("x" * 1000, "field")
    assert len(str(refused.value)) < 120


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0"), (1, "1"), (1000, "1000"), (2**10, "1KiB"), (64 * 2**20, "64MiB"),
        (1536 * 2**20, "1536MiB"), (2**33, "8GiB"), (2**50, "1024TiB"),
    ],
)  # fmt: skip
def test_what_is_written_is_read_as_the_same(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text
    assert parse_size(text, "field") == size_bytes
