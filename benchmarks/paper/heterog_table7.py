"""HeteroG Table 7: order by upward rank against first come, first served, on 8 GPUs.

Made of the rows that `heterog_orders.py` kept; models that it has not replayed are left out.
"""

from __future__ import annotations

from paper.heterog_orders import ORDERS, kept_orders
from paper.heterog_published import FIFO as PRINTED
from paper.heterog_published import TIMES
from paper.heterog_runs import Figures
from paper.result import Claim, Result, Table
from shardwise.replay.scheduling import FIFO, PROGRAM, RANK

STRATEGIES = {"ours": "ours", "ev-ar": "EV-AR"}


def make() -> Result:
    result = Result("heterog_table7", "HeteroG Table 7: order of execution, 8 GPUs")
    rows = kept_orders()
    result.tables = [_table(rows, key, name) for key, name in STRATEGIES.items()]
    result.claims = [_faster(row) for row in rows]
    if len(rows) == len(PRINTED):
        result.claims.append(_by_how_much(rows))
    result.data = {"rows": rows}
    return result


def _printed(model: str) -> float:
    return PRINTED[model] / TIMES[8][model][0] - 1.0


def _gain(row: Figures, key: str) -> float:
    """How much longer a step takes first come, first served than by rank."""
    return float(row[key][FIFO] / row[key][RANK] - 1.0)


def _table(rows: list[Figures], key: str, name: str) -> Table:
    lines = [
        (
            f"{row['model']} ({row['batch']})",
            *(f"{row[key][order]:.4g}" for order in ORDERS),
            f"{_gain(row, key):+.1%}",
            f"{_printed(row['model']):+.1%}" if key == "ours" else "",
        )
        for row in rows
    ]
    last = ("first come ÷ by rank", "printed")
    return Table((f"{name}, s, in the order", *ORDERS, *last), lines)


def _faster(row: Figures) -> Claim:
    times = row["ours"]
    return Claim(
        f"{row['model']}: a step by rank is faster than first come, first served",
        times[RANK] < times[FIFO],
        f"{_gain(row, 'ours'):+.2%}; program's order {times[PROGRAM] / times[RANK] - 1.0:+.2%}",
    )


def _by_how_much(rows: list[Figures]) -> Claim:
    gains = [_gain(row, "ours") for row in rows]
    least = min(_printed(row["model"]) for row in rows)
    return Claim(
        f"the order brings at least {least:.0%} for every model",
        min(gains) >= least,
        f"{min(gains):.1%} to {max(gains):.1%}",
    )
