"""Writes the papers' tables and figures: `python -m paper [NAME…]`, all of them without a name.

With names those parts of docs/paper.md are replaced, and its statements counted anew.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Mapping

from paper.page import update_page, write_page
from paper.result import Result

PARTS: Mapping[str, str] = {
    "table1": "TensorOpt Table 1",
    "fig6": "TensorOpt Fig. 6",
    "fig7": "TensorOpt Fig. 7",
    "fig8": "TensorOpt Fig. 8",
    "table3": "TensorOpt Table 3",
    "table4": "TensorOpt Table 4",
    "tofu_table2": "Tofu Table 2",
    "tofu_fig10": "Tofu Fig. 10",
    "heterog_table1": "HeteroG Table 1",
    "heterog_table3": "HeteroG Tables 2 and 3",
    "heterog_table4": "HeteroG Table 4",
    "heterog_table5": "HeteroG Table 5",
    "heterog_table6": "HeteroG Table 6",
    "heterog_table7": "HeteroG Table 7",
}
"""What a part's title begins with, by name; the page has them in this order."""


def main(names: list[str]) -> int:
    """Make the named parts, or all, and put them on the page docs/paper.md."""
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
    if names:
        update_page(results, list(PARTS.values()))
    else:
        write_page(results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
