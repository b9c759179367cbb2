"""Units: the operator groups that get one decision together (HeteroG §4.1.1).

Like layers are a unit (their groups have the same costs); where these are more than may be, those
of the longest time are centres, and every other one joins the centre with the fewest hops between
them. Without classes every operator group is by itself at first, as in the paper.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


def unit_of(
    kinds: Sequence[int],
    seconds: Sequence[float],
    edges: Iterable[tuple[int, int]],
    most: int,
    *,
    by_class: bool = True,
) -> NDArray[np.int64]:
    """Returns the unit of each group, numbered from 0 on in the order of their first groups.

    `kinds` (groups,) are equal for like groups, `seconds` (groups,) the average time of each, and
    `edges` say between which groups data moves.
    """
    node = _numbered(kinds if by_class else range(len(kinds)))
    count = int(node.max(initial=-1)) + 1
    if count > most:
        total = _totals(node, np.asarray(seconds), count)
        pairs = {(int(node[a]), int(node[b])) for a, b in edges}
        node = np.asarray(_nearest(count, total, pairs, most)[node])
    return _numbered(node.tolist())


def _totals(
    node: NDArray[np.int64], seconds: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    return np.bincount(node, weights=seconds, minlength=count).astype(np.float64)


def _numbered(values: Iterable[int]) -> NDArray[np.int64]:
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def _nearest(
    count: int, seconds: NDArray[np.float64], pairs: set[tuple[int, int]], most: int
) -> NDArray[np.int64]:
    """Returns the centre of each node; of equally near ones that of the longer time."""
    beside: dict[int, set[int]] = defaultdict(set)
    for a, b in pairs:
        if a != b:
            beside[a].add(b)
            beside[b].add(a)
    centres = np.argsort(-seconds, kind="stable")[:most].tolist()
    centre = np.full(count, -1, dtype=np.int64)
    centre[centres] = centres
    queue = deque(centres)
    while queue:
        here = queue.popleft()
        for other in sorted(beside[here]):
            if centre[other] < 0:
                centre[other] = centre[here]
                queue.append(other)
    return np.where(centre < 0, centres[0], centre)
