"""Tables of a profile out of measured kernels: products, attention, collectives.

Products and attention are distilled (`distil.py`): nine knots for each of m, n and k, seven for
heads and lengths. Of a fifth of the kernels that were left out the tables are 2 to 5 % off in the
median.

Collectives are those of half precision at ten sizes from 2 KiB to 512 MiB; the package counts
elements, which is seen by the bandwidths: 222 GB/s for all_reduce of 8 A100 and 446 for that of 8
H100 if an element has two bytes. A time that a greater size undercuts is that of the greater one.
"""

from __future__ import annotations

import numpy as np

from shardwise.errors import BadInput
from shardwise.hardware.attention import AttentionTable
from shardwise.hardware.grid import Floats
from shardwise.hardware.hardware import CollectiveTable
from shardwise.hardware.imports.distil import even_knots, fitted
from shardwise.hardware.imports.kernel_files import Kernels, Table
from shardwise.hardware.products import ProductTable

PRODUCTS = Table(
    "gemm", "gemm_perf", {"gemm_dtype": str, "m": int, "n": int, "k": int, "latency": float}
)
ATTENTION = Table(
    "attention",
    "context_attention_perf",
    {
        "attn_dtype": str,
        "kv_cache_dtype": str,
        "batch_size": int,
        "isl": int,
        "num_heads": int,
        "num_key_value_heads": int,
        "head_dim": int,
        "step": int,
        "latency": float,
    },
    {"window_size": int},
)
COLLECTIVES = Table(
    "comm",
    "nccl_perf",
    {"nccl_dtype": str, "op_name": str, "num_gpus": int, "message_size": int, "latency": float},
)

PRODUCT_KNOTS, ATTENTION_KNOTS = 9, 7
HEAD_SIZES = (64, 128, 256)
QUERY_HEADS = 8
"""How many heads of queries there must be for one of keys and values: the kernels are timed with
the copy of keys and values to the cache of an inference server, which training does not make. It
is a third of the time at 16 heads of each and 512 tokens, and a tenth at 8,192."""
SHORTEST = 16
"""Sequences below are the next token of an inference server."""
FEWEST = 200
"""Kernels that a table needs."""
OPERATIONS = {
    "all_gather": "all_gather",
    "all_reduce": "all_reduce",
    "alltoall": "all_to_all",
    "reduce_scatter": "reduce_scatter",
}
"""The package's names of operations, and those of the cost model."""
SIZES = tuple(2 * 4**power for power in range(5, 15))
"""Bytes, 2 KiB to 512 MiB."""
HALF_BYTES = 2


def product_table(
    rows: Kernels,
    dtype: str,
    item_bytes: int,
    peak_flops_per_s: float,
    bandwidth_bytes_per_s: float,
) -> ProductTable:
    """Returns the table of measured products of one dtype, whose elements have `item_bytes`."""
    m, n, k = (_sizes(rows, name) for name in "mnk")
    moved_s = item_bytes * (m * k + k * n + m * n) / bandwidth_bytes_per_s
    roofline_s = np.maximum(2.0 * m * n * k / peak_flops_per_s, moved_s)
    knots = [even_knots(axis, PRODUCT_KNOTS) for axis in (m, n, k)]
    utilisation = fitted(knots, (m, n, k), roofline_s / _seconds(rows))
    return ProductTable(dtype, knots[0], knots[1], knots[2], utilisation)


def attention_rows(kernels: Kernels) -> dict[int, Kernels]:
    """Returns the kernels that attention is distilled from, by size of a head: in bfloat16, causal
    over the whole sequence, few heads of keys and values; of equal shapes the fastest."""
    columns = kernels.columns
    full = columns.get("window_size", np.zeros(len(kernels), dtype=np.int64)) == 0
    chosen = (
        (columns["attn_dtype"] == "bfloat16")
        & (columns["kv_cache_dtype"] == "bfloat16")
        & (columns["isl"] >= SHORTEST)
        & (columns["step"] == 0)
        & (columns["num_key_value_heads"] * QUERY_HEADS <= columns["num_heads"])
        & full
    )
    found = {}
    for size in HEAD_SIZES:
        rows = _fastest(kernels.where(chosen & (columns["head_dim"] == size)))
        if len(rows) >= FEWEST:
            found[size] = rows
    return found


def attention_table(rows: Kernels, head_size: int, peak_flops_per_s: float) -> AttentionTable:
    """Returns the table of measured attention forward in bfloat16, of one size of a head."""
    lengths = _sizes(rows, "isl")
    heads = _sizes(rows, "batch_size") * _sizes(rows, "num_heads")
    flops = 2.0 * heads * lengths**2 * head_size
    knots = [even_knots(axis, ATTENTION_KNOTS) for axis in (heads, lengths)]
    utilisation = fitted(knots, (heads, lengths), flops / peak_flops_per_s / _seconds(rows))
    return AttentionTable("bfloat16", float(head_size), knots[0], knots[1], utilisation)


def collective_tables(kernels: Kernels, per_node: int) -> tuple[CollectiveTable, ...]:
    """Returns the tables of groups of up to `per_node` devices of one node."""
    columns = kernels.columns
    half = columns["nccl_dtype"] == "half"
    tables = []
    for name, operation in OPERATIONS.items():
        for ranks in sorted(set(columns["num_gpus"].tolist())):
            chosen = half & (columns["op_name"] == name) & (columns["num_gpus"] == ranks)
            if 2 <= ranks <= per_node:
                tables += _collective(kernels.where(chosen), operation, ranks)
    return tuple(tables)


def _collective(rows: Kernels, operation: str, ranks: int) -> list[CollectiveTable]:
    times: dict[int, float] = {}
    sizes = rows.columns["message_size"] * HALF_BYTES
    for size, time in zip(sizes.tolist(), _seconds(rows).tolist(), strict=True):
        times[size] = min(time, times.get(size, time))
    known = [size for size in SIZES if size in times]
    if len(known) < 2:
        return []
    growing = np.minimum.accumulate([times[size] for size in reversed(known)])[::-1]
    return [
        CollectiveTable(
            operation,
            1,
            ranks,
            True,
            tuple(float(size) for size in known),
            tuple(float(f"{time:.4g}") for time in growing),
        )
    ]


def _fastest(rows: Kernels) -> Kernels:
    """Returns one row for each shape, that of the fastest kernel."""
    shapes = ("batch_size", "isl", "num_heads", "num_key_value_heads")
    order = np.lexsort([rows.columns["latency"], *(rows.columns[name] for name in shapes)])
    ordered = rows.where(order)
    if not len(ordered):
        return ordered
    shape = np.stack([ordered.columns[name] for name in shapes])
    first = np.append(True, (np.diff(shape) != 0).any(axis=0))
    return ordered.where(first)


def _sizes(rows: Kernels, name: str) -> Floats:
    values = rows.columns[name].astype(np.float64)
    if values.min() < 1 or values.min() == values.max():
        raise BadInput(
            f"got {values.min():g} to {values.max():g}",
            file=rows.file,
            field=name,
            expected="at least two sizes, from 1 on",
        )
    return values


def _seconds(rows: Kernels) -> Floats:
    """Returns the times; the package has milliseconds."""
    return np.asarray(rows.columns["latency"] * 1e-3)
