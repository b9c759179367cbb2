"""Says which products a GPU runs slowly because of their sizes, such as an odd vocabulary."""

from __future__ import annotations

from collections import defaultdict

from shardwise.cost.products import operands
from shardwise.graph.graph import DTYPE_BYTES, Graph
from shardwise.hardware import Device
from shardwise.hardware.products import LOAD_BYTES

NOTICED = 0.02
"""Minimum share of slow products in all products' operations for a note."""
ROUND = 64
"""Multiples of this suit all kernels, also when halved."""


def unaligned_note(graph: Graph, device: Device, narrowed_to: str | None) -> str | None:
    """Returns a sentence on the size that slows most products, or None.

    `narrowed_to` is the dtype of the computation if not the graph's.
    """
    flops: dict[tuple[int, int, float], float] = defaultdict(float)
    total = 0.0
    for op in graph.operators:
        places = None if op.kind.startswith("aten.conv") else operands(op)
        if places is None:
            continue
        left, right = (graph.tensors[op.inputs[place]] for place in places)
        work = left.elements * right.elements / max(left.shape[-1], 1)
        total += work
        dtype = narrowed_to or right.dtype
        table = device.product_table(dtype)
        if table is None or table.unaligned == 1.0:
            continue
        per_load = LOAD_BYTES // DTYPE_BYTES[dtype]
        odd = next((size for size in right.shape[-2:] if size % per_load), None)
        if odd is not None:
            flops[odd, per_load, table.unaligned] += work
    worst = max(flops, key=lambda key: flops[key], default=None)
    if worst is None or flops[worst] < NOTICED * total:
        return None
    size, per_load, reached = worst
    return (
        f"matrices with {size:,} rows or columns, no multiple of {per_load}, have "
        f"{flops[worst] / total:.0%} of the multiplications and run at {reached:.0%} of the peak "
        f"at most: with {-(-size // ROUND) * ROUND:,} (a padded vocabulary, for example) they run "
        "as fast as others"
    )
