"""From a description to the splits of an operator.

Tofu §4.2, "Discover operator partition strategies".

For each index variable the input regions of two workers are computed: one with the variable's
first half, one with its second half. A dimension whose region moves along with the variable is
split (an `Access`, with the rows beyond an even share as its halo); a tensor that stays whole,
or moves in a way that even shares do not cover, is needed whole.

Case 1: output variables. Case 2: variables of a reduction that the output is linear in; each
worker has a partial result. Beyond Tofu: a reduction nested inside a non-linear expression (the
sum of a softmax, the mean of a normalisation) is a **statistic**. Its variable may be split too,
together with the output variable that runs over the same dimension, if the statistic is
all-reduced; see `Statistic`. The variable of a **merge** (the keys of attention) may be split
together with the output variable of its rows, as one more variable, `ring`; see `Merging`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil, floor, gcd, isqrt

from shardwise.graph.semantics import RING, Access, IndexVariable, Merging, Statistic
from shardwise.tdl.intervals import Interval, NotAffine
from shardwise.tdl.language import (
    Combination,
    Element,
    Expression,
    Index,
    IndexExpression,
    Reduction,
    TensorHandle,
    as_expression,
    indices_of,
    is_numbered,
)

HALF = Fraction(1, 2)
WHOLE = (Fraction(0), Fraction(1))
FIRST_HALF, SECOND_HALF = (Fraction(0), HALF), (HALF, Fraction(1))

Region = tuple[tuple[int, int], ...]
"""First and last element of every dimension that a worker reads."""


@dataclass(frozen=True)
class Splits:
    """The variables of an operator with their accesses; see `OperatorSemantics`."""

    variables: tuple[IndexVariable, ...]
    inputs: tuple[dict[int, Access], ...]
    outputs: tuple[dict[int, Access], ...]
    statistics: tuple[Statistic, ...]
    merging: Merging | None = None


@dataclass
class _Loop:
    """One or several index variables that are split as one."""

    name: str
    extent: int
    reducer: str | None = None
    numbers: set[int] = field(default_factory=set)
    output_dims: dict[int, int] = field(default_factory=dict)
    nested: list[Reduction] = field(default_factory=list)


@dataclass(frozen=True)
class _Seen:
    """An element access with the nested reductions around it."""

    element: Element
    nested: tuple[Reduction, ...]


def analyse_lambdas(
    handles: Sequence[TensorHandle],
    outputs: Sequence[tuple[Callable[..., object], tuple[int, ...]]],
) -> Splits:
    """Returns the splits of an operator given one lambda and shape per output.

    An output variable that no even share of any input follows (an expanded dimension, half of
    a dimension) is left out: splitting it would share no work, and a replicated output can be
    cut locally for free. Raises `NotAffine` for index expressions that interval analysis cannot
    follow.
    """
    loops: list[_Loop] = []
    seen: list[_Seen] = []
    for position, (function, shape) in enumerate(outputs):
        indices = indices_of(function, shape)
        body = as_expression(function(*indices))
        _output_loops(loops, position, indices, shape)
        # Partial results are all of an operator's outputs or none: with several outputs, sums
        # are statistics, which every share gets whole.
        reductions = _linear_reductions(body) if len(outputs) == 1 else []
        for reduction in reductions:
            _reduction_loops(loops, reduction)
        _collect(body, (), set(map(id, reductions)), seen)
    merges = {id(r): r for s in seen for r in s.nested if r.reducer == "merge"}
    _pair_nested(loops, seen)
    rows, ring = _merging_loops(loops, list(merges.values()))
    loops = [loop for loop in loops if loop.extent > 1]
    extents = _extents(seen, loops)
    inputs: tuple[dict[int, Access], ...] = tuple({} for _ in handles)
    for v, loop in enumerate(loops):
        for handle in handles:
            access = _access(handle, loop, seen, extents)
            if access is not None:
                inputs[handle.position][v] = access
    read = {v for by_variable in inputs for v in by_variable}
    kept = [v for v in range(len(loops)) if not handles or v in read]
    splits = _splits(loops, kept, inputs, len(outputs))
    if not merges:
        return splits
    place = {id(loops[v]): i for i, v in enumerate(kept)}
    merged = {i.number for r in merges.values() for i in r.indices}
    positions = {
        s.element.tensor.position
        for s in seen
        for i in s.element.indices
        if isinstance(i, Index) and i.number in merged
    }
    return replace(
        splits,
        merging=Merging(
            place.get(id(rows)),
            place.get(id(ring)),
            tuple(sorted(positions)),
            any(r.causal for r in merges.values()),
        ),
    )


def _merging_loops(
    loops: list[_Loop], merges: Sequence[Reduction]
) -> tuple[_Loop | None, _Loop | None]:
    """Adds the `ring` loop, which splits rows and the dimension that they merge, if a merge allows
    it. Returns the loop of the rows and the `ring` loop."""
    rows = ring = None
    for merge in merges:
        (index,) = merge.indices
        number = merge.rows.number if merge.rows is not None else None
        rows = next(loop for loop in loops if number in loop.numbers and loop.name != RING)
        if not merge.together or index.extent != rows.extent:
            continue
        if ring is None:
            ring = _Loop(RING, rows.extent, output_dims=dict(rows.output_dims))
            loops.append(ring)
        ring.numbers |= rows.numbers | {index.number}
    return rows, ring


def _splits(
    loops: list[_Loop], kept: list[int], inputs: tuple[dict[int, Access], ...], outputs: int
) -> Splits:
    place = {v: i for i, v in enumerate(kept)}
    variables = tuple(
        IndexVariable(loops[v].name, loops[v].extent, loops[v].reducer)  # type: ignore[arg-type]
        for v in kept
    )
    accesses = tuple(
        {place[v]: a for v, a in by_variable.items() if v in place} for by_variable in inputs
    )
    written = tuple(
        {place[v]: Access(loops[v].output_dims[o]) for v in kept if o in loops[v].output_dims}
        for o in range(outputs)
    )
    return Splits(variables, accesses, written, _statistics(loops, place))


def _output_loops(
    loops: list[_Loop], position: int, indices: list[Index], shape: tuple[int, ...]
) -> None:
    """Adds the loops of one output.

    Outputs share a loop where their extents agree, and their names, or else their dimensions.
    """
    for dim, (index, extent) in enumerate(zip(indices, shape, strict=True)):
        same = next(
            (
                loop
                for loop in loops
                if loop.extent == extent
                and position not in loop.output_dims
                and _alike(loop, index, dim)
            ),
            None,
        )
        if same is None:
            same = _Loop(index.name, extent)
            loops.append(same)
        same.numbers.add(index.number)
        same.output_dims[position] = dim


def _alike(loop: _Loop, index: Index, dim: int) -> bool:
    if is_numbered(loop.name) and is_numbered(index.name):
        return dim in loop.output_dims.values()
    return loop.name == index.name


def _linear_reductions(body: Expression) -> list[Reduction]:
    """Returns the reductions that a sum of partial outputs passes through (case 2)."""
    if isinstance(body, Reduction):
        if body.reducer == "merge":
            return []
        inner = _linear_reductions(body.body)
        return [body, *(r for r in inner if r.reducer == body.reducer)]
    reductions = []
    if isinstance(body, Combination) and body.linear:
        for child in body.children:
            reductions += [r for r in _linear_reductions(child) if r.reducer == "sum"]
    return reductions


def _reduction_loops(loops: list[_Loop], reduction: Reduction) -> None:
    for index in reduction.indices:
        if index.extent is None:
            raise NotAffine(f"the extent of reduction variable {index.name} is not known")
        loops.append(_Loop(index.name, index.extent, reduction.reducer, {index.number}))


def _collect(
    node: Expression,
    nested: tuple[Reduction, ...],
    linear: set[int],
    seen: list[_Seen],
) -> None:
    if isinstance(node, Element):
        seen.append(_Seen(node, nested))
        return
    if isinstance(node, Reduction) and id(node) not in linear:
        nested = (*nested, node)
    for child in node.children:
        _collect(child, nested, linear, seen)


def _pair_nested(loops: list[_Loop], seen: list[_Seen]) -> None:
    """Lets a nested reduction variable run with the loop over the same dimension, or alone."""
    by_number = {number: loop for loop in loops for number in loop.numbers}
    reductions = {id(r): r for s in seen for r in s.nested if r.reducer != "merge"}
    for reduction in reductions.values():
        for index in reduction.indices:
            if index.extent is None:
                raise NotAffine(f"the extent of reduction variable {index.name} is not known")
            places = {
                (s.element.tensor.position, dim)
                for s in seen
                for dim, i in enumerate(s.element.indices)
                if i is index
            }
            partner = next(
                (
                    by_number[i.number]
                    for s in seen
                    for dim, i in enumerate(s.element.indices)
                    if isinstance(i, Index)
                    and i is not index
                    and i.number in by_number
                    and (s.element.tensor.position, dim) in places
                ),
                None,
            )
            if partner is None:
                partner = _Loop(index.name, index.extent)
                loops.append(partner)
            partner.numbers.add(index.number)
            partner.nested.append(reduction)
            by_number[index.number] = partner


def _extents(seen: list[_Seen], loops: list[_Loop]) -> dict[int, int]:
    extents = {number: loop.extent for loop in loops for number in loop.numbers}
    for s in seen:
        for index in s.element.indices:
            if isinstance(index, IndexExpression):
                for variable in index.variables():
                    extents.setdefault(variable.number, variable.extent or 1)
    return extents


def _region(
    handle: TensorHandle,
    part: tuple[Fraction, Fraction],
    loop: _Loop,
    seen: list[_Seen],
    extents: dict[int, int],
) -> Region:
    """Returns the hull of all accesses to a tensor while `loop` runs over `part` of its range."""
    ranges = {
        number: Interval.of_variable(number, *(part if number in loop.numbers else WHOLE))
        for number in extents
    }
    hull: list[tuple[int, int]] = []
    for s in seen:
        if s.element.tensor.position != handle.position:
            continue
        bounds = []
        for index, size in zip(s.element.indices, handle.shape, strict=True):
            if index is None:
                low, high = 0, size - 1
            elif isinstance(index, int):
                low = high = index
            else:
                ends = index.interval(ranges, extents).bounds(extents)
                low, high = ceil(ends[0]), floor(ends[1])
            bounds.append((max(low, 0), min(high, size - 1)))
        if not hull:
            hull = bounds
        else:
            hull = [(min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(hull, bounds, strict=True)]
    return tuple(hull)


def _access(
    handle: TensorHandle, loop: _Loop, seen: list[_Seen], extents: dict[int, int]
) -> Access | None:
    """Returns how the split of a loop affects one input, from the regions of two workers.

    The tensor is needed whole (None) if no dimension or several move along, and if half of the
    loop does not mainly read its own half of the dimension.
    """
    if not _indexes(handle, loop, seen):
        return None
    first = _region(handle, FIRST_HALF, loop, seen, extents)
    second = _region(handle, SECOND_HALF, loop, seen, extents)
    moving = [d for d in range(len(first)) if first[d] != second[d]]
    if len(moving) != 1:
        return None
    dim = moving[0]
    size = handle.shape[dim]
    if not _follows(first[dim], second[dim], size):
        return None
    common = _common_shares(handle, dim, loop, seen)
    if common == 1:
        return None

    def halo(shares: int) -> tuple[int, int]:
        share = Fraction(1, shares)
        before = after = 0
        for start in _boundaries(shares):
            low, _ = _region(handle, (start, start + share), loop, seen, extents)[dim]
            _, high = _region(handle, (start - share, start), loop, seen, extents)[dim]
            before = max(before, ceil(start * size - low))
            after = max(after, ceil(high + 1 - start * size))
        return before, after

    if common == 0:
        return _unless_windows(loop, Access(dim, *halo(2)))
    finest = halo(common)
    if finest != (0, 0) and common % 2 == 0 and halo(2) == (0, 0):
        # Whole elements of the outer part of a dimension map (a group of channels) need no halo.
        common = next(n for n in _divisors(common) if halo(n) == (0, 0))
        finest = (0, 0)
    return _unless_windows(loop, Access(dim, *finest, common))


def _unless_windows(loop: _Loop, access: Access) -> Access | None:
    """Returns None for shares of a reduction that need each other's rows (a window)."""
    halo = access.halo_before or access.halo_after
    return None if halo and not loop.output_dims else access


MOST_BOUNDARIES = 64


def _boundaries(shares: int) -> list[Fraction]:
    """Returns where shares meet; of many the first, the last, and some evenly between.

    What is read around a boundary moves evenly over the tensor until it meets the tensor's ends.
    """
    step = -(-shares // MOST_BOUNDARIES)
    return [Fraction(k, shares) for k in sorted({*range(1, shares, step), shares - 1})]


def _divisors(n: int) -> list[int]:
    """Returns the divisors of n, largest first."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return sorted({n // d for d in small} | set(small), reverse=True)


def _indexes(handle: TensorHandle, loop: _Loop, seen: list[_Seen]) -> bool:
    return any(
        variable.number in loop.numbers
        for s in seen
        if s.element.tensor.position == handle.position
        for index in s.element.indices
        if isinstance(index, IndexExpression)
        for variable in index.variables()
    )


def _follows(first: tuple[int, int], second: tuple[int, int], size: int) -> bool:
    """Returns whether two workers mainly read their own halves: a halo, not most of the tensor."""
    middle = Fraction(size, 2)
    halo = 0
    for (low, high), (start, end) in (
        (first, (Fraction(0), middle)),
        (second, (middle, Fraction(size))),
    ):
        needed = high + 1 - low
        own = min(end, Fraction(high + 1)) - max(start, Fraction(low))
        if needed <= 0 or 2 * own < needed:
            return False
        halo += ceil(needed - own)
    return 2 * halo < size


def _common_shares(handle: TensorHandle, dim: int, loop: _Loop, seen: list[_Seen]) -> int:
    """Returns 0 where any number of shares fits, else what the number of shares must divide.

    Even shares of the loop and of the dimension stay a constant halo apart if both have one
    length and step by one. If not (strides, dimension maps, windows without padding), only a
    number of shares that divides both extents leaves whole shares of known regions.
    """
    size = handle.shape[dim]
    places = [s.element.indices[dim] for s in seen if s.element.tensor.position == handle.position]
    steady = all(
        index.slope(loop.numbers) in (0, 1)
        for index in places
        if isinstance(index, IndexExpression)
    )
    return 0 if steady and loop.extent == size else gcd(loop.extent, size)


def _statistics(loops: list[_Loop], place: dict[int, int]) -> tuple[Statistic, ...]:
    """Returns one statistic per set of nested reductions over the same loops."""
    by_reduction: dict[int, tuple[Reduction, set[int]]] = {}
    for v, loop in enumerate(loops):
        if v in place:
            for reduction in loop.nested:
                by_reduction.setdefault(id(reduction), (reduction, set()))[1].add(place[v])
    counted: dict[tuple[frozenset[int], frozenset[int]], int] = {}
    number_place = {n: place[v] for v, loop in enumerate(loops) if v in place for n in loop.numbers}
    for reduction, reduced in by_reduction.values():
        statistics: list[_Seen] = []
        _collect(reduction.body, (), set(), statistics)
        indexed = {
            number_place[variable.number]
            for s in statistics
            for index in s.element.indices
            if isinstance(index, IndexExpression)
            for variable in index.variables()
            if variable.number in number_place
        }
        key = (frozenset(reduced), frozenset(indexed - reduced))
        counted[key] = counted.get(key, 0) + 1
    return tuple(Statistic(reduced, indexed, n) for (reduced, indexed), n in counted.items())
