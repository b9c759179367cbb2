"""`python -m benchmarks.gpu`: all that one GPU can tell about the predictions, in ten minutes.

Writes report.md, report.json and profile.json. Without a GPU it says so and does nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from shardwise.errors import ShardwiseError

from .run import run

BUDGET_S = 600.0


def main() -> int:
    """1 where nothing could be measured; 2 with one line where something is refused."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds (600)")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: tries the program out")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/gpu"), metavar="FOLDER")
    arguments = parser.parse_args()
    try:
        return run(arguments.device, arguments.quick, arguments.budget, arguments.output)
    except ShardwiseError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
