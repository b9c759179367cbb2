"""Sizes in bytes, read and written: `64MiB`, `8GB`, `1048576`; rates: `400Gb/s`, `50GB/s`."""

from __future__ import annotations

import re

from shardwise.errors import BadInput

# Two grammars: options refuse `8G`, and settings refuse `1e9`.
_SETTING = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<letter>[KMGT]?)(?P<binary>I?)B?", re.I)
_OPTION = re.compile(
    r"(?P<number>[0-9]*\.?[0-9]+(E[0-9]+)?)\s*(?ai:((?P<letter>[KMGTP])(?P<binary>I?))?B)?", re.I
)
_AMOUNT = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")
_RATE = re.compile(
    r"(?P<number>[0-9]{1,9}(\.[0-9]{1,9})?)\s*(?P<letter>[kKMGT])(?P<unit>bit|b|B)(/s|ps)"
)
_LETTERS = "KMGTP"


def parse_size(value: object, field: str) -> int:
    """Returns the bytes of a setting: `64MiB`, `8GB`, `8G`, `1.5GiB`, or a whole number.

    A fraction of a byte is cut off. A number that is not a string is returned as it is, so that the
    caller checks its range. Raises `BadInput`, naming the field, for anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(_read(_SETTING, value, field))


def parse_option(text: str, field: str) -> float:
    """Returns the bytes of a command's option: `64MiB`, `8GB`, `1.5 GiB`, `1e9`, or a number.

    Raises `BadInput`, naming the field, for anything else and for 0.
    """
    size_bytes = _read(_OPTION, text, field)
    if size_bytes == 0:
        raise BadInput(f"got {text[:40]!r}", field=field, expected="a size above 0")
    return size_bytes


def parse_amount(text: str, field: str) -> float:
    """Returns a number such as `0.5`, or the bytes of a size. Raises `BadInput` for others."""
    if _AMOUNT.fullmatch(text):
        return float(text)
    try:
        return float(parse_size(text, field))
    except BadInput:
        raise BadInput(
            f"got {text[:40]!r}", field=field, expected="a number, or a size such as 64MiB"
        ) from None


def parse_rate(text: str, field: str) -> float:
    """Returns the bytes a second of a link's rate: `400Gb/s`, `400Gbit/s` and `400Gbps` are bits,
    `50GB/s` is bytes; decimal units.

    Raises `BadInput`, naming the field, for anything else and for 0.
    """
    match = _RATE.fullmatch(text.strip())
    if match and float(match["number"]) > 0:
        per_s = float(match["number"]) * 1000.0 ** (_LETTERS.index(match["letter"].upper()) + 1)
        return per_s if match["unit"] == "B" else per_s / 8
    raise BadInput(
        f"got {text[:40]!r}",
        field=field,
        expected="a rate such as 400Gb/s (bits) or 50GB/s (bytes)",
    )


def format_size(size_bytes: int) -> str:
    """Returns a size that `parse_size` reads as the same: `64MiB`, or digits if no unit fits."""
    for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if size_bytes and size_bytes % 1024**power == 0:
            return f"{size_bytes // 1024**power}{letter}iB"
    return str(size_bytes)


def _read(grammar: re.Pattern[str], value: object, field: str) -> float:
    match = grammar.fullmatch(value.strip()) if isinstance(value, str) else None
    letter = (match["letter"] or "").upper() if match else ""
    # A letter may be one that only equals ours in another case, such as the Kelvin sign.
    if match and letter in ("", *_LETTERS):
        base = 1024.0 if match["binary"] else 1000.0
        size_bytes = float(match["number"]) * base ** (_LETTERS.index(letter) + 1 if letter else 0)
        if size_bytes < float("inf"):
            return size_bytes
    shown = value[:40] if isinstance(value, str) else value
    raise BadInput(f"got {shown!r}", field=field, expected="a size such as 64MiB")
