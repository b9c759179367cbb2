"""Operator tables: a real step of a model on this CPU against the sum of its measured operators.

One process, one thread, Adam; times are those of the processor, not of the clock: others use the
machine too. Target: the median error within 15 %; `spread` is what noise alone gives (half the
distance of the quartiles of the real steps).
"""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from operator_cases import CASES, compare, host_profile

TARGET = 0.15
TIME_LIMIT_S = 40.0


def run() -> dict[str, Any]:
    """Returns a row for each model and prints them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _run()
    finally:
        torch.set_num_threads(threads)


def _run() -> dict[str, Any]:
    host = host_profile()
    head = ("real ms", "spread", "predicted", "error", "roofline", "calls", "in s")
    print(f"{'step':16} " + " ".join(f"{word:>9}" for word in head) + "  basis of compute")
    rows = []
    for case in CASES:
        compared = compare(case, host, TIME_LIMIT_S)
        shares = ", ".join(f"{share:.0%} {name}" for name, share in compared.shares.items())
        print(
            f"{case.name:16} {compared.measured_s * 1e3:9.2f} {compared.spread:9.1%} "
            f"{compared.predicted_s * 1e3:9.2f} {compared.error:+9.1%} "
            f"{compared.roofline_s * 1e3:9.2f} {compared.calls:9d} "
            f"{compared.measuring_s:9.1f}  {shares}",
            flush=True,
        )
        for note in compared.notes:
            print(f"    {note}")
        rows.append(
            {
                "case": case.name,
                "source": case.source,
                "measured_s": compared.measured_s,
                "spread": compared.spread,
                "predicted_s": compared.predicted_s,
                "roofline_s": compared.roofline_s,
                "error": compared.error,
                "roofline_error": compared.roofline_s / compared.measured_s - 1.0,
                "shares": compared.shares,
                "calls": compared.calls,
                "measuring_s": compared.measuring_s,
                "notes": compared.notes,
            }
        )
    errors = [abs(row["error"]) for row in rows]
    modelled = [abs(row["roofline_error"]) for row in rows]
    print(
        f"{len(rows)} models: median error {median(errors):.1%}, worst {max(errors):.1%} "
        f"(target {TARGET:.0%}); by the roofline alone {median(modelled):.1%}"
    )
    return {"rows": rows, "median": median(errors), "worst": max(errors)}


if __name__ == "__main__":
    run()
