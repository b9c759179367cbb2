"""The training graph: tensors and operators, forward only.

A graph holds the forward operators of one training step, the loss included. Backward is not
spelled out: each forward operator and its gradients are one group (Tofu §5.1), and the
operator's description says what its backward computes and which tensors it needs kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal, Self

Role = Literal["input", "parameter", "buffer", "activation", "output"]

DTYPE_BYTES: Mapping[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Size of one element in bytes, keyed by torch's dtype names without their prefix."""

STORED_BYTES: Mapping[str, float] = {"int8": 1.0, "nf4": (4 + 8 / 64 + 32 / (64 * 256)) / 8}
"""Size of one element in bytes of a frozen parameter that is stored in another form than it is
computed with. `nf4` has 4 bits, a scale of 8 bits for each 64 elements, and one of 32 bits for each
256 of these: 4.127 bits (Dettmers et al. 2023, QLoRA, section 3, double quantisation). `int8` has
a scale for each row besides, which is not counted (Dettmers et al. 2022, LLM.int8(), section 3)."""

FLOAT_DTYPES = frozenset(name for name in DTYPE_BYTES if name.startswith(("float", "bfloat")))


class Spread(int):
    """The extent of a dimension that no tensor has: experts to whose devices rows may be sent.

    A share of it holds the rows of its experts: as many of them as it has experts of all, if all
    are chosen alike, and on the busiest device `imbalance` times as many. It equals no number, so
    that a shape with it is no other shape.
    """

    imbalance: float

    def __new__(cls, experts: int, imbalance: float = 1.0) -> Self:
        made = super().__new__(cls, experts)
        made.imbalance = imbalance
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spread) and self._key == other._key

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(("spread", *self._key))

    @property
    def _key(self) -> tuple[int, float]:
        return int(self), self.imbalance


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: `shape` in elements; `batch_dim` is the sample dimension where it is known.

    `spread` counts the experts to which its rows may be sent (`sharding/routing.py`), if they may.
    A `frozen` parameter is not trained; it may be `stored` in a form of `STORED_BYTES`, from which
    its numbers are made before each use.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    batch_dim: int | None = None
    spread: Spread | None = None
    frozen: bool = False
    stored: str | None = None

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of all dimensions that a layout may split: the shape, and any spread."""
        return self.shape if self.spread is None else (*self.shape, self.spread)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]

    @property
    def stored_item_bytes(self) -> float:
        """Bytes of one element as it is stored."""
        return DTYPE_BYTES[self.dtype] if self.stored is None else STORED_BYTES[self.stored]

    @property
    def trains(self) -> bool:
        """Whether it is a parameter that a step updates."""
        return self.role == "parameter" and self.differentiable and not self.frozen

    @property
    def differentiable(self) -> bool:
        """Whether it can have a gradient: its numbers are real or complex, not integers."""
        return self.dtype in FLOAT_DTYPES or self.dtype.startswith("complex")


@dataclass(frozen=True, slots=True)
class Operator:
    """One forward operator.

    `kind` is an ATen name (`aten.linear.default`). `inputs` are tensor names in the order of
    the operator's schema; tensors inside list arguments follow one another; optional
    tensors that are absent are left out. `attributes["tensor_arguments"]` names the schema
    argument of each input (`input`, `weight`, `bias`, `tensors.0`, `tensors.1`); the other
    attributes are the non-tensor arguments by their schema names, schema defaults filled in.
    `scope` is the dotted path of the module it came from.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    scope: str = ""


@dataclass(frozen=True)
class Graph:
    """A validated training graph; `tensors` by name, `operators` in topological order.

    One that was made by an option (`tuning.py`) says so: `tuning` is the option, `untuned` the
    content id of the graph that it was made of.
    """

    name: str
    tensors: Mapping[str, Tensor]
    operators: tuple[Operator, ...]
    tuning: str = ""
    untuned: str = ""

    @cached_property
    def producer(self) -> Mapping[str, Operator]:
        """The operator that makes each tensor; inputs, parameters and buffers have none."""
        return {out: op for op in self.operators for out in op.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Operator, ...]]:
        """The operators that read each tensor, in graph order, each once."""
        consumers: dict[str, list[Operator]] = {name: [] for name in self.tensors}
        for op in self.operators:
            for name in dict.fromkeys(op.inputs):
                consumers[name].append(op)
        return {name: tuple(ops) for name, ops in consumers.items()}

    @cached_property
    def parameter_count(self) -> int:
        return sum(t.elements for t in self.tensors.values() if t.role == "parameter")

    @cached_property
    def batch_size(self) -> int | None:
        """Samples of one step, from the first input that names its batch dimension."""
        for tensor in self.tensors.values():
            if tensor.role == "input" and tensor.batch_dim is not None:
                return tensor.shape[tensor.batch_dim]
        return None
