"""Makes the papers' tables and figures: `python -m paper [NAME…]`, all of them without a name.

Each part is kept under benchmarks/paper/results; `make reference` writes the page from these.
"""

from __future__ import annotations

import importlib
import sys
import time

from paper.page import PARTS
from paper.result import Result


def main(names: list[str]) -> int:
    """Make the named parts, or all, and keep them."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no part {', '.join(unknown)}: there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    for name in names or PARTS:
        started = time.perf_counter()
        result: Result = importlib.import_module(f"paper.{name}").make()
        result.write()
        result.keep()
        print(result.markdown())
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    print("`make reference` writes docs/reference/paper.md from these", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
