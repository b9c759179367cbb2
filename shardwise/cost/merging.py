"""Shares of attention: the busiest device's computation, and rings of keys and values.

Rows (queries) that c devices split see all keys, gathered (variable `query`), or each block of keys
in turn (`ring`; Liu et al. 2023, Ring Attention, §3). Of causal attention the busiest of c shares
computes

    1/c            in zigzag order (sharding/zigzag.py)
    (2c - 1)/c²    in the order of the sequence: the last rows see most keys; in a ring each step
                   takes as long as a whole block
    2/c            where a mask is applied to all scores (dropout, keys of another length)

of the scores that the mask leaves. A ring sends the keys and values of a share c - 1 times in
forward; in backward once more, and their gradients, which add up in float32 on their way home.
"""

from __future__ import annotations

import numpy as np

from shardwise.graph.semantics import OperatorSemantics
from shardwise.sharding.layout import Floats, fraction_of

ACCUMULATED = 4
"""Bytes of an element of gradients that add up on their way, at least."""


def fraction_of_work(sem: OperatorSemantics, variable: int, parts: Floats) -> Floats:
    """Returns the fraction of an operator's work that the busiest of `parts` (n,) shares of a
    variable has."""
    extent, merging = sem.variables[variable].extent, sem.merging
    even = fraction_of(extent, parts)
    if merging is None or not merging.causal or variable not in (merging.rows, merging.ring):
        return even
    if merging.ring is None:
        return np.minimum(2.0 * even, 1.0)
    contiguous = 1.0 - (1.0 - even) ** 2
    if not merging.balanced:
        return contiguous
    return np.where(extent % (2 * parts) == 0, even, contiguous)
