"""The integer program on HiGHS: `peer_highs.py PROBLEM CAPS` (see integer_program.py)."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

from integer_program import IntegerProgram

LIMIT_S = 60.0
"""Per cap."""


def main() -> None:
    problem, caps = sys.argv[1:]
    program = IntegerProgram(json.loads(Path(problem).read_text()), time_limit_s=LIMIT_S)
    answers = []
    for cap in json.loads(caps):
        row = {"cap_bytes": cap, "time_s": None, "memory_bytes": None}
        try:
            fastest = program.fastest_within(cap)
        except TimeoutError:
            row["unfinished"] = True
        else:
            if fastest is not None:
                row |= {"time_s": fastest.time_s, "memory_bytes": fastest.memory_bytes}
        row["seconds"] = [program.seconds]
        answers.append(row)
    version = importlib.metadata.version("highspy")
    print(json.dumps({"version": f"highspy {version}", "answers": answers}))


if __name__ == "__main__":
    main()
