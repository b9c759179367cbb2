"""Numeric check of a description against an implementation of the operator.

Partition-n-reduce (Tofu §3.1) rests on three claims, one per kind of variable. Each is tested on
the whole operator with inputs a and b drawn independently, so that the implementation need not
run on cut shapes, and halos, views and constants in attributes are covered too. Let h_j be the
inputs in which share j (with its halo) comes from a and everything else from b; inputs that are
needed whole always come from a.

    output variable      y(h_j) = y(a) on the rows of share j: nothing else was read
    reduction variable   y(h_j) ⊕ y(h_rest) = y(a) ⊕ y(b): the output is ⊕ of one term per share
    statistic            y(a) stays as it is on the rows of share j if the rows of all other
                         shares change places: they count only through a sum or a maximum
    merge                the same, where rows before share j change places among themselves, and
                         those after it

Where no output has the variable of a statistic (the classes of a cross entropy), share 0 is tested
for all; what picks single rows, such as targets, must pick in share 0 then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import ShardwiseError
from shardwise.graph.graph import Operator, Tensor
from shardwise.graph.semantics import Access, OperatorSemantics
from shardwise.tdl.registry import analyse_strictly

Arrays = Sequence[NDArray[Any]]
Run = Callable[[Arrays], Arrays]
Draw = Callable[[np.random.Generator], Arrays]
Method = Literal["output", "reduction", "statistic", "merge"]

COMBINE: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


class Mismatch(ShardwiseError):
    """A description claims a split that the implementation does not allow."""


@dataclass(frozen=True, slots=True)
class Check:
    """One split that was verified: a variable, the number of shares, the claim."""

    variable: str
    parts: int
    method: Method


def check_claims(
    operator: Operator,
    tensors: Mapping[str, Tensor],
    run: Run,
    *,
    parts: Iterable[int] = (2,),
    draw: Draw | None = None,
    semantics: OperatorSemantics | None = None,
    seed: int = 0,
    tolerance: float = 1e-8,
) -> tuple[Check, ...]:
    """Checks every variable in every legal number of shares. Returns the checks.

    `run` maps arrays in the order of `operator.inputs` to all outputs and must not be random.
    `draw` gives such arrays; by default floats are normal and whole numbers 0 or 1. `semantics`
    is what `analyse_strictly` says unless given. Raises `Mismatch` at the first wrong claim.
    """
    sem = semantics or analyse_strictly(operator, tensors)
    random = np.random.default_rng(seed)
    drawn = draw or _draw_by_dtype([tensors[name] for name in operator.inputs])
    a, b = drawn(random), drawn(random)
    counts = tuple(parts)
    checks = []
    for v, variable in enumerate(sem.variables):
        for count in counts:
            split = _Split(sem, v, count, operator, tensors)
            if not split.is_legal():
                continue
            if any(v in statistic.reduced for statistic in sem.statistics):
                method: Method = "statistic"
                wrong = _wrong_statistic(split, run, a, random, tolerance)
            elif sem.merging is not None and sem.merging.ring == v:
                method = "merge"
                wrong = _wrong_statistic(split, run, a, random, tolerance, merges=True)
            elif variable.reducer is not None:
                method = "reduction"
                wrong = _wrong_reduction(split, run, a, b, COMBINE[variable.reducer], tolerance)
            else:
                method = "output"
                wrong = _wrong_output(split, run, a, b, tolerance)
            if wrong is not None:
                raise Mismatch(
                    f"{operator.kind}: {method} variable {variable.name} cannot be split in "
                    f"{count} as described (share {wrong})"
                )
            checks.append(Check(variable.name, count, method))
    return tuple(checks)


def _draw_by_dtype(inputs: Sequence[Tensor]) -> Draw:
    def draw(random: np.random.Generator) -> list[NDArray[Any]]:
        return [
            random.standard_normal(t.shape)
            if t.differentiable
            else random.integers(0, 2, t.shape).astype(bool if t.dtype == "bool" else np.int64)
            for t in inputs
        ]

    return draw


@dataclass(frozen=True)
class _Split:
    """One variable in `count` shares of ceil(extent / count)."""

    sem: OperatorSemantics
    variable: int
    count: int
    operator: Operator
    tensors: Mapping[str, Tensor]

    def inputs(self) -> list[Access | None]:
        return [by_variable.get(self.variable) for by_variable in self.sem.inputs]

    def outputs(self) -> list[Access | None]:
        return [by_variable.get(self.variable) for by_variable in self.sem.outputs]

    def is_legal(self) -> bool:
        """Returns whether no share is empty or reads beyond its neighbour, maps staying whole."""
        extents = [(self.sem.variables[self.variable].extent, Access(0))]
        names = (*self.operator.inputs, *self.operator.outputs)
        for name, access in zip(names, (*self.inputs(), *self.outputs()), strict=True):
            if access is not None:
                extents.append((self.tensors[name].shape[access.dim], access))
        return all(
            self.count <= extent
            and (self.count - 1) * -(-extent // self.count) < extent
            and access.granularity % self.count == 0
            and max(access.halo_before, access.halo_after) <= extent // self.count
            for extent, access in extents
        )

    def rows(self, access: Access, size: int, share: int, halo: bool = False) -> slice:
        step = -(-size // self.count)
        before, after = (access.halo_before, access.halo_after) if halo else (0, 0)
        return slice(max(share * step - before, 0), min((share + 1) * step + after, size))

    def hybrid(self, own: Arrays, others: Arrays, share: int) -> list[NDArray[Any]]:
        """Returns `share` with its halo and whole inputs from `own`, the rest from `others`."""
        mixed = []
        for access, mine, other in zip(self.inputs(), own, others, strict=True):
            if access is None:
                mixed.append(mine)
                continue
            array = other.copy()
            place = _at(access.dim, self.rows(access, array.shape[access.dim], share, halo=True))
            array[place] = mine[place]
            mixed.append(array)
        return mixed

    def agrees(self, share: int, x: Arrays, y: Arrays, tolerance: float) -> bool:
        """Returns whether two results agree on the rows of `share`, or in all where it does not
        index."""
        for access, left, right in zip(self.outputs(), x, y, strict=True):
            place: Any = ...
            if access is not None:
                place = _at(access.dim, self.rows(access, left.shape[access.dim], share))
            if not _equal(left[place], right[place], tolerance):
                return False
        return True


def _wrong_output(split: _Split, run: Run, a: Arrays, b: Arrays, tolerance: float) -> int | None:
    whole = run(a)
    for share in range(split.count):
        if not split.agrees(share, run(split.hybrid(a, b, share)), whole, tolerance):
            return share
    return None


def _wrong_reduction(
    split: _Split, run: Run, a: Arrays, b: Arrays, combine: np.ufunc, tolerance: float
) -> int | None:
    b = [x if access is None else y for access, x, y in zip(split.inputs(), a, b, strict=True)]
    both = [combine(x, y) for x, y in zip(run(a), run(b), strict=True)]
    for share in range(split.count):
        apart = zip(
            run(split.hybrid(a, b, share)), run(split.hybrid(b, a, share)), both, strict=True
        )
        if not all(_equal(combine(x, y), z, tolerance) for x, y, z in apart):
            return share
    return None


def _wrong_statistic(
    split: _Split,
    run: Run,
    a: Arrays,
    random: np.random.Generator,
    tolerance: float,
    *,
    merges: bool = False,
) -> int | None:
    whole = run(a)
    shares = split.count if any(split.outputs()) else 1
    for share in range(shares):
        orders: dict[int, NDArray[np.intp]] = {}
        moved = []
        for access, array in zip(split.inputs(), a, strict=True):
            if access is None:
                moved.append(array)
                continue
            size = array.shape[access.dim]
            if size not in orders:
                own = split.rows(access, size, share)
                before, after = [*range(own.start)], [*range(own.stop, size)]
                orders[size] = np.arange(size)
                for others in (before, after) if merges else (before + after,):
                    orders[size][others] = random.permutation(others)
            moved.append(np.take(array, orders[size], axis=access.dim))
        if not split.agrees(share, run(moved), whole, tolerance):
            return share
    return None


def _at(dim: int, rows: slice) -> tuple[slice, ...]:
    return (*[slice(None)] * dim, rows)


def _equal(x: NDArray[Any], y: NDArray[Any], tolerance: float) -> bool:
    return bool(np.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True))
