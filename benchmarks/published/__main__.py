"""`python -m benchmarks.published`: predict the published runs; `-o` writes docs/accuracy.md."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.files import write_whole

from .report import as_data, as_markdown, head_line, predict_all, total_lines
from .runs import read_published


def main() -> int:
    """Print the table; 2 with one line where something is refused."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="runs whose name contains TEXT")
    parser.add_argument("--output", "-o", type=Path, help="write the page (docs/accuracy.md)")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead")
    arguments = parser.parse_args()
    try:
        published = read_published()
        if not arguments.json:
            print(head_line())
        predictions = predict_all(
            published,
            arguments.only,
            lambda line: None if arguments.json else print(line, flush=True),
        )
        if not predictions:
            print(f"no run's name contains {arguments.only!r}", file=sys.stderr)
            return 2
        print(
            json.dumps(as_data(predictions), indent=1)
            if arguments.json
            else total_lines(predictions)
        )
        if arguments.output:
            write_whole(arguments.output, as_markdown(published, predictions).encode())
            print(f"wrote {arguments.output}", file=sys.stderr)
    except ShardwiseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
