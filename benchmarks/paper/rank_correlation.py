"""How alike two lists of figures rank: Spearman's ρ and Kendall's τ-b."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def kendall(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Returns τ-b: concordant less discordant pairs, by the pairs that are tied in neither list.

    0 where either list has one value only.
    """
    a, b = (np.sign(np.subtract.outer(one, one)) for one in (ours, theirs))
    upper = np.triu_indices(len(ours), 1)
    pairs = (a[upper] * b[upper]).sum()
    free = np.sqrt(float((a[upper] != 0).sum()) * float((b[upper] != 0).sum()))
    return float(pairs / free) if free else 0.0


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Returns the correlation of the ranks, where equal figures share their mean rank.

    0 where either list has one value only.
    """
    a, b = (_ranks(np.asarray(one, dtype=np.float64)) for one in (ours, theirs))
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    below = (values[:, None] > values).sum(axis=1)
    equal = (values[:, None] == values).sum(axis=1)
    return np.asarray(below + (equal - 1) / 2.0)
