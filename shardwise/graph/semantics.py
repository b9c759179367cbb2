"""What the analysis of a description says about one operator, for the rest of the system.

Index variables are the loops of the operator: output variables name output dimensions,
reduction variables are summed (or maximised, …) over. Splitting a variable k ways gives k
shares; `Access` says what a share needs of each input and leaves of each output (Tofu §4.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reducer = Literal["sum", "max", "min", "prod", "merge"]

QUERY = "query"
"""The variable of rows of attention that see all keys."""

RING = "ring"
"""The variable of rows of attention that are split with its keys and values, which go round."""


@dataclass(frozen=True, slots=True)
class IndexVariable:
    """One loop of an operator; `extent` in elements; `reducer` only on reduction variables."""

    name: str
    extent: int
    reducer: Reducer | None = None

    @property
    def is_reduction(self) -> bool:
        return self.reducer is not None


@dataclass(frozen=True, slots=True)
class Access:
    """How the split of one variable affects one tensor.

    `dim` is the dimension of the tensor that is split along with the variable. For a variable
    that does not index the tensor, or needs all of it whatever the share, there is no Access
    at all. `halo_before` and `halo_after` count elements of `dim` beyond an even share that a
    share also reads (convolution's halo exchange). Where `granularity` is
    not 0, the number of shares must divide it (dimension maps: a merged dimension is split only
    in whole elements of its outer part).
    """

    dim: int
    halo_before: int = 0
    halo_after: int = 0
    granularity: int = 0


@dataclass(frozen=True, slots=True)
class Statistic:
    """A small intermediate result that is reduced over some variables and read back by all shares.

    Mean and variance of a normalisation, maximum and sum of a softmax. Splitting a variable in
    `reduced` leaves partial statistics, made whole by one all-reduce in forward and one in
    backward; `indexed` are the variables that index the statistic; `values` counts how many
    numbers there are per index.
    """

    reduced: frozenset[int]
    indexed: frozenset[int]
    values: int


@dataclass(frozen=True, slots=True)
class Merging:
    """How an operator merges over elements (keys) what its rows (queries) see of them.

    `rows` is the variable of rows that see all elements, which are then needed whole; `ring` the
    one that splits rows and elements alike, None where that is not exact. `inputs` are those that
    go round the ring. `causal`: row s sees elements 0 to s alone. `balanced`: shares of rows may
    lie in zigzag order, so that all see as many (`sharding/zigzag.py`); where a plan is executed,
    they lie in so many `pieces` (0: in the order of the sequence).
    """

    rows: int | None
    ring: int | None
    inputs: tuple[int, ...]
    causal: bool
    balanced: bool = False
    pieces: int = 0


@dataclass(frozen=True, slots=True)
class OperatorSemantics:
    """The splits of one operator, and what its gradients cost.

    `inputs[i][v]` is the Access of variable v (its position in `variables`) on input i; a
    variable that is missing there needs input i whole (or does not touch it). `outputs[o][v]`
    likewise: a reduction variable is never in it (the output is then a partial result under
    `reducer`); an output variable always is, except where another output alone has it.

    `variables` holds only the variables that may be split. `saves_inputs` and `saves_outputs`
    say which tensors backward needs kept. Flops are of the whole operator (multiply and add
    are two); `backward_flops` of all gradients together. `described` is false for an operator
    without a description: then `variables` is empty and it is replicated.
    """

    variables: tuple[IndexVariable, ...]
    inputs: tuple[dict[int, Access], ...]
    outputs: tuple[dict[int, Access], ...]
    saves_inputs: tuple[bool, ...]
    saves_outputs: tuple[bool, ...]
    forward_flops: float
    backward_flops: float
    category: Literal["elementwise", "view", "light", "heavy"]
    described: bool = True
    statistics: tuple[Statistic, ...] = ()
    merging: Merging | None = None
