"""Writes the papers' tables and figures: `python -m paper [NAME…]`, all of them without a name."""

from __future__ import annotations

import importlib
import sys
import time

from paper.page import write_page
from paper.result import Result

PARTS = ("table1", "fig6", "fig7", "fig8", "table3", "table4", "tofu_table2", "tofu_fig10")


def main(names: list[str]) -> int:
    """Make the named parts; with all of them, the page docs/paper.md too."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no part {', '.join(unknown)}: there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    results = []
    for name in names or PARTS:
        started = time.perf_counter()
        result: Result = importlib.import_module(f"paper.{name}").make()
        result.write()
        results.append(result)
        print(result.markdown())
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    if not names:
        write_page(results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
