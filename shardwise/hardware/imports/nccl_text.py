"""The text that nccl-tests prints: every version's columns, several programs in one file.

    #       size    count  type  redop  root    time  algbw  busbw #wrong    time  algbw …
    #        (B)  (elements)                    (us) (GB/s) (GB/s)           (us) …
         1048576   262144 float    sum    -1   51.20  20.48  35.84      0   50.10 …

What is between the type and the first time differs between versions and operations, and
may be blank; the times are found from the right, by the columns that the header names. The first
group of columns is out of place, the second in place; the first is taken where it has a time.
"""

from __future__ import annotations

import re

from shardwise.errors import BadInput
from shardwise.hardware.imports.run import Place, Row, Run, operation_of

TAG = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>:")
PROGRAM = re.compile(r"\b([a-z]+(?:_[a-z]+)?)_perf\b")
PLACE = re.compile(
    r"^#\s+Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^]]*\]\s*(.*)"
)
HEADER = re.compile(r"^#\s+(?:size|bytes)\s+(?:count|N)\b")
TIME_COLUMNS = ("time", "cputime")
LEADING = range(3, 6)
"""Words before the times: size, count, type, and where they are printed redop and root."""

USUAL_GROUP = ("time", "algbw", "busbw", "#wrong")


def parse_text(text: str, file: str) -> list[Run]:
    """Returns every run in the output. Raises `BadInput`, which names the line."""
    runs: list[Run] = []
    columns: tuple[str, ...] = USUAL_GROUP * 2
    announced = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = TAG.sub("", raw).strip()
        words = line.split()
        numbers = len(words) > 2 and words[0].isdecimal() and words[1].isdecimal()
        if line.startswith("# nThread") or (not runs and words and words[0].isdecimal()):
            runs.append(Run(file, announced))
            announced = ""
        if match := PLACE.match(line):
            if not runs or runs[-1].rows:
                runs.append(Run(file, announced))
                announced = ""
            runs[-1].places.append(_place(match))
        elif HEADER.match(line):
            columns = _columns(words)
        elif "concluded" in line:
            continue
        elif (program := PROGRAM.search(line)) and not numbers:
            operation = operation_of(f"{program[1]}_perf", file, number)
            if runs and not runs[-1].rows and not runs[-1].operation:
                runs[-1].operation = operation
            else:
                announced = operation
        elif numbers:
            row = _row(words, columns, file, number)
            if row is not None:
                runs[-1].rows.append(row)
    return [run for run in runs if run.rows]


def _place(match: re.Match[str]) -> Place:
    return Place(int(match[1]), int(match[2] or 0), match[3], match[4].strip())


def _columns(words: list[str]) -> tuple[str, ...]:
    """Returns the columns from the first time on; a time stamp is two words in a row."""
    start = next((i for i, word in enumerate(words) if word in TIME_COLUMNS), None)
    if start is None:
        return USUAL_GROUP * 2
    named = words[start:]
    return tuple(
        column
        for word in named
        for column in (("date", "clock") if word == "timestamp" else (word,))
    )


def _row(words: list[str], columns: tuple[str, ...], file: str, number: int) -> Row | None:
    stamped = columns[-2:] == ("date", "clock")
    end = len(columns) - 2 if stamped else len(columns)
    half = end // 2
    width = len(words) - (2 if stamped else 0)
    if width - end in LEADING:
        values = words[width - end : width]
    elif width - half in LEADING:
        # A half that is blank: nothing was done out of place.
        values = words[width - half : width]
    else:
        raise BadInput(
            f"{len(words)} words",
            file=file,
            field=f"line {number}",
            expected=f"a row of nccl-tests: size, count, type and {end} columns of times",
        )
    size = int(words[0])
    for start in range(0, len(values), half):
        names = columns[start : start + half]
        part = dict(zip(names, values[start : start + half], strict=True))
        time = part.get("time", part.get("cputime", ""))
        if time == "N/A":
            continue
        microseconds = _number(time, "a time", file, number)
        if "time" in part and "algbw" in part:
            _agree(size, microseconds, _number(part["algbw"], "algbw", file, number), file, number)
        wrong = part.get("#wrong", "N/A")
        if wrong != "N/A" and _number(wrong, "a count of wrong values", file, number):
            raise BadInput(
                f"{wrong} wrong values at size {size}",
                file=file,
                field=f"line {number}",
                expected="results that nccl-tests found correct",
            )
        # Sizes below a byte for each rank are printed as 0.
        if size == 0 or microseconds <= 0:
            return None
        return Row(size, (microseconds * 1e-6,), words[2])
    return None


def _agree(size: int, microseconds: float, algbw: float, file: str, line: int) -> None:
    """Raises `BadInput` if the bandwidth is not size / time: then columns were misread."""
    expected = size / microseconds / 1e3 if microseconds > 0 else 0.0
    if abs(expected - algbw) > 0.02 * expected + 0.02:
        raise BadInput(
            f"{size} bytes in {microseconds:g} us are {expected:.2f} GB/s, not {algbw:g}",
            file=file,
            field=f"line {line}",
            expected="columns of times as the header names them",
        )


def _number(word: str, what: str, file: str, line: int) -> float:
    try:
        return float(word)
    except ValueError:
        raise BadInput(
            f"{word!r} as {what}", file=file, field=f"line {line}", expected="a number"
        ) from None
